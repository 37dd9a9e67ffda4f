"""Label-distribution-aware margins, with class weights that start late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.torch.losses._base import ClassLoss, PerClass, check_classes, counts_of, cross_entropy_of, only_real
from reweigh.torch.losses.class_balanced import effective_number_weights

__all__ = ["LDAM", "CosineLinear"]


@dataclass(frozen=True, kw_only=True)
class LDAM(ClassLoss):
    r"""Cross entropy with a margin that is wider for rare classes (LDAM, with deferred re-weighting: LDAM-DRW).

    .. math:: \ell = \mathrm{CE}\big(s\,(z - m_y e_y),\, y\big), \qquad
              m_j = m \cdot \frac{n_j^{-1/4}}{\max_k n_k^{-1/4}}

    The logits :math:`z` must be cosines in [-1, 1]: give the model :class:`CosineLinear` as its last layer. The
    deferred weights start where training has reached `defer`. The estimators, Lightning, skorch and the Hugging Face
    Trainer know how far they are (the last three through their `WeightLog`); in a loop of your own set
    `criterion.progress = epoch / epochs` on the `criterion = Reweighted(LDAM().bind(class_counts))` before each epoch,
    counted from 0.

    Parameters
    ----------
    margin
        The margin m of the rarest class.
    scale
        What logits are multiplied by after the margin.
    defer
        Share of training from which on `sample_weight` gives class-balanced weights; before, it gives none. None
        never does (plain LDAM).
    beta
        Of those weights: :class:`ClassBalanced`.
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
    >>> loss = LDAM().bind([16, 1])
    >>> loss(torch.tensor([[0.5, 0.4], [0.5, 0.6]]), torch.tensor([0, 1]))
    tensor([ 4.5110, 12.0000])

    Notes
    -----
    Follows the authors' code: margin 0.5, scale 30, weights with beta 0.9999 from epoch 160 of 200, here `defer=0.8`.
    Their weighted mean, torch's, divides by the sum of the batch's class weights, and so does `Reweighted`.
    Departures: a class without examples gets the margin of a class with one; margins act on any number of axes; the
    authors warm the rate up over five epochs and lower it to a hundredth as the weights start, at epoch 160, which
    is left to the schedule. References: Cao et al., *Learning Imbalanced Datasets with Label-Distribution-Aware
    Margin Loss*, NeurIPS 2019.
    """

    margin: float = 0.5
    scale: float = 30.0
    defer: float | None = 0.8
    beta: float = 0.9999
    class_counts: tuple[int, ...] | None = None

    needs: ClassVar[tuple[str, ...]] = ("class_counts",)
    #: The last layer that the model must have.
    head: ClassVar[str] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.non_negative("margin", self.margin)
        validate.positive("scale", self.scale)
        validate.fraction("beta", self.beta, zero=True, one=False)
        if self.defer is not None:
            validate.fraction("defer", self.defer, zero=True)
        if self.class_counts is None:
            return
        counts = counts_of(self.class_counts, "ldam")
        object.__setattr__(self, "class_counts", counts)
        roots = [max(n, 1) ** -0.25 for n in counts]
        object.__setattr__(self, "_margins", PerClass([self.margin * root / max(roots) for root in roots]))
        object.__setattr__(self, "_weights", PerClass(effective_number_weights(counts, self.beta)))

    def bind(self, class_counts: Sequence[int] | None = None) -> Self:
        """The same loss for these class counts."""
        return self if class_counts is None else replace(self, class_counts=counts_of(class_counts, "ldam"))

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The margin loss of each unit, without class weights."""
        logits = check_classes(output, target, classes=len(counts_of(self.class_counts, "ldam")))
        margins: PerClass = self.__dict__["_margins"]
        index, mask = self.labels(target)
        shift = margins.of(index).to(logits.dtype).unsqueeze(1)
        shifted = logits.scatter_add(1, index.unsqueeze(1), -shift)
        return only_real(cross_entropy_of(self.scale * shifted, index), mask)

    def sample_weight(self, target: Tensor, progress: float = 1.0) -> Tensor | None:
        """Class-balanced weights once the deferred share of training is reached, None before."""
        counts_of(self.class_counts, "ldam")
        if self.defer is None or progress < self.defer:
            return None
        weights: PerClass = self.__dict__["_weights"]
        return weights.of(target, self.mask(target))

    def class_factors(self, class_counts: Sequence[int] | None) -> Sequence[float] | None:
        """The class weights that training ends with."""
        counts = counts_of(class_counts, "ldam")
        return None if self.defer is None else effective_number_weights(counts, self.beta)


class CosineLinear(nn.Module):
    """A last layer whose outputs are cosines: features and class vectors are scaled to length one.

    Parameters
    ----------
    in_features, out_features
        Width of the features, number of classes.

    Examples
    --------
    >>> import torch
    >>> head = CosineLinear(3, 2)
    >>> bool((head(torch.randn(5, 3)).abs() <= 1 + 1e-6).all())
    True
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        validate.whole("in_features", in_features, 1)
        validate.whole("out_features", out_features, 2)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        # As nn.Linear starts; the length does not matter, only that no direction is preferred by much.
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, features: Tensor) -> Tensor:
        """Cosines between each row of features and each class vector."""
        return F.linear(F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1))
