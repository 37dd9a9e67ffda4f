"""What losses with class weights share: the loss underneath, and one weight per class from the class counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar, Self

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, Loss, PerClass, check_classes, counts_of

__all__ = ["ClassWeighted", "loss_named"]

_BASES = ("cross_entropy", "focal", "label_smoothing", "large_margin", "poly")


@dataclass(frozen=True, kw_only=True)
class ClassWeighted(ClassLoss):
    """A loss whose units are weighted by their class, after re-weighting."""

    base: str | Loss = "cross_entropy"
    class_counts: tuple[int, ...] | None = None

    needs: ClassVar[tuple[str, ...]] = ("class_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_base", loss_named(self.base, self.ignore_index, _BASES))
        if self.class_counts is not None:
            counts = counts_of(self.class_counts, self.name)
            object.__setattr__(self, "class_counts", counts)
            object.__setattr__(self, "_weights", PerClass(self.weights_of(counts)))

    @property
    def name(self) -> str:
        """The name in a method's text, for messages."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def weights_of(self, counts: tuple[int, ...]) -> Sequence[float]:
        """One weight per class."""

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts; the base gets them too."""
        if class_counts is None:
            return self
        base = self.base if isinstance(self.base, str) else self.base.bind(class_counts)
        return replace(self, class_counts=counts_of(class_counts, self.name), base=base)

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The base's losses, unweighted."""
        check_classes(output, target, soft=True, classes=len(counts_of(self.class_counts, self.name)))
        return self.under(output, target)

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        """The weight of each unit's class; for a soft target the mean weight under it."""
        counts_of(self.class_counts, self.name)
        weights: PerClass = self.__dict__["_weights"]
        return weights.of(target, self.mask(target))

    def mask(self, target: Tensor) -> Tensor | None:
        """The base's mask."""
        return self.under.mask(target)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The base's floor."""
        known = classes if self.class_counts is None else len(self.class_counts)
        return self.under.floor(target, known)

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float]:
        """The class weights."""
        return self.weights_of(counts_of(class_counts, self.name))

    @property
    def under(self) -> Loss:
        """The loss underneath."""
        return self.__dict__["_base"]


def loss_named(base: str | Loss, ignore_index: int | None, names: Sequence[str]) -> Loss:
    """The loss that a name stands for, or the loss itself, with the label that marks units as not real."""
    if isinstance(base, Loss):
        if ignore_index is None:
            return base
        if not isinstance(base, ClassLoss):
            raise ValueError(f"`ignore_index` marks class indices, got {ignore_index} with {base!r}. Leave it out.")
        return replace(base, ignore_index=ignore_index)
    validate.one_of("base", base, names, "Or pass a loss itself, such as Focal(gamma=1.0).")
    module = import_module(f"reweigh.torch.losses.{base}")
    return getattr(module, module.__all__[0])(ignore_index=ignore_index)
