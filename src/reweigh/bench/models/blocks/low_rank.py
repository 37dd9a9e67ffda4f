"""LoRA: linear layers that stay as they are, with a trained matrix of low rank beside each."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reweigh import _validate as validate

__all__ = ["LowRank", "add_low_rank"]


class LowRank(nn.Module):
    r"""A linear layer that is not trained, plus a product of two thin matrices that is.

    .. math:: y = W x + b + \frac{\alpha}{r} B A x

    Parameters
    ----------
    layer
        The linear layer; its parameters are frozen.
    rank, alpha
        The rank r of the product, and the factor :math:`\alpha` on it.

    Notes
    -----
    B starts at zero, so the layer starts as it was. Reference: Hu et al., *LoRA: Low-Rank Adaptation of Large Language
    Models*, ICLR 2022.
    """

    def __init__(self, layer: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        validate.whole("rank", rank, 1)
        self.layer = layer.requires_grad_(False)
        self.scale = alpha / rank
        device = layer.weight.device
        self.down = nn.Parameter(torch.empty(rank, layer.in_features, device=device, dtype=torch.float32))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank, device=device, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the product's, in the dtype of the layer's."""
        own = self.layer(x)
        thin = nn.functional.linear(x.to(self.down.dtype), self.down)
        return own + (self.scale * nn.functional.linear(thin, self.up)).to(own.dtype)


def add_low_rank(body: nn.Module, *, rank: int, alpha: float) -> int:
    """Freeze a model and put a product of rank `rank` beside each of its linear layers; returns how many there are."""
    body.requires_grad_(False)
    layers = [(name, module) for name, module in body.named_modules() if type(module) is nn.Linear]
    for name, layer in layers:
        parent, _, own = name.rpartition(".")
        setattr(body.get_submodule(parent), own, LowRank(layer, rank=rank, alpha=alpha))
    return len(layers)
