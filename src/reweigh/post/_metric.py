"""What a correction is chosen by on validation rows, from counts per class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import numpy as np

__all__ = ["METRICS", "PostMetric", "best", "metric_of", "negative_cost", "score"]

Floats = np.ndarray[Any, Any]
T = TypeVar("T")

PostMetric = Literal["accuracy", "balanced_accuracy", "worst_class", "f1", "matthews"]
METRICS: tuple[PostMetric, ...] = ("accuracy", "balanced_accuracy", "worst_class", "f1", "matthews")


def score(metric: PostMetric, hits: Floats, predicted: Floats, actual: Floats, *, positive: int = 1) -> Floats:
    """The metric of several classifiers at once.

    Parameters
    ----------
    metric
        `"accuracy"`, `"balanced_accuracy"` (the mean recall of the classes), `"worst_class"` (the smallest recall),
        `"f1"` (of the positive one of two classes, otherwise the mean over classes) or `"matthews"` (the correlation of
        classes and predictions; 0 where either has one value only).
    hits, predicted
        Rows of each class that were predicted right, and rows predicted to be of it, `(..., classes)`.
    actual
        Rows of each class, `(classes,)`; classes without rows do not count.
    positive
        The class that F1 of two classes is about.
    """
    n, present = actual.sum(), actual > 0
    if metric == "accuracy":
        return hits.sum(axis=-1) / n
    if metric == "matthews":
        covariance = n * hits.sum(axis=-1) - (predicted * actual).sum(axis=-1)
        spread = (n**2 - (predicted**2).sum(axis=-1)) * (n**2 - (actual**2).sum())
        return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)
    if metric == "f1":
        if len(actual) == 2:
            present = np.arange(2) == positive
        f1 = 2 * hits[..., present] / np.maximum(predicted[..., present] + actual[present], 1)
        return f1.mean(axis=-1)
    recall = hits[..., present] / actual[present]
    return recall.mean(axis=-1) if metric == "balanced_accuracy" else recall.min(axis=-1)


def negative_cost(
    hits: Floats, predicted: Floats, actual: Floats, *, positive: int, false_positive: float, false_negative: float
) -> Floats:
    """What the mistakes of several classifiers of two classes cost per row, negative, from counts as in `score`."""
    false_alarms = predicted[..., positive] - hits[..., positive]
    misses = actual[positive] - hits[..., positive]
    return -(false_positive * false_alarms + false_negative * misses) / actual.sum()


def metric_of(metric: PostMetric, outputs: Floats, targets: Floats) -> float:
    """The metric of one classifier from its outputs."""
    classes, predicted = outputs.shape[1], outputs.argmax(axis=1)
    counts = [np.bincount(rows, minlength=classes) for rows in (targets[predicted == targets], predicted, targets)]
    return float(score(metric, *counts))


def best(candidates: Iterable[T], outputs_of: Callable[[T], Floats], targets: Floats, metric: PostMetric) -> T:
    """The candidate whose outputs have the largest metric, the first of equals."""
    return max(candidates, key=lambda candidate: metric_of(metric, outputs_of(candidate), targets))
