"""A tiny vision transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.models._head import Head, image_shape, make_head
from reweigh.bench.models.blocks.block import TransformerBlock

__all__ = ["build"]


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    patch: int = 4,
    depth: int = 6,
    width: int = 192,
    heads: int = 3,
    head: Head = "linear",
) -> nn.Module:
    """A tiny ViT: 4 x 4 patches, 6 layers of width 192 with 3 heads; 2.7 million parameters.

    Parameters
    ----------
    shape, classes
        Of one image, its sides multiples of `patch`; number of outputs.
    patch
        Side of a patch in pixels.
    depth, width, heads
        Number of layers, their width (a multiple of 4 and of `heads`), attention heads.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    The plain recipe for small scales: fixed sine-cosine positions, the mean of all patches instead of a class token,
    normalisation before each part, no dropout. A residual network at heart, so the last layer of each part starts as
    any other.
    References: Dosovitskiy et al., ICLR 2021; Beyer et al., Better plain ViT baselines for ImageNet-1k, 2022.
    """
    for name, value in (("patch", patch), ("depth", depth), ("width", width), ("heads", heads)):
        validate.whole(name, value, 1)
    channels, height, side = image_shape("vit", shape, least=patch)
    if height % patch or side % patch:
        raise ValueError(f"`patch` must divide the image's sides, got {patch} for {height} x {side}.")
    if width % 4 or width % heads:
        raise ValueError(f"`width` must be a multiple of 4 and of `heads`, got {width} with {heads} heads.")
    return _ViT(channels, (height // patch, side // patch), patch, depth, width, heads, classes, head)


class _ViT(nn.Module):
    positions: Tensor

    def __init__(
        self,
        channels: int,
        grid: tuple[int, int],
        patch: int,
        depth: int,
        width: int,
        heads: int,
        classes: int,
        head: Head,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("positions", _sine_cosine(grid, width), persistent=False)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = make_head(head, width, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


def _sine_cosine(grid: tuple[int, int], width: int) -> Tensor:
    """Positions of a grid of patches, (1, tokens, width): a quarter of the width each for sine and cosine of row and
    column, at wavelengths from 2 pi to 10 000 times that.
    """
    quarter = width // 4
    steps = torch.arange(quarter, dtype=torch.float64) / max(quarter - 1, 1)
    frequency = torch.exp(-math.log(10_000.0) * steps)
    rows, columns = torch.meshgrid(
        torch.arange(grid[0], dtype=torch.float64), torch.arange(grid[1], dtype=torch.float64), indexing="ij"
    )
    row, column = rows.reshape(-1, 1) * frequency, columns.reshape(-1, 1) * frequency
    return torch.cat([row.sin(), row.cos(), column.sin(), column.cos()], dim=1).float().unsqueeze(0)
