"""Class weights that start late in training (DRW)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, Loss, counts_of
from reweigh.torch.losses._class_weighted import loss_named

__all__ = ["Deferred"]

_BASES = ("class_balanced", "class_weights")


@dataclass(frozen=True, kw_only=True)
class Deferred(ClassLoss):
    r"""Any class-weighted loss, its weights only in the last part of training (deferred re-weighting, DRW).

    .. math:: w_y(s) = \begin{cases} 1 & s < s_0 \\ w_y & s \ge s_0 \end{cases}

    with s the share of training done: features are learnt from the data as they are, and the boundary is moved after
    it.

    Parameters
    ----------
    start
        The share of training from which on the base's class weights count.
    base
        The class-weighted loss: `"class_balanced"`, `"class_weights"`, or a loss with settings of its own such as
        `ClassBalanced(base=Focal(gamma=1.0))`.
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
    >>> loss, target = Deferred(start=0.8, base="class_weights").bind([90, 10]), torch.tensor([0, 1])
    >>> print(loss.sample_weight(target, progress=0.5), loss.sample_weight(target, progress=0.8))
    None tensor([0.5556, 5.0000])

    Notes
    -----
    The authors' schedule: effective-number weights with beta 0.9999 from epoch 160 of 200. Their own margin loss with
    this schedule is `ldam`, which has it built in. In a loop of your own set `criterion.progress`, as for
    :class:`LDAM`. References: Cao et al., *Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss*,
    NeurIPS 2019.
    """

    start: float = 0.8
    base: str | Loss = "class_balanced"
    class_counts: tuple[int, ...] | None = None

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"start": (0.6, 0.8, 0.9)}
    needs: ClassVar[tuple[str, ...]] = ("class_counts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction("start", self.start, zero=True)
        base = loss_named(self.base, self.ignore_index, _BASES)
        if self.class_counts is not None:
            object.__setattr__(self, "class_counts", counts_of(self.class_counts, "deferred"))
            base = base.bind(self.class_counts)
        object.__setattr__(self, "_base", base)

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts; the base gets them too."""
        return self if class_counts is None else replace(self, class_counts=counts_of(class_counts, "deferred"))

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The base's losses, unweighted."""
        counts_of(self.class_counts, "deferred")
        return self.under(output, target)

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        """The base's class weights once the share of training is reached, None before."""
        counts_of(self.class_counts, "deferred")
        return None if progress < self.start else self.under.sample_weight(target, progress)

    def mask(self, target: Tensor) -> Tensor | None:
        """The base's mask."""
        return self.under.mask(target)

    def floor(self, target: Tensor, classes: int | None = None) -> Tensor | float:
        """The base's floor."""
        return self.under.floor(target, classes)

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float] | None:
        """Those of the base: training ends with them."""
        return self.under.class_factors(class_counts)

    @property
    def under(self) -> Loss:
        """The loss underneath."""
        return self.__dict__["_base"]
