"""Sparsemax: the nearest probability vector, most of whose entries are zero."""

from __future__ import annotations

import torch
from torch import Tensor


def sparsemax(scores: Tensor) -> Tensor:
    r"""The Euclidean projection of the last axis onto the probability simplex.

    .. math:: p_j = \max(0, z_j - \theta), \qquad \theta = \frac{\sum_{j \in S} z_j - 1}{|S|}

    with S the largest entries for which :math:`1 + k z_{(k)} > \sum_{j \le k} z_{(j)}`. The gradient goes through theta
    and is that of the projection.

    Examples
    --------
    >>> sparsemax(torch.tensor([1.0, 0.8, -1.0]))
    tensor([0.6000, 0.4000, 0.0000])

    Notes
    -----
    References: Martins and Astudillo, From softmax to sparsemax, ICML 2016.
    """
    ordered, _ = scores.sort(-1, descending=True)
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    total = ordered.cumsum(-1)
    size = (1 + count * ordered > total).sum(-1, keepdim=True)
    theta = (total.gather(-1, size - 1) - 1) / size
    return (scores - theta).clamp(min=0)
