"""Every score of the bench: of classifiers, regressions and texts, of the worst class, group, tenth and share of tasks.

All scores are computed on the host, in float64. A class or group without a test row has no score: it is NaN in lists,
and counts neither for means nor as the worst.

scikit-learn computes what is scored a few times per run (`text`). What is scored twice per epoch for each of many
trainings is written out here: for 400 rows of 10 classes scikit-learn takes 9.4 ms for AUROC against 0.3 ms, 9.3 ms for
average precision against 0.4 ms, 3.7 ms for F1 and Matthews against 0.03 ms, and 1.6 ms for the recall of each class
against 0.1 ms. Its log-loss takes probabilities, which have lost what extreme logits say.
A tensor form would gain nothing: over 25 stacked members of 360 rows, NumPy takes 1.03 times as long as torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

Floats = np.ndarray[Any, Any]

#: Equal-width bins of confidence for the calibration error.
_BINS = 15
#: A report about single classes has room for this many.
_SHOWN_CLASSES = 12
#: The worst shares of a pool of tasks that are reported, in percent.
PERCENT = (10, 20, 30, 40, 50)
#: A change of a score that matters to a person: a hundredth.
_MATTERS = 0.01


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric in a table: what it is called, whether less is better, and whether it is a percentage.

    A `relative` one has no natural scale: a change that matters is a share of its value.
    """

    key: str
    name: str
    smallest: bool = False
    percent: bool = False
    relative: bool = False

    def margin(self, typical: float) -> float:
        """The smallest change that matters: a point, a hundredth, or one percent of a typical value."""
        return _MATTERS * abs(typical) if self.relative and math.isfinite(typical) else _MATTERS


CLASSIFICATION = (
    Metric(key="balanced_accuracy", name="balanced accuracy", percent=True),
    Metric(key="accuracy", name="accuracy", percent=True),
    Metric(key="auroc", name="AUROC", percent=True),
    Metric(key="average_precision", name="average precision", percent=True),
    Metric(key="f1", name="F1", percent=True),
    Metric(key="matthews", name="Matthews correlation"),
    Metric(key="recall_at_precision", name="recall at 90 % precision", percent=True),
    Metric(key="cost", name="cost per row", smallest=True, relative=True),
    Metric(key="loss", name="log-loss", smallest=True, relative=True),
    Metric(key="worst_class", name="worst class", percent=True),
    Metric(key="worst_group", name="worst group", percent=True),
    Metric(key="calibration_error", name="calibration error", smallest=True, percent=True),
    Metric(key="worst_tenth_loss", name="loss of the worst tenth", smallest=True, relative=True),
)
#: Metrics of classifiers that are no means over rows but have `pseudo_values`.
JACKKNIFED = ("f1", "matthews", "auroc")
REGRESSION = (
    Metric(key="rmse", name="root mean squared error", smallest=True, relative=True),
    Metric(key="mae", name="mean absolute error", smallest=True, relative=True),
    Metric(key="r2", name="R²"),
    Metric(key="worst_group", name="worst group's error", smallest=True, relative=True),
    Metric(key="worst_tenth_loss", name="squared error of the worst tenth", smallest=True, relative=True),
)


@np.errstate(invalid="ignore")  # of infinite logits: a diverged model scores NaN
def accuracies(logits: Floats, targets: Floats, classes: int, counted: Floats | None = None) -> list[dict[str, Any]]:
    """Accuracy, balanced accuracy, log-loss and the accuracy of each class, for each of several classifiers.

    Parameters
    ----------
    logits
        Of every classifier on the same rows, `(classifiers, n, classes)`.
    targets
        The class of each row, `(n,)`.
    classes
        How many there are.
    counted
        Which classes count for balanced accuracy; all that have rows unless given.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    own = np.take_along_axis(wide, np.broadcast_to(targets, wide.shape[:-1])[..., None], axis=-1)[..., 0]
    losses = np.log(np.exp(wide).sum(axis=-1)) - own
    right = (wide.argmax(axis=-1) == targets).astype(np.float64)
    counts = np.bincount(targets, minlength=classes)
    per_class = _means(right @ np.eye(classes)[targets], counts)
    judged = counts > 0 if counted is None else (counts > 0) & counted
    columns = {
        "accuracy": right.mean(axis=-1),
        "balanced_accuracy": per_class[:, judged].mean(axis=-1) if judged.any() else np.full(len(logits), np.nan),
        "loss": losses.mean(axis=-1),
        "class_accuracy": per_class,
    }
    listed = {name: column.tolist() for name, column in columns.items()}
    return [{name: column[k] for name, column in listed.items()} for k in range(len(logits))]


@dataclass(frozen=True, kw_only=True)
class ScoringRules:
    """What scores of a classifier depend on besides its outputs.

    `counted` says which classes count for balanced accuracy and as the worst class (all that have rows without it),
    `positive` is the class that precision, recall and F1 of two classes are about, and `costs` are what a false
    positive and a false negative cost.
    """

    counted: tuple[bool, ...] | None = None
    positive: int = 1
    costs: tuple[float, float] | None = None


def classification(
    logits: Floats,
    targets: Floats,
    classes: int,
    groups: Floats | None = None,
    n_groups: int = 0,
    judging: ScoringRules | None = None,
) -> dict[str, Any]:
    """All scores of a classifier from its logits `(n, classes)`."""
    judging = judging or ScoringRules()
    counted = None if judging.counted is None else np.array(judging.counted)
    (scores,) = accuracies(logits[None], targets, classes, counted)
    log_probabilities = special.log_softmax(logits.astype(np.float64), axis=1)
    probabilities = np.exp(log_probabilities)
    right = (logits.argmax(axis=1) == targets).astype(np.float64)
    present = np.bincount(targets, minlength=classes) > 0
    recalls = np.asarray(scores["class_accuracy"])
    recalls = recalls[np.isfinite(recalls) & (counted if counted is not None else True)]
    chosen = [judging.positive] if classes == 2 else np.flatnonzero(present).tolist()
    scores |= {
        "worst_class": float(recalls.min()) if len(recalls) else math.nan,
        "auroc": auroc(probabilities, targets, present),
        "average_precision": _average_precision(log_probabilities, targets, chosen),
        **_of_confusion(_confusion(logits.argmax(axis=1), targets, classes), chosen),
        "calibration_error": calibration_error(probabilities.max(axis=1), right),
        "worst_tenth_loss": worst_tenth(-log_probabilities[np.arange(len(targets)), targets]),
    }
    if classes == 2:
        positive = targets == judging.positive
        scores["recall_at_precision"] = recall_at_precision(log_probabilities[:, judging.positive], positive)
        if judging.costs is not None:
            predicted = logits.argmax(axis=1) == judging.positive
            false_positive, false_negative = judging.costs
            wrong = false_positive * (predicted & ~positive) + false_negative * (~predicted & positive)
            scores["cost"] = float(wrong.mean())
    if groups is not None:
        scores |= by_group(right, groups, n_groups, worst=min)
    return scores


def _confusion(predicted: Floats, targets: Floats, classes: int) -> Floats:
    """Rows of each class (first axis) that were predicted to be of each."""
    return np.bincount(targets * classes + predicted, minlength=classes**2).reshape(classes, classes)


def _of_confusion(counts: Floats, chosen: list[int]) -> dict[str, float]:
    """F1 of the chosen classes, on average, and the Matthews correlation, from the counts of each pair of classes."""
    hits, actual, named = np.diag(counts).astype(float), counts.sum(axis=1), counts.sum(axis=0)
    f1 = [2 * hits[k] / (actual[k] + named[k]) if actual[k] + named[k] else 0.0 for k in chosen]
    n = float(counts.sum())
    spread = (n**2 - float(actual @ actual)) * (n**2 - float(named @ named))
    covariance = n * hits.sum() - float(actual @ named)
    return {
        "f1": float(np.mean(f1)) if f1 else math.nan,
        "matthews": covariance / math.sqrt(spread) if spread > 0 else 0.0,
    }


def pseudo_values(metric: str, logits: Floats, targets: Floats, judging: ScoringRules) -> Floats:
    r"""What each row contributes to a metric that is not a mean over rows; the mean of all is the metric.

    With :math:`\theta` the metric of all n rows, :math:`\theta_{-i}` that without row i and :math:`\bar\theta` the mean
    of these, row i has :math:`\theta + (n - 1) (\bar\theta - \theta_{-i})`: the jackknife's pseudo-values without their
    correction of bias.

    Parameters
    ----------
    metric
        One of `JACKKNIFED`.
    logits, targets
        Outputs `(n, classes)`, and the class of each row.
    judging
        Which class is positive.
    """
    n, classes = logits.shape
    present = np.bincount(targets, minlength=classes) > 0
    if metric == "auroc":
        probabilities = np.exp(special.log_softmax(logits.astype(np.float64), axis=1))  # as `classification` has them
        whole, without = auroc(probabilities, targets, present), _auroc_without(probabilities, targets, present)
    else:
        predicted = logits.argmax(axis=1)
        counts = _confusion(predicted, targets, classes)
        chosen = [judging.positive] if classes == 2 else np.flatnonzero(present).tolist()
        whole = _of_confusion(counts, chosen)[metric]
        # Rows of one class that were predicted alike leave the same counts behind.
        cells, of_row = np.unique(targets * classes + predicted, return_inverse=True)
        leave_out = _f1_without if metric == "f1" else _matthews_without
        without = leave_out(counts, *np.divmod(cells, classes), chosen)[of_row]
    return whole + (n - 1) * (without.mean() - without)


def _f1_without(counts: Floats, actual: Floats, named: Floats, chosen: list[int]) -> Floats:
    """The mean F1 of the chosen classes without a row of a class (`actual`) that was predicted as this or another."""
    hits, marginals = np.diag(counts).astype(float), (counts.sum(axis=0) + counts.sum(axis=1)).astype(float)
    right = (actual == named).astype(float)
    share = np.zeros(len(counts))
    share[chosen] = 1 / max(len(chosen), 1)

    def change(k: Floats) -> Floats:
        before = _ratio(2 * hits[k], marginals[k])
        return share[k] * (_ratio(2 * (hits[k] - right), marginals[k] - 1 - right) - before)

    # A right row leaves one class by both its margins, a wrong one leaves two classes by one each.
    return share @ _ratio(2 * hits, marginals) + change(actual) + np.where(right > 0, 0.0, change(named))


def _matthews_without(counts: Floats, actual: Floats, named: Floats, chosen: list[int]) -> Floats:
    """The Matthews correlation without a row of a class (`actual`) that was predicted as this or another."""
    del chosen  # it is one number of all classes
    of_class, of_prediction = counts.sum(axis=1).astype(float), counts.sum(axis=0).astype(float)
    right, n = (actual == named).astype(float), float(counts.sum()) - 1
    squares = (
        of_class @ of_class - 2 * of_class[actual] + 1,
        of_prediction @ of_prediction - 2 * of_prediction[named] + 1,
    )
    product = of_class @ of_prediction - of_class[named] - of_prediction[actual] + right
    spread = (n**2 - squares[0]) * (n**2 - squares[1])
    return _ratio(n * (np.trace(counts) - right) - product, np.sqrt(np.maximum(spread, 0.0)))


def _ratio(over: Floats, under: Floats) -> Floats:
    """One number over the other, 0 where that is 0."""
    return np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=under > 0)


def _average_precision(scores: Floats, targets: Floats, chosen: list[int]) -> float:
    """The mean over classes of the precision at each row of the class, going down the ranking; NaN without rows."""
    if not np.isfinite(scores).all():
        return math.nan
    areas: list[float] = []
    for k in chosen:
        thresholds, hits = _ranking(scores[:, k], targets == k)
        if hits[-1] == 0:
            return math.nan
        gained = np.diff(hits, prepend=0.0)
        areas.append(float((gained * hits / thresholds).sum() / hits[-1]))
    return float(np.mean(areas)) if areas else math.nan


def recall_at_precision(scores: Floats, positive: Floats, precision: float = 0.9) -> float:
    """The most positive rows above a cut above which at least this share are positive, as a share; 0 without a cut."""
    if not positive.any() or not np.isfinite(scores).all():
        return math.nan
    above, hits = _ranking(scores, positive)
    good = hits / above >= precision
    return float(hits[good].max() / hits[-1]) if good.any() else 0.0


def _ranking(scores: Floats, positive: Floats) -> tuple[Floats, Floats]:
    """Rows and positive rows at or above each distinct score, from the largest score down."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=np.nan))  # rows of one score are cut off together
    return (last + 1).astype(float), np.cumsum(positive[order])[last].astype(float)


def text(logits: Floats, targets: Floats, classes: int, metric: str) -> dict[str, Any]:
    """Accuracy, log-loss, F1, Matthews correlation, and as `score` the one that the task is judged by."""
    from sklearn.metrics import f1_score, matthews_corrcoef  # slow to import, and only few recipes need it

    (scores,) = accuracies(logits[None], targets, classes)
    del scores["balanced_accuracy"]
    if classes > _SHOWN_CLASSES:
        del scores["class_accuracy"]
    predicted = logits.argmax(axis=1)
    options: dict[str, Any] = {"average": None, "zero_division": 0.0}
    f1 = np.asarray(f1_score(targets, predicted, labels=range(classes), **options))
    f1 = np.where(np.bincount(targets, minlength=classes) > 0, f1, np.nan)
    scores |= {"macro_f1": float(np.nanmean(f1)), "matthews": float(matthews_corrcoef(targets, predicted))}
    if classes == 2:
        scores["f1"] = float(f1[1])
    return {"score": scores[metric], **scores}


def regression(predicted: Floats, targets: Floats, groups: Floats | None = None, n_groups: int = 0) -> dict[str, Any]:
    """All scores of a regression, in the units of the target as given."""
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
    # The area is the share of pairs in the right order, which ranks give for all classes at once.
    ranks = stats.rankdata(probabilities[:, chosen], axis=0)
    own = targets[:, None] == chosen
    positive = own.sum(axis=0)
    pairs = positive * (len(targets) - positive)
    return float((((ranks * own).sum(axis=0) - positive * (positive + 1) / 2) / pairs).mean())


def _auroc_without(probabilities: Floats, targets: Floats, present: Floats) -> Floats:
    """The area without each row: a row's own part of it is the share of the other side that it is in order with."""
    chosen = np.array([1]) if probabilities.shape[1] == 2 else np.flatnonzero(present)
    without = np.zeros(len(targets))
    for k in chosen:
        own = targets == k
        area = np.empty(len(targets))
        for side, sign in ((own, 1.0), (~own, -1.0)):
            values, others = sign * probabilities[side, k], np.sort(sign * probabilities[~side, k])
            below = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
            ordered = below / (2 * len(others))  # ties are half in order
            # The only row of its side cannot be left out, and counts as the area itself.
            area[side] = (ordered.sum() - ordered) / (len(values) - 1) if len(values) > 1 else ordered.mean()
        without += area / len(chosen)
    return without


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
    """The mean of each group, in the order of its index, and the worst of them."""
    counts = np.bincount(groups, minlength=n_groups)
    means = _means(np.bincount(groups, weights=values, minlength=n_groups), counts)
    return {"group_score": means.tolist(), "worst_group": float(worst(means[counts > 0]))}


class TaskMean(NamedTuple):
    """A mean over some tasks, and half the width of its 95 % Student-t interval."""

    mean: float
    half: float
    tasks: int


def worst_share(scores: Sequence[float] | Floats, percent: float = 100.0, *, smallest: bool = False) -> TaskMean:
    r"""The mean score of the worst tasks, :math:`\lfloor \mathrm{percent} \cdot n / 100 \rfloor` of them.

    Parameters
    ----------
    scores
        One score per task.
    percent
        Which share of the tasks; 100 takes all.
    smallest
        Whether less is better, as for losses: then the worst are the largest.

    Examples
    --------
    >>> share = worst_share([0.9, 0.2, 0.8, 1.0, 0.6], 40)
    >>> round(share.mean, 6), share.tasks
    (0.4, 2)

    Notes
    -----
    The interval is over tasks of one trained model: it says how well the pool measures the model's score, and nothing
    about what another training would give.
    """
    ordered = np.sort(np.asarray(scores, np.float64))
    count = int(percent * len(ordered) // 100)
    if not 1 <= count <= len(ordered):
        raise ValueError(f"`percent` must leave at least one of {len(ordered)} tasks and at most all, got {percent!r}.")
    chosen = ordered[-count:] if smallest else ordered[:count]
    mean = float(chosen.mean())
    if count < 2:
        return TaskMean(mean, float("inf"), count)
    error = float(chosen.std(ddof=1)) / np.sqrt(count)
    return TaskMean(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)


def _means(totals: Floats, counts: Floats) -> Floats:
    """Totals by counts; NaN where nothing was counted, since a zero would be taken for the worst of scores."""
    return np.divide(totals, counts, out=np.full(totals.shape, np.nan), where=counts > 0)
