"""A linear model."""

from __future__ import annotations

import math

from torch import nn

from reweigh.bench.models._head import Head, make_head

__all__ = ["build"]


def build(shape: tuple[int, ...], classes: int, *, head: Head = "linear") -> nn.Module:
    """One linear layer on the flattened input: multinomial logistic regression.

    Parameters
    ----------
    shape, classes
        Of one example; number of outputs.
    head
        `"linear"` or `"cosine"`.
    """
    return nn.Sequential(nn.Flatten(), make_head(head, math.prod(shape), classes))
