"""Cuts chosen on validation rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from reweigh import _validate as validate
from reweigh.method import Context
from reweigh.post._base import Affine, Correction, Floats, Post
from reweigh.post._metric import METRICS, PostMetric, negative_cost, score

__all__ = ["Threshold"]

#: Rounds over the classes; most fits stop after two or three, when no cut can be improved on its own.
_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class Threshold(Post):
    r"""The cut, or an offset per class, with the best score on validation rows.

    .. math:: f_k \mapsto f_k + b_k, \qquad b \in \arg\max_b\; \mathrm{metric}\big(\arg\max_k (f_k + b_k),\, y\big)

    With two classes every cut is tried, so the score on validation rows is the best there is. With more, one class's
    offset is chosen at a time, the others held, until none can be improved: a local optimum.

    Parameters
    ----------
    metric
        `"accuracy"`, `"balanced_accuracy"` (mean recall of the classes), `"worst_class"` (smallest recall), `"f1"` (of
        the positive one of two classes, otherwise the mean over classes), `"matthews"` (correlation) or, for two
        classes, `"cost"`.
    positive
        The class that `"f1"` and `"cost"` of two classes are about: 0 or 1.
    false_positive, false_negative
        For `"cost"`: what it costs to call a row positive that is not, and to miss one that is.

    Returns
    -------
    Correction
        From `fit(outputs, targets)`.

    Examples
    --------
    >>> import numpy as np
    >>> margin = np.array([-3.0, -2.0, -1.5, -0.5])  # all below zero, so all are called class 0
    >>> outputs = np.stack([np.zeros(4), margin], axis=1)
    >>> correction = Threshold().fit(outputs, np.array([0, 0, 1, 1]))
    >>> print(correction(outputs).argmax(axis=1))
    [0 0 1 1]

    Notes
    -----
    The score on the rows it was fitted to is optimistic: few rows of a rare class decide its cut. Of equally good cuts
    the one nearest to no change is taken. scikit-learn's `TunedThresholdClassifierCV` tries 100 cuts of two classes.
    """

    metric: PostMetric | Literal["cost"] = "balanced_accuracy"
    positive: int = 1
    false_positive: float = 1.0
    false_negative: float = 1.0

    def __post_init__(self) -> None:
        validate.one_of("metric", self.metric, (*METRICS, "cost"))
        validate.one_of("positive", self.positive, (0, 1))
        validate.positive("false_positive", self.false_positive)
        validate.positive("false_negative", self.false_negative)

    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        classes = outputs.shape[1]
        if self.metric == "cost" and classes != 2:
            raise ValueError(f"`metric` must not be 'cost' for {classes} classes: costs are those of two.")
        offset = np.zeros(classes)
        reached = -np.inf
        for _ in range(_ROUNDS):
            before = reached
            # The offset of one class is free; with two classes that is the whole of it.
            for k in range(1 if classes == 2 else 0, classes):
                reached, offset[k] = self._cut(outputs + offset, targets, k, offset[k])
            if reached <= before:
                break
        return Affine(scale=(1.0,) * classes, offset=tuple((offset - offset[0]).tolist()))

    def _cut(self, outputs: Floats, targets: Floats, k: int, now: float) -> tuple[float, float]:
        """The best score that the offset of class k alone can reach, and the offset, given the one it has now."""
        classes = outputs.shape[1]
        others = outputs.copy()
        others[:, k] = -np.inf
        second = others.argmax(axis=1)
        # A row is called k once the offset is raised by more than this.
        gap = others[np.arange(len(others)), second] - outputs[:, k]
        order = np.argsort(gap, kind="stable")
        gap, second, labels = gap[order], second[order], targets[order]
        # After the first c rows are called k and the rest their second choice, for c = 0, 1, ..., n.
        own = np.eye(classes)
        others_called = own[second]
        others_right = others_called * (second == labels)[:, None]
        called = others_called.sum(axis=0) - _running(others_called)
        right = others_right.sum(axis=0) - _running(others_right)
        called[:, k] = np.arange(len(gap) + 1)
        right[:, k] = _running((labels == k)[:, None].astype(np.float64))[:, 0]
        scores = self._scores(right, called, np.bincount(targets, minlength=classes))
        moves = np.concatenate([[gap[0] - 1.0], (gap[1:] + gap[:-1]) / 2, [gap[-1] + 1.0]])
        # Rows with equal gaps stay on one side of a cut, and a cut that changes nothing is not a move.
        possible = np.concatenate([[True], gap[1:] > gap[:-1], [True]])
        scores = np.where(possible, scores, -np.inf)
        present = int(np.searchsorted(gap, 0.0, side="left"))
        top = float(scores.max())
        if scores[present] == top:
            return top, now
        equals = np.flatnonzero(scores == top)
        return top, now + float(moves[equals[np.abs(moves[equals]).argmin()]])

    def _scores(self, hits: Floats, predicted: Floats, actual: Floats) -> Floats:
        if self.metric != "cost":
            return score(self.metric, hits, predicted, actual, positive=self.positive)
        costs = {"false_positive": self.false_positive, "false_negative": self.false_negative}
        return negative_cost(hits, predicted, actual, positive=self.positive, **costs)


def _running(values: Floats) -> Floats:
    """Sums of the first 0, 1, ..., n rows."""
    return np.concatenate([np.zeros((1, values.shape[1])), values.cumsum(axis=0)])
