"""A multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from reweigh import _validate as validate
from reweigh.bench.models._head import Head, make_head

__all__ = ["build"]


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: str | int | Sequence[int] = (64, 64),
    dropout: float = 0.0,
    head: Head = "linear",
) -> nn.Module:
    """A multi-layer perceptron with ReLU on the flattened input.

    Parameters
    ----------
    shape, classes
        Of one example; number of outputs.
    hidden
        Widths of the hidden layers: numbers, or text such as `"64-64"`.
    dropout
        Share of hidden units left out while training.
    head
        `"linear"` or `"cosine"`.
    """
    validate.fraction("dropout", dropout, zero=True, one=False)
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for size in _widths(hidden):
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*layers, make_head(head, width, classes))


def _widths(hidden: str | int | Sequence[int]) -> list[int]:
    if isinstance(hidden, int):
        widths = [hidden]
    elif isinstance(hidden, str):
        pieces = hidden.split("-")
        if not all(piece.strip().isdecimal() for piece in pieces):
            raise ValueError(f"`hidden` must be widths joined by '-', such as '64-64', got {hidden!r}.")
        widths = [int(piece) for piece in pieces]
    else:
        widths = list(hidden)
    for width in widths:
        validate.whole("hidden", width, 1)
    return widths
