"""Cross entropy of logits that carry the class shares: logit adjustment, balanced softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, PerClass, check_classes, counts_of, cross_entropy_of, only_real
from reweigh.torch.losses.vs import adjusted

__all__ = ["LogitAdjusted"]


@dataclass(frozen=True, kw_only=True)
class LogitAdjusted(ClassLoss):
    r"""Cross entropy with the logarithm of the class shares added to the logits (at t = 1, balanced softmax).

    .. math:: \ell = -\log \frac{\pi_y^t\, e^{z_y}}{\sum_j \pi_j^t\, e^{z_j}}

    The shares explain what is frequent, so the logits need not: their own softmax is the posterior under equal shares.

    Parameters
    ----------
    t
        The power of the shares; 0 gives back cross entropy.
    class_counts
        Number of training examples of each class; `bind` fills it in.
    ignore_index
        A label that marks units as not real: their loss is 0, and `mask` leaves them out.

    Returns
    -------
    Tensor
        One loss per unit, as for cross entropy. float32 at least.

    Examples
    --------
    >>> import torch
    >>> LogitAdjusted().bind([75, 25])(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([0.2877, 1.3863])

    Notes
    -----
    The authors' code, whose default is t = 1 too, adds 1e-12 to the shares to the power t; here a class without
    examples counts as one with one. The correction of a model that was trained without it is `prior`. References: Menon
    et al., *Long-tail Learning via Logit Adjustment*, ICLR 2021; Ren et al., *Balanced Meta-Softmax for Long-Tailed
    Visual Recognition*, NeurIPS 2020.
    """

    t: float = 1.0
    class_counts: tuple[int, ...] | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"t": (0.5, 1.0, 1.5, 2.0)}
    needs: ClassVar[tuple[str, ...]] = ("class_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.real("t", self.t)
        if self.class_counts is not None:
            counts = counts_of(self.class_counts, "logit_adjusted")
            object.__setattr__(self, "class_counts", counts)
            object.__setattr__(self, "_shift", PerClass(adjusted(counts, self.t)))

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts."""
        return self if class_counts is None else replace(self, class_counts=counts_of(class_counts, "logit_adjusted"))

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float]:
        """Shares to the power -t: the logits are those of a model that saw classes in other shares."""
        return [math.exp(-shift) for shift in adjusted(counts_of(class_counts, "logit_adjusted"), self.t)]

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each unit."""
        logits = check_classes(output, target, classes=len(counts_of(self.class_counts, "logit_adjusted")))
        shift: PerClass = self.__dict__["_shift"]
        index, mask = self.labels(target)
        return only_real(cross_entropy_of(logits + shift.along(logits), index), mask)
