"""What a correction is chosen by on validation rows, from counts per class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import numpy as np

__all__ = ["METRICS", "Metric", "best", "metric_of", "score"]

Floats = np.ndarray[Any, Any]
T = TypeVar("T")

Metric = Literal["accuracy", "balanced_accuracy", "worst_class", "f1"]
METRICS: tuple[Metric, ...] = ("accuracy", "balanced_accuracy", "worst_class", "f1")


def score(metric: Metric, hits: Floats, predicted: Floats, actual: Floats) -> Floats:
    """The metric of several classifiers at once.

    Parameters
    ----------
    metric
        `"accuracy"`, `"balanced_accuracy"` (the mean recall of the classes), `"worst_class"` (the smallest recall) or
        `"f1"` (of the second of two classes, otherwise the mean over classes).
    hits, predicted
        Rows of each class that were predicted right, and rows predicted to be of it, `(..., classes)`.
    actual
        Rows of each class, `(classes,)`; classes without rows do not count.
    """
    present = actual > 0
    hits, predicted, actual = hits[..., present], predicted[..., present], actual[present]
    if metric == "accuracy":
        return hits.sum(axis=-1) / actual.sum()
    if metric == "f1":
        f1 = 2 * hits / (predicted + actual)
        return f1[..., -1] if len(present) == 2 else f1.mean(axis=-1)
    recall = hits / actual
    return recall.mean(axis=-1) if metric == "balanced_accuracy" else recall.min(axis=-1)


def metric_of(metric: Metric, outputs: Floats, targets: Floats) -> float:
    """The metric of one classifier from its outputs."""
    classes, predicted = outputs.shape[1], outputs.argmax(axis=1)
    counts = [np.bincount(rows, minlength=classes) for rows in (targets[predicted == targets], predicted, targets)]
    return float(score(metric, *counts))


def best(candidates: Iterable[T], outputs_of: Callable[[T], Floats], targets: Floats, metric: Metric) -> T:
    """The candidate whose outputs have the largest metric, the first of equals."""
    return max(candidates, key=lambda candidate: metric_of(metric, outputs_of(candidate), targets))
