"""Interval rules that `verdicts.py` measures beside the library's own: each takes what was seen on one data set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from _disjoint import FOLDS, Tested, balanced

from reweigh.bench.lab.intervals import across_rows
from reweigh.bench.lab.stats import Difference, from_error, paired, resampled

Array = np.ndarray[Any, Any]


def of_splits(seen: Tested, ours: str, baseline: str, splits: int, *, test_over_train: float) -> Difference:
    """The t interval over random splits, corrected for their overlap; plain with a ratio of 0."""
    first, second = seen.splits[ours][:splits].tolist(), seen.splits[baseline][:splits].tolist()
    return resampled(first, second, test_over_train=test_over_train) if test_over_train else paired(first, second)


def of_folds(seen: Tested, ours: str, baseline: str, rounds: int) -> Difference:
    """The corrected t interval over repeated folds."""
    by_fold = [(_by_fold(seen, ours, r), _by_fold(seen, baseline, r)) for r in range(rounds)]
    first, second = (np.concatenate(one).tolist() for one in zip(*by_fold, strict=True))
    return resampled(first, second, test_over_train=1 / (FOLDS - 1))


def of_rows(seen: Tested, ours: str, baseline: str, rounds: int) -> Difference:
    """Rows alone, as the central limit theorem for cross-validation has it: normal, and seeds not counted."""
    return rowwise(seen.hits[ours][:rounds], seen.hits[baseline][:rounds], seen.classes)


def of_rows_and_rounds(seen: Tested, ours: str, baseline: str, rounds: int, *, alpha: float = 0.05) -> Difference:
    """Rows and rounds, each round as a whole: the library's rule before it counted folds."""
    first, second = seen.hits[ours][:rounds], seen.hits[baseline][:rounds]
    return across_rows(first, second, seen.classes, test_over_train=1 / (FOLDS - 1), alpha=alpha)


def of_rows_and_folds(seen: Tested, ours: str, baseline: str, rounds: int, *, alpha: float = 0.05) -> Difference:
    """The library's rule: every fold is a training of its own."""
    first, second, folds = seen.hits[ours][:rounds], seen.hits[baseline][:rounds], seen.folds[:rounds]
    return across_rows(first, second, seen.classes, test_over_train=1 / (FOLDS - 1), folds=folds, alpha=alpha)


def of_bootstrap(seen: Tested, ours: str, baseline: str, rounds: int) -> Difference:
    """Rows and rounds drawn again."""
    return bootstrapped(seen.hits[ours][:rounds], seen.hits[baseline][:rounds], seen.classes)


def of_nested(seen: Tested, ours: str, baseline: str) -> Difference:
    """Nested cross-validation."""
    inner = seen.inner[ours] - seen.inner[baseline]
    repeats = len(inner)
    outer, errors = np.empty((2, repeats, FOLDS))
    for r in range(repeats):
        for k in range(FOLDS):
            own = seen.folds[r] == k
            fold = rowwise(seen.hits[ours][r, own], seen.hits[baseline][r, own], seen.classes[own])
            outer[r, k], errors[r, k] = fold.mean, fold.sd / math.sqrt(fold.n)
    return nested(inner, outer, errors, naive=of_rows(seen, ours, baseline, repeats))


# --- the same as pure functions of arrays ---


def rowwise(ours: Array, baseline: Array, classes: Array, *, alpha: float = 0.05) -> Difference:
    """The mean over classes of row differences, averaged over rounds, with a normal interval over rows.

    Bayle, Bayle, Janson and Mackey, *Cross-validation Confidence Intervals for Test Error*, NeurIPS 2020.
    """
    differences = np.atleast_2d(ours.astype(np.float64) - baseline).mean(0)
    inside = [differences[classes == label] for label in np.unique(classes)]
    mean = float(np.mean([own.mean() for own in inside]))
    squared = sum(own.var(ddof=1) / len(own) if len(own) > 1 else 0.0 for own in inside)
    error, n = math.sqrt(squared) / len(inside), len(differences)
    return from_error(mean, error, n=n, sd=error * math.sqrt(n), freedom=math.inf, level=1 - alpha)


def bootstrapped(
    ours: Array, baseline: Array, classes: Array, *, alpha: float = 0.05, draws: int = 400, seed: int = 0
) -> Difference:
    """The mean over classes of row differences, with rows and rounds drawn with replacement; percentiles."""
    differences = np.atleast_2d(ours.astype(np.float64) - baseline)
    rounds, n = differences.shape
    rng = np.random.default_rng(seed)
    # Drawing with replacement is counting how often each is drawn.
    often = rng.multinomial(rounds, np.full(rounds, 1.0 / rounds), size=draws) / rounds
    means, observed = np.zeros(draws), 0.0
    present = np.unique(classes)
    for label in present:
        own = differences[:, classes == label]
        times = rng.multinomial(own.shape[1], np.full(own.shape[1], 1.0 / own.shape[1]), size=draws) / own.shape[1]
        means += ((often @ own) * times).sum(1) / len(present)
        observed += float(own.mean()) / len(present)
    low, high = (float(x) for x in np.quantile(means, [alpha / 2, 1 - alpha / 2]))
    sd = float(means.std(ddof=1)) * math.sqrt(n)
    tail = (1 + min(int((means <= 0).sum()), int((means >= 0).sum()))) / (draws + 1)
    return Difference(n=n, mean=observed, sd=sd, low=low, high=high, effect=math.nan, p=min(1.0, 2 * tail))


def nested(inner: Array, outer: Array, errors: Array, *, naive: Difference, alpha: float = 0.05) -> Difference:
    """The interval of nested cross-validation, which estimates its own mean squared error.

    For each repeat and outer fold, `inner` is the difference by cross-validation on the other folds alone, `outer` the
    one on this fold by models trained on all others, and `errors` the standard error of `outer` over rows. The
    square root of mean((inner - outer)^2 - errors^2) is kept between the `naive` standard error and the square root of
    the number of folds times that.

    Bates, Hastie and Tibshirani, *Cross-validation: what does it estimate and how well does it do it?*, JASA 119, 2024.
    """
    folds = inner.shape[1]
    least = naive.sd / math.sqrt(naive.n)
    squared = float(((inner - outer) ** 2).mean() - (errors**2).mean())
    error = min(max(math.sqrt((folds - 1) / folds * max(squared, 0.0)), least), least * math.sqrt(folds))
    bias = (1 + (folds - 2) / folds) * (float(inner.mean()) - naive.mean)
    mean = float(inner.mean()) - bias
    return from_error(mean, error, n=naive.n, sd=error * math.sqrt(naive.n), freedom=math.inf, level=1 - alpha)


def _by_fold(seen: Tested, method: str, r: int) -> Array:
    folds = seen.folds[r]
    return np.array([balanced(seen.hits[method][r, folds == k], seen.classes[folds == k]) for k in range(FOLDS)])
