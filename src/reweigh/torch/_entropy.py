"""How undecided a prediction is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh._array import widen

__all__ = ["entropy"]


@torch.no_grad()
def entropy(logits: Tensor, *, top: int | None = None) -> Tensor:
    """The entropy of each prediction over the largest there is, without gradient: 0 is sure, 1 is undecided.

    Parameters
    ----------
    logits
        Of shape `(..., classes)`.
    top
        How many of the most probable classes to look at, as if there were no others; all unless given.

    Returns
    -------
    Tensor
        Of shape `(...)`, between 0 and 1, float32 at least.

    Examples
    --------
    >>> import torch
    >>> entropy(torch.tensor([[0.0, 0.0], [50.0, 0.0]])).round(decimals=3)
    tensor([1., 0.])
    """
    if top is not None:
        validate.whole("top", top, 2)
        logits = logits.topk(min(top, logits.shape[-1]), -1).values
    log_probabilities = torch.log_softmax(widen(logits), -1)
    return -(log_probabilities.exp() * log_probabilities).sum(-1).clamp(max=0.0) / math.log(logits.shape[-1])
