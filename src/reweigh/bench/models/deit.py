"""DeiT: a vision transformer with a class token, learnt positions and stochastic depth."""

from __future__ import annotations

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
    patch: int = 16,
    depth: int = 12,
    width: int = 384,
    heads: int = 6,
    drop: float = 0.1,
    head: Head = "linear",
) -> nn.Module:
    """DeiT-S: 16 x 16 patches, 12 layers of width 384 with 6 heads; 22.05 million parameters at 224 pixels.

    Parameters
    ----------
    shape, classes
        Of one image, its sides multiples of `patch`; number of outputs.
    patch
        Side of a patch in pixels.
    depth, width, heads
        Number of layers, their width (a multiple of `heads`), attention heads.
    drop
        Share of examples that skip a part of the last layer in training; it rises linearly from 0 in the first.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    Without distillation. What skips is drawn from torch's ambient generator. References: Touvron et al., Training
    data-efficient image transformers & distillation through attention, ICML 2021; Huang et al., Deep Networks with
    Stochastic Depth, ECCV 2016.
    """
    for name, value in (("patch", patch), ("depth", depth), ("width", width), ("heads", heads)):
        validate.whole(name, value, 1)
    validate.fraction("drop", drop, zero=True, one=False)
    channels, height, side = image_shape("deit", shape, least=patch)
    if height % patch or side % patch:
        raise ValueError(f"`patch` must divide the image's sides, got {patch} for {height} x {side}.")
    if width % heads:
        raise ValueError(f"`width` must be a multiple of `heads`, got {width} with {heads} heads.")
    return _DeiT(channels, (height // patch) * (side // patch), patch, depth, width, heads, drop, classes, head)


class _DeiT(nn.Module):
    def __init__(
        self,
        channels: int,
        patches: int,
        patch: int,
        depth: int,
        width: int,
        heads: int,
        drop: float,
        classes: int,
        head: Head,
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, width))
        shares = [drop * k / max(depth - 1, 1) for k in range(depth)]
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, drop=_StochasticDepth(share)) for share in shares))
        self.norm = nn.LayerNorm(width)
        self.head = make_head(head, width, classes)
        for parameter in (self.token, self.positions):
            nn.init.trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class _StochasticDepth(nn.Module):
    """What a part adds, for some examples nothing, and for the others so much more that the mean stays."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, added: Tensor) -> Tensor:
        if not self.training or not self.share:
            return added
        kept = torch.rand(len(added), 1, 1, device=added.device) >= self.share
        return added * kept / (1.0 - self.share)
