"""Cross entropy, one value per unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh.torch.losses._base import ClassLoss, check_classes, cross_entropy_of, is_soft

__all__ = ["CrossEntropy"]


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(ClassLoss):
    r"""The negative log-probability of the true class.

    .. math:: \ell = -\log p_y, \qquad p = \mathrm{softmax}(z), \qquad
              \text{or}\quad \ell = -\sum_j q_j \log p_j \text{ for a soft target } q

    Parameters
    ----------
    ignore_index
        A label that marks units as not real (padding): their loss is 0 and `mask` leaves them out. None, the
        default, ignores nothing; language models use -100.

    Returns
    -------
    Tensor
        For logits (B, C) and targets (B,): shape (B,). For logits (B, C, d1, ...): shape (B, d1, ...), one loss per
        position. Targets of the shape of the logits are probabilities. float32 at least.

    Examples
    --------
    >>> import torch
    >>> CrossEntropy()(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.1269, 0.6931])

    Notes
    -----
    `floor` is the entropy of a soft target: the loss cannot go below it, and re-weighting would take it for
    difficulty.
    """

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The cross entropy of each unit."""
        logits = check_classes(output, target, soft=True)
        if is_soft(target):
            return F.cross_entropy(logits, target.to(logits.dtype), reduction="none")
        return cross_entropy_of(logits, target.long(), self.ignore_index)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The entropy of soft targets; 0 for class indices."""
        return torch.special.entr(target).sum(1) if is_soft(target) else 0.0
