"""How well a model does, and for whom: averages, the worst class and group, calibration, the hardest tenth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

Floats = np.ndarray[Any, Any]

#: Equal-width bins of confidence for the calibration error.
_BINS = 15


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric in a table: what it is called, whether less is better, and its unit."""

    key: str
    name: str
    smallest: bool = False
    percent: bool = False


CLASSIFICATION = (
    Metric(key="balanced_accuracy", name="balanced accuracy", percent=True),
    Metric(key="accuracy", name="accuracy", percent=True),
    Metric(key="auroc", name="AUROC", percent=True),
    Metric(key="loss", name="log-loss", smallest=True),
    Metric(key="worst_class", name="worst class", percent=True),
    Metric(key="worst_group", name="worst group", percent=True),
    Metric(key="calibration_error", name="calibration error", smallest=True, percent=True),
    Metric(key="worst_tenth_loss", name="loss of the worst tenth", smallest=True),
)
REGRESSION = (
    Metric(key="rmse", name="root mean squared error", smallest=True),
    Metric(key="mae", name="mean absolute error", smallest=True),
    Metric(key="r2", name="R²"),
    Metric(key="worst_group", name="worst group's error", smallest=True),
    Metric(key="worst_tenth_loss", name="squared error of the worst tenth", smallest=True),
)


def classification(
    logits: Floats, targets: Floats, classes: int, groups: Floats | None = None, n_groups: int = 0
) -> dict[str, Any]:
    """Scores of a classifier from its logits `(n, classes)`.

    A class without a test row has no accuracy (NaN), and counts neither for the balanced accuracy nor as the worst.
    """
    log_probabilities = special.log_softmax(logits.astype(np.float64), axis=1)
    probabilities = np.exp(log_probabilities)
    losses = -log_probabilities[np.arange(len(targets)), targets]
    predicted = logits.argmax(axis=1)
    right = (predicted == targets).astype(np.float64)
    counts = np.bincount(targets, minlength=classes)
    per_class = _means(np.bincount(targets, weights=right, minlength=classes), counts)
    present = counts > 0
    scores: dict[str, Any] = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(per_class[present].mean()),
        "loss": float(losses.mean()),
        "class_accuracy": per_class.tolist(),
        "worst_class": float(per_class[present].min()),
        "auroc": auroc(probabilities, targets, present),
        "calibration_error": calibration_error(probabilities.max(axis=1), right),
        "worst_tenth_loss": worst_tenth(losses),
    }
    if groups is not None:
        scores |= by_group(right, groups, n_groups, worst=min)
    return scores


def regression(predicted: Floats, targets: Floats, groups: Floats | None = None, n_groups: int = 0) -> dict[str, Any]:
    """Scores of a regression, in the units of the target as given."""
    targets = targets.reshape(-1)
    errors = predicted.astype(np.float64).reshape(-1) - targets.astype(np.float64)
    squares = errors**2
    spread = float(np.var(targets.astype(np.float64)))
    scores: dict[str, Any] = {
        "rmse": float(np.sqrt(squares.mean())),
        "mae": float(np.abs(errors).mean()),
        "r2": 1.0 - float(squares.mean()) / spread if spread > 0 else math.nan,
        "loss": float(squares.mean()),
        "worst_tenth_loss": worst_tenth(squares),
    }
    if groups is not None:
        scores |= by_group(squares, groups, n_groups, worst=max)
        scores["worst_group"] = float(np.sqrt(scores["worst_group"]))
        scores["group_score"] = [float(np.sqrt(s)) for s in scores["group_score"]]
    return scores


def auroc(probabilities: Floats, targets: Floats, present: Floats) -> float:
    """Area under the ROC curve: of the second class, or one class against the rest averaged over classes."""
    if present.sum() < 2 or not np.isfinite(probabilities).all():
        return math.nan
    chosen = np.array([1]) if probabilities.shape[1] == 2 else np.flatnonzero(present)
    # The area is the share of pairs in the right order, which ranks tell of all classes in one go.
    ranks = stats.rankdata(probabilities[:, chosen], axis=0)
    own = targets[:, None] == chosen
    positive = own.sum(axis=0)
    pairs = positive * (len(targets) - positive)
    return float((((ranks * own).sum(axis=0) - positive * (positive + 1) / 2) / pairs).mean())


def calibration_error(confidence: Floats, right: Floats) -> float:
    """The mean distance between confidence and accuracy over bins of confidence, weighted by their sizes."""
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    gaps = np.abs(np.bincount(bins, weights=right - confidence, minlength=_BINS))
    return float(gaps.sum() / max(counts.sum(), 1))


def worst_tenth(losses: Floats) -> float:
    """The mean of the largest tenth of the losses, at least one of them."""
    k = max(1, round(len(losses) / 10))
    return float(np.sort(losses)[-k:].mean())


def by_group(values: Floats, groups: Floats, n_groups: int = 0, *, worst: Any) -> dict[str, Any]:
    """The mean of each group (in the order of its index; NaN for one without a row) and the worst of them."""
    counts = np.bincount(groups, minlength=n_groups)
    means = _means(np.bincount(groups, weights=values, minlength=n_groups), counts)
    return {"group_score": means.tolist(), "worst_group": float(worst(means[counts > 0]))}


def _means(totals: Floats, counts: Floats) -> Floats:
    """Totals by counts; NaN where nothing was counted, for a zero would be taken for the worst of scores."""
    return np.divide(totals, counts, out=np.full(len(counts), np.nan), where=counts > 0)
