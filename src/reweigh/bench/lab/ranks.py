"""Methods ranked over several data sets: average ranks, and how far apart they must be to differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Average ranks over data sets, 1 the best, and the difference that two must have.

    Parameters
    ----------
    average
        The average rank of every method.
    critical
        Nemenyi's critical difference at the 5 % level: methods whose average ranks are closer cannot be distinguished.
    p
        Friedman's test that all methods are alike; NaN with fewer than three methods.
    sets
        The number of data sets.
    """

    average: Mapping[str, float]
    critical: float
    p: float
    sets: int


def ranks(scores: Mapping[str, Sequence[float]], *, smallest: bool = False) -> Ranks:
    r"""Average ranks of methods over data sets, ties sharing their ranks.

    The critical difference of k methods over N sets is :math:`q\sqrt{k(k+1)/(6N)}`, with q the 95 % point of the
    studentised range of k means over :math:`\sqrt 2`.

    Parameters
    ----------
    scores
        For every method its score on each data set, in the same order.
    smallest
        Whether less is better.

    Examples
    --------
    >>> result = ranks({"a": [0.9, 0.8, 0.7], "b": [0.8, 0.7, 0.9], "c": [0.1, 0.2, 0.3]})
    >>> {name: round(rank, 2) for name, rank in result.average.items()}
    {'a': 1.33, 'b': 1.67, 'c': 3.0}
    >>> round(result.critical, 2)
    1.91

    Notes
    -----
    Reference: Demšar, *Statistical Comparisons of Classifiers over Multiple Data Sets*, JMLR 7, 2006.
    """
    names = list(scores)
    values = np.array([scores[name] for name in names], dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 2:
        raise ValueError(f"ranks need at least two methods on at least two data sets, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ValueError("ranks need a finite score of every method on every data set.")
    of_each = stats.rankdata(values if smallest else -values, axis=0)
    k, sets = values.shape
    test: Any = stats.friedmanchisquare(*values) if k > 2 else None
    quantile = float(stats.studentized_range.ppf(0.95, k, math.inf)) / math.sqrt(2.0)
    return Ranks(
        average={name: float(rank) for name, rank in zip(names, of_each.mean(axis=1), strict=True)},
        critical=quantile * math.sqrt(k * (k + 1) / (6.0 * sets)),
        p=math.nan if test is None else float(test.pvalue),
        sets=sets,
    )
