"""Class-balanced weights from the effective number of examples, on top of any loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Self

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, Loss, PerClass, check_classes, counts_of

__all__ = ["ClassBalanced", "effective_number_weights"]

_BASES = ("cross_entropy", "focal", "label_smoothing", "large_margin", "poly")


def effective_number_weights(class_counts: Sequence[int], beta: float) -> tuple[float, ...]:
    r"""One weight per class: the inverse of its effective number of examples, rescaled.

    .. math:: w_j \propto \frac{1-\beta}{1-\beta^{n_j}}, \qquad \sum_j w_j = C

    A class without examples has no effective number. It gets the weight of the rarest class that has some, and is
    left out of the rescaling: the weights of the others are what they would be without it.

    Examples
    --------
    >>> [round(w, 4) for w in effective_number_weights([100, 10], beta=0.9)]
    [0.7889, 1.2111]
    """
    counts = counts_of(class_counts, "effective_number_weights")
    validate.fraction("beta", beta, zero=True, one=False)
    # expm1 keeps 1 - beta^n exact for the smallest 1 - beta.
    inverse = [1.0 if beta == 0 else (1 - beta) / -math.expm1(n * math.log(beta)) if n else 0.0 for n in counts]
    if beta == 0:
        return tuple(inverse)
    scale = sum(n > 0 for n in counts) / sum(inverse)
    rarest = max(inverse)
    return tuple(scale * (value or rarest) for value in inverse)


@dataclass(frozen=True, kw_only=True)
class ClassBalanced(ClassLoss):
    r"""Any loss, with class weights by the effective number of examples.

    .. math:: w_y = C \cdot \frac{(1-\beta)/(1-\beta^{n_y})}{\sum_j (1-\beta)/(1-\beta^{n_j})}

    The losses are those of the base loss; the class weights come out of `sample_weight`, so that they multiply
    after re-weighting.

    Parameters
    ----------
    beta
        0 weighs all classes the same; towards 1 the weights go to the inverse class frequency.
    base
        The loss underneath: its name, or a loss with settings of its own such as `Focal(gamma=1.0)`.
    class_counts
        Number of training examples of each class; `bind` fills it in.
    ignore_index
        A label that marks units as not real, in place of the base's own.

    Returns
    -------
    Tensor
        The base's losses.

    Examples
    --------
    >>> import torch
    >>> loss = ClassBalanced(beta=0.9).bind([100, 10])
    >>> loss.sample_weight(torch.tensor([0, 1, 1]))
    tensor([0.7889, 1.2111, 1.2111])

    Notes
    -----
    Follows the authors' rescaling to a sum of C over the classes (not over the batch). Departures: a class without
    examples is allowed (see :func:`effective_number_weights`); the authors' sigmoid form is
    `base=Focal(gamma=0.0, form="sigmoid")`. The mean an objective takes divides by the sum of the weights in the
    batch, where the authors divide by the number of examples. References: Cui et al., *Class-Balanced Loss Based
    on Effective Number of Samples*, CVPR 2019.
    """

    beta: float = 0.9999
    base: str | Loss = "cross_entropy"
    class_counts: tuple[int, ...] | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"beta": (0.9, 0.99, 0.999, 0.9999)}
    needs: ClassVar[tuple[str, ...]] = ("class_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction("beta", self.beta, zero=True, one=False)
        object.__setattr__(self, "_base", _loss(self.base, self.ignore_index))
        if self.class_counts is not None:
            object.__setattr__(self, "class_counts", counts_of(self.class_counts, "class_balanced"))
            object.__setattr__(self, "_weights", PerClass(effective_number_weights(self.class_counts, self.beta)))

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts; the base gets them too."""
        if class_counts is None:
            return self
        base = self.base if isinstance(self.base, str) else self.base.bind(class_counts)
        return replace(self, class_counts=counts_of(class_counts, "class_balanced"), base=base)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The base's losses, unweighted."""
        check_classes(output, target, soft=True, classes=len(counts_of(self.class_counts, "class_balanced")))
        return self._under(output, target)

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        """The weight of each unit's class; for a soft target the mean weight under it."""
        counts_of(self.class_counts, "class_balanced")
        weights: PerClass = self.__dict__["_weights"]
        return weights.of(target, self.mask(target))

    def mask(self, target: Tensor) -> Tensor | None:
        """The base's mask."""
        return self._under.mask(target)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The base's floor."""
        known = classes if self.class_counts is None else len(self.class_counts)
        return self._under.floor(target, known)

    @property
    def _under(self) -> Loss:
        return self.__dict__["_base"]


def _loss(base: str | Loss, ignore_index: int | None) -> Loss:
    if isinstance(base, Loss):
        if ignore_index is None:
            return base
        if not isinstance(base, ClassLoss):
            raise ValueError(f"`ignore_index` marks class indices, got {ignore_index} with {base!r}. Leave it out.")
        return replace(base, ignore_index=ignore_index)
    validate.one_of("base", base, _BASES, "Or pass a loss itself, such as Focal(gamma=1.0).")
    module = import_module(f"reweigh.torch.losses.{base}")
    return getattr(module, module.__all__[0])(ignore_index=ignore_index)
