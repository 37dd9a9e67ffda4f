"""Cross entropy of logits that are scaled and shifted by class: vector scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, PerClass, check_classes, counts_of, cross_entropy_of, only_real

__all__ = ["VS", "adjusted"]


@dataclass(frozen=True, kw_only=True)
class VS(ClassLoss):
    r"""Cross entropy of logits that rare classes must make larger, by a factor and by an amount (vector scaling).

    .. math:: \ell = \mathrm{CE}\big(\Delta \odot z + \iota,\, y\big), \qquad
              \Delta_j = \Big(\frac{n_j}{\max_k n_k}\Big)^{\gamma}, \qquad \iota_j = t \log \pi_j

    :math:`\gamma = 0` is logit adjustment, :math:`t = 0` is class-dependent temperature (CDT). Predictions are those of
    the logits themselves.

    Parameters
    ----------
    gamma
        How much more a rare class's logit must grow.
    t
        How much the shares of the classes are made up for.
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
    >>> VS(gamma=0.5, t=1.0).bind([75, 25])(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([0.2877, 1.3863])

    Notes
    -----
    The authors' code, which divides by the inverse factor; its defaults are gamma 0.3 and t 1, its example for
    long-tailed CIFAR-10 has 0.2 and 1.2, and the smaller default here is ours. Departure: a class without examples
    counts as one with one. References: Kini et al., *Label-Imbalanced and Group-Sensitive Classification under
    Overparameterization*, NeurIPS 2021.
    """

    gamma: float = 0.15
    t: float = 1.0
    class_counts: tuple[int, ...] | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gamma": (0.05, 0.15, 0.3), "t": (1.0, 1.5)}
    needs: ClassVar[tuple[str, ...]] = ("class_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("gamma", self.gamma)
        validate.real("t", self.t)
        if self.class_counts is not None:
            counts = counts_of(self.class_counts, "vs")
            object.__setattr__(self, "class_counts", counts)
            object.__setattr__(self, "_factor", PerClass([(max(n, 1) / max(counts)) ** self.gamma for n in counts]))
            object.__setattr__(self, "_shift", PerClass(adjusted(counts, self.t)))

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts."""
        return self if class_counts is None else replace(self, class_counts=counts_of(class_counts, "vs"))

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float]:
        """Shares to the power -t: the logits are those of a model that saw classes in other shares."""
        return [math.exp(-shift) for shift in adjusted(counts_of(class_counts, "vs"), self.t)]

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each unit."""
        logits = check_classes(output, target, classes=len(counts_of(self.class_counts, "vs")))
        factor, shift = (self.__dict__[name].along(logits) for name in ("_factor", "_shift"))
        index, mask = self.labels(target)
        return only_real(cross_entropy_of(logits * factor + shift, index), mask)


def adjusted(counts: Sequence[int], t: float) -> list[float]:
    """What logit adjustment adds for each class; one without examples counts as one with one."""
    return [t * math.log(max(n, 1) / sum(counts)) for n in counts]
