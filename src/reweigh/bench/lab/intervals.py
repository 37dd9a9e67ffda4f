"""The interval for two methods on *one* data set: rows are the units, and rounds average away seeds and splits.

A person with data asks: how much better would I do, on new rows, with this method than with that one, when trained on
data like mine? Each round of folds tests every row once, by models that did not see it. What counts is the difference
of the two methods on each row, averaged over rounds. More rounds remove what seeds and splits add; they cannot make the
table longer, so no number of rounds narrows an interval below what its rows allow.

`across_rows` is the rule to use, with `alpha_of_look` where one looks after several rounds and stops when decided.
`benchmarks/verdicts.py` measures it against other rules on data sets whose true differences are known: it covers as
often as the corrected t interval over splits, and is narrower by a third or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import stats as distributions

from reweigh.bench.lab.stats import Difference, from_error

Array = np.ndarray[Any, Any]

#: Rounds after which to look. The first look needs two rounds: one cannot tell what seeds add.
LOOKS = (2, 4, 8, 16)


def across_rows(
    ours: Array,
    baseline: Array,
    classes: Array | None = None,
    *,
    test_over_train: float,
    folds: Array | None = None,
    alpha: float = 0.05,
    primary: bool = False,
) -> Difference:
    r"""The difference of two mean scores on one data set, from the scores of its rows in repeated folds.

    With :math:`d_i` the difference of row i averaged over the R rounds, class c with :math:`n_c` rows of mean
    :math:`\bar d_c` and variance :math:`s_c^2`, C classes, and :math:`x_{rk}` what fold k of round r adds to the mean
    of its round beyond the :math:`d_i` of its rows, the difference is :math:`\frac1C \sum_c \bar d_c`, and its
    squared standard error

    .. math:: \Big(1 + \frac{n_{test}}{n_{train}}\Big) \frac{1}{C^2} \sum_c \frac{s_c^2}{n_c}
              + \frac{1}{R (R - 1)} \sum_{r,k} x_{rk}^2 :

    other rows, with the correction of Nadeau and Bengio for training sets that overlap, and other seeds and splits.
    Every fold is a training of its own, so that two rounds of five folds say as much about seeds as six rounds without
    folds. The degrees of freedom are Satterthwaite's.

    Parameters
    ----------
    ours, baseline
        Scores by round and row, `(rounds, rows)`; NaN where a round has not tested a row yet, so that rounds need not
        be complete. Hits (0 or 1) give accuracies, negative losses give losses, `pseudo_scores` any other metric.
    classes
        The class of each row, for balanced accuracy: all classes count alike. Indices of groups give the mean over
        groups. Without them all rows are of one class.
    test_over_train
        Rows tested on over rows trained on in each fold: 1 / (k - 1) for k folds, more if the training part also gives
        rows to validation. 0 if all rounds train on the same rows and test on the same others: the interval is then
        about other test rows and seeds, given the training rows.
    folds
        Which fold of its round tested each row, `(rounds, rows)`. Without it each round counts as one.
    alpha
        One minus the confidence.
    primary
        Whether this comparison was declared beforehand.

    Returns
    -------
    Difference
        Its `n` counts rows. With a single round the interval is infinite, because the spread of seeds is unknown.

    Notes
    -----
    A class whose rows all agree would have no variance, which proves nothing. The variance of each class therefore
    includes two more rows, as in the adjusted interval for paired proportions: half a row that gains the largest
    difference seen, half a row that loses it, and one without a difference.

    References: Bayle, Bayle, Janson and Mackey, *Cross-validation Confidence Intervals for Test Error*, NeurIPS 2020;
    Nadeau and Bengio, *Inference for the Generalization Error*, Machine Learning 52, 2003; Agresti and Min, *Simple
    improved confidence intervals for comparing matched proportions*, Statistics in Medicine 24, 2005.

    Examples
    --------
    >>> ours = np.array([[1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 1, 1]])
    >>> baseline = np.array([[1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1]])
    >>> d = across_rows(ours, baseline, test_over_train=0.25)
    >>> d.n, round(d.mean, 4), round(d.low, 4), round(d.high, 4)
    (6, 0.3333, -0.2938, 0.9605)
    """
    if not 0 <= test_over_train < math.inf:
        raise ValueError(f"`test_over_train` must not be negative, got {test_over_train!r}.")
    differences, labels, dealt = _tested(ours, baseline, classes, folds)
    by_row = np.nanmean(differences, axis=0)
    n, rounds = len(by_row), len(differences)
    inside = [labels == label for label in np.unique(labels)]
    mean = float(np.mean([by_row[own].mean() for own in inside]))
    if rounds < 2:
        return Difference(n=n, mean=mean, sd=math.nan, low=-math.inf, high=math.inf, effect=math.nan, p=1.0)
    if not by_row.any():
        return Difference(n=n, mean=0.0, sd=0.0, low=0.0, high=0.0, effect=math.nan, p=1.0, primary=primary)
    parts = _error_parts(differences, by_row, inside, dealt, test_over_train)
    error = math.sqrt(sum(part for part, _ in parts))
    return from_error(
        mean,
        error,
        n=n,
        sd=error * math.sqrt(n),
        freedom=_freedom(parts),
        level=1.0 - alpha,
        primary=primary,
    )


def half_widths(
    ours: Array,
    baseline: Array,
    classes: Array | None = None,
    *,
    test_over_train: float,
    rounds: Sequence[int],
    folds: Array | None = None,
    alpha: float = 0.05,
) -> list[float]:
    """What the half-width of `across_rows` would become after so many rounds like those that there are.

    What rounds add shrinks with their number, what rows add does not; parameters are those of `across_rows`. Infinite
    for a single round.

    Examples
    --------
    >>> ours = np.array([[1, 1, 1, 0, 1, 1], [1, 0, 0, 0, 1, 1]])
    >>> baseline = np.array([[1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1]])
    >>> [round(half, 4) for half in half_widths(ours, baseline, test_over_train=0.25, rounds=(2, 4, 8))]
    [0.6305, 0.621, 0.6209]
    """
    differences, labels, dealt = _tested(ours, baseline, classes, folds)
    by_row, count = np.nanmean(differences, axis=0), len(differences)
    if count < 2 or not by_row.any():
        return [0.0 if count > 1 else math.inf] * len(rounds)
    inside = [labels == label for label in np.unique(labels)]
    *of_rows, (of_rounds, freedom) = _error_parts(differences, by_row, inside, dealt, test_over_train)
    halves: list[float] = []
    for planned in rounds:
        parts = [*of_rows, (of_rounds * count / planned, max(freedom * (planned - 1) / (count - 1), 1))]
        width = float(distributions.t.ppf(1 - alpha / 2, _freedom(parts))) * math.sqrt(sum(part for part, _ in parts))
        halves.append(width if planned > 1 else math.inf)
    return halves


def pseudo_scores(metric: Callable[[Array], float], rows: int) -> Array:
    """Row scores whose mean stands for a metric that is not a mean over rows: AUROC, F1, a root mean squared error.

    They are the jackknife's pseudo-values, so that `across_rows` gives such a metric the jackknife's interval.

    Parameters
    ----------
    metric
        The metric of the rows of an index array, of one method in one round.
    rows
        How many rows there are. The metric is computed once without each, and once for all.

    Examples
    --------
    >>> errors = np.array([1.0, 2.0, 2.0])
    >>> [round(float(x), 4) for x in pseudo_scores(lambda index: float(errors[index].mean()), 3)]
    [1.0, 2.0, 2.0]
    """
    index = np.arange(rows)
    without = np.array([metric(np.delete(index, i)) for i in index])
    return rows * metric(index) - (rows - 1) * without


def alpha_of_look(look: int, looks: int, alpha: float = 0.05) -> float:
    """The part of `alpha` that a look may spend: three quarters for the last, three quarters of the rest before it, ...

    The parts sum up to `alpha`, so that the chance of a false decision at any look is at most `alpha`, however the
    looks depend on one another. Looks on the same rows are much alike, so what the early ones spend is nearly lost:
    they are for large differences, and the last look decides about the others. When time runs out, the look that is
    taken then is the last one, `alpha_of_look(looks - 1, looks)`: those in between have spent nothing.

    Examples
    --------
    >>> [round(alpha_of_look(i, 4), 5) for i in range(4)]
    [0.00078, 0.00234, 0.00938, 0.0375]
    """
    if not 0 <= look < looks:
        raise ValueError(f"`look` must be one of 0 to {looks - 1}, got {look!r}.")
    left = alpha * 0.25 ** (looks - 1 - look)
    return 0.75 * left if look else left


def _tested(ours: Array, baseline: Array, classes: Array | None, folds: Array | None) -> tuple[Array, Array, Array]:
    """The differences by round and row, the class of each row, and its folds; without rows that no round has tested."""
    first, second = (np.atleast_2d(np.asarray(scores, dtype=np.float64)) for scores in (ours, baseline))
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"both methods need scores of the same rounds and rows, got {first.shape} and {second.shape}.")
    if np.isinf(first).any() or np.isinf(second).any():
        raise ValueError("row scores must be finite, or NaN where a row was not tested; report a diverged run as such.")
    labels = np.zeros(first.shape[1], dtype=np.int64) if classes is None else np.asarray(classes)
    if labels.shape != first.shape[1:]:
        raise ValueError(f"`classes` must have one entry per row, got {labels.shape} for {first.shape[1]} rows.")
    dealt = np.zeros(first.shape, dtype=np.int64) if folds is None else np.atleast_2d(np.asarray(folds))
    if dealt.shape != first.shape:
        raise ValueError(f"`folds` must have one entry per round and row, got {dealt.shape} for {first.shape}.")
    differences = first - second
    begun = np.isfinite(differences).any(1)
    differences, dealt = differences[begun], dealt[begun]
    tested = np.isfinite(differences).any(0)
    if not tested.any():
        raise ValueError("no row has been tested by both methods.")
    return differences[:, tested], labels[tested], dealt[:, tested]


def _error_parts(
    differences: Array, by_row: Array, inside: list[Array], folds: Array, test_over_train: float
) -> list[tuple[float, float]]:
    """Squared standard error and degrees of freedom of every class and, last, of seeds and splits."""
    largest = float(np.abs(by_row).max())
    factor = (1.0 + test_over_train) / len(inside) ** 2
    parts = [(factor * _adjusted(by_row[own], largest), float(max(int(own.sum()) - 1, 1))) for own in inside]
    return [*parts, _of_trainings(differences - by_row, inside, folds)]


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Satterthwaite's degrees of freedom of a sum of squared errors."""
    return sum(part for part, _ in parts) ** 2 / sum(part**2 / freedom for part, freedom in parts)


def _adjusted(values: Array, largest: float) -> float:
    """The squared standard error of a mean, with two more rows in the variance: half a gain, half a loss, and a tie."""
    n = len(values)
    squares = float((values**2).sum()) + largest**2 - float(values.sum()) ** 2 / (n + 2)
    return squares / ((n + 1) * n)


def _of_trainings(residuals: Array, inside: list[Array], folds: Array) -> tuple[float, float]:
    """What seeds and splits add: how much each training moves the mean once every row's own mean is taken out.

    Rows that a single round has tested say nothing about it; the others stand for them.
    """
    times = np.isfinite(residuals).sum(0)
    repeated = times > 1
    weights = np.zeros(len(times))
    for own in inside:
        weights[own] = 1.0 / (len(inside) * own.sum())
    share = float(weights[repeated].sum())
    if not share:
        return 0.0, 1.0
    # A row's residual counts with its weight in the mean, and they are too small since their mean was taken out.
    scale = np.where(repeated, weights / np.sqrt(np.maximum(times * (times - 1.0), 1.0)), 0.0)
    moved = np.nan_to_num(residuals) * scale
    sums = [
        float(moved[r, folds[r] == fold].sum())
        for r in range(len(moved))
        for fold in np.unique(folds[r][np.isfinite(residuals[r]) & repeated])
    ]
    rounds = int(np.isfinite(residuals[:, repeated]).any(1).sum())
    freedom = len(sums) * (rounds - 1) / rounds
    return float(np.square(sums).sum()) / share, max(freedom, 1.0)
