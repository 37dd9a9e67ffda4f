"""Sequences that share a row: which token belongs to which."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["segments", "sum_by_segment"]


@torch.no_grad()
def segments(
    position_ids: Tensor | None = None, *, cu_seqlens: Tensor | None = None, shape: Sequence[int] | None = None
) -> Tensor:
    """The number of the sequence that each token of a packed batch belongs to, counted through the batch.

    Parameters
    ----------
    position_ids
        Positions of shape `(B, T)` or `(T,)`: a new sequence starts with each row and wherever the position does not
        increase.
    cu_seqlens
        In place of positions, the cumulative lengths `(0, n_1, n_1 + n_2, ...)` that variable-length attention takes,
        over the tokens of the batch one row after another; tokens beyond the last are one sequence more.
    shape
        The shape of the batch, with `cu_seqlens`.

    Returns
    -------
    Tensor
        Integers in the shape of the batch, from 0: the `segments` of :class:`~reweigh.torch.Reweighted` and
        :func:`~reweigh.torch.chunked_cross_entropy`.

    Examples
    --------
    >>> import torch
    >>> segments(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]))
    tensor([[0, 0, 0, 1, 1],
            [2, 2, 2, 2, 2]])
    >>> segments(cu_seqlens=torch.tensor([0, 3, 5]), shape=(1, 5))
    tensor([[0, 0, 0, 1, 1]])
    """
    if (position_ids is None) == (cu_seqlens is None):
        raise TypeError("`segments` takes either `position_ids` or `cu_seqlens`, got both or neither.")
    if position_ids is not None:
        if position_ids.ndim not in (1, 2):
            raise ValueError(f"`position_ids` must have shape (B, T) or (T,), got {tuple(position_ids.shape)}.")
        starts = torch.ones_like(position_ids, dtype=torch.bool)
        starts[..., 1:] = position_ids[..., 1:] <= position_ids[..., :-1]
        return (starts.flatten().cumsum(0) - 1).view(position_ids.shape)
    if cu_seqlens is None or shape is None:
        raise TypeError("`cu_seqlens` needs `shape`, the shape of the batch, such as `input_ids.shape`.")
    tokens = torch.arange(math.prod(shape), device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:].to(tokens.dtype), tokens, right=True).view(*shape)


def sum_by_segment(values: Tensor, segments: Tensor) -> Tensor:
    """The sum of a vector over each segment, with as many entries as there are tokens: no shape depends on values."""
    return torch.zeros_like(values).index_add(0, segments, values)
