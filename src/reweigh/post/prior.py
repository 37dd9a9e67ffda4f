"""Another mix of classes than the one trained on: post-hoc logit adjustment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from reweigh import _validate as validate
from reweigh.method import Context
from reweigh.post._base import Affine, Correction, Floats, Post, log_shares
from reweigh.post._metric import METRICS, PostMetric, best

__all__ = ["Prior"]


@dataclass(frozen=True, kw_only=True)
class Prior(Post):
    r"""Outputs less the logarithm of each class's share: as if classes had been equally frequent in training.

    .. math:: f_k \mapsto f_k - \log r_k - t \log \pi_k

    with :math:`\pi_k` the share of class k in the training data and :math:`r_k` the weight it had in training. At
    :math:`t = 1` the softmax is the posterior under equal shares, :math:`p_k / (r_k \pi_k)` renormalised, and the
    prediction is the one with the best balanced accuracy, if the model's probabilities are right.

    Parameters
    ----------
    t
        How far to go from the shares of the training data (0) to equal ones (1). None chooses the `search` value with
        the best `metric` on validation rows.
    class_weights
        The weight of each class in training, or the rate at which it was drawn; `t=0` with them gives the probabilities
        under the shares of the data back. In a method's text they are those of its loss, sampler or step, so that
        nothing is corrected twice: after `class_weights` or `logit_adjusted`, `prior` with `t=1` has nothing left
        to do.
    metric
        What chooses `t` where it is None: `"accuracy"`, `"balanced_accuracy"`, `"worst_class"`, `"f1"` or `"matthews"`.

    Returns
    -------
    Correction
        From `fit(outputs, targets, Context(class_counts=...))`.

    Examples
    --------
    >>> import numpy as np, reweigh
    >>> correction = Prior().fit(np.zeros((0, 2)), np.zeros(0, int), reweigh.Context(class_counts=[90, 10]))
    >>> probabilities = np.array([[0.8, 0.2]])
    >>> adjusted = np.exp(correction(np.log(probabilities)))
    >>> print((adjusted / adjusted.sum()).round(4))  # odds of 4 to 1, against odds of 9 to 1 before looking
    [[0.3077 0.6923]]

    Notes
    -----
    Departs from the authors' code in adding nothing to the shares: a class without examples counts as one with one.
    References: Menon et al., *Long-tail Learning via Logit Adjustment*, ICLR 2021; Saerens et al., *Adjusting the
    Outputs of a Classifier to New a Priori Probabilities*, 2002.
    """

    t: float | None = 1.0
    class_weights: tuple[float, ...] | None = None
    metric: PostMetric = "balanced_accuracy"

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"t": (0.5, 1.0, 1.5, 2.0)}
    needs: ClassVar[tuple[str, ...]] = ("class_counts",)
    cost: ClassVar[str] = "none: no training, no rows"

    def __post_init__(self) -> None:
        if self.t is not None:
            validate.real("t", self.t)
        validate.one_of("metric", self.metric, METRICS)
        for weight in self.class_weights or ():
            validate.positive("class_weights", weight, "Give one weight per class.")

    @property
    def needs_rows(self) -> bool:
        """Only to choose `t`."""
        return self.t is None

    def after(self, parts: Iterable[Any], class_counts: Sequence[int] | None) -> Self:
        """The same correction, with the class weights of these parts unless it has its own."""
        given = [part.class_factors(class_counts) for part in parts if hasattr(part, "class_factors")]
        factors = [factor for factor in given if factor is not None]
        if self.class_weights is not None or not factors:
            return self
        return replace(self, class_weights=tuple(np.prod(factors, axis=0).tolist()))

    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        classes = outputs.shape[1]
        shares = log_shares(context.class_counts, classes, "prior")
        undone = np.zeros(classes) if self.class_weights is None else np.log(self.class_weights)
        if undone.shape != (classes,):
            raise ValueError(f"`class_weights` must be {classes} numbers, one per class, got {len(undone)}.")
        t = self.t
        if t is None:
            choices = (0.0, *self.search["t"])
            t = best(choices, lambda choice: outputs - undone - choice * shares, targets, self.metric)
        return Affine(scale=(1.0,) * classes, offset=tuple((-undone - t * shares).tolist()))
