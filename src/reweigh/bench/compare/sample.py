"""Samples of a large table: a comparison starts on few rows, and continues with four times as many while time allows.

Samples are nested and the same for every seed, model and method. Each class, or each group that must stay whole, is
thinned alike, but of every class at least fifty rows stay.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from reweigh.bench import tables
from reweigh.bench.compare.problem import Problem
from reweigh.bench.draws.seeds import Seeds

Array = np.ndarray[Any, Any]

#: How much larger the next sample is.
GROWTH = 4
#: Tables of more cells are sampled.
_LARGE = 4_000_000
#: A first sample has at most this many cells, unless it would have fewer rows than that.
_CELLS, _FEWEST = 1_000_000, 4_000
#: What a column of text counts for: it becomes so many numbers.
_TEXT = 64
#: Rows of each class that stay, or all it has.
LEAST = 50
#: More groups than this are not thinned one by one.
_MOST_GROUPS = 100


def sizes(problem: Problem) -> tuple[int, ...]:
    """Rows of the samples to compare on, the smallest first; the last is 0, for all rows."""
    if problem.frame is None or problem.schema is None or problem.imbalance != 1.0:
        return (0,)
    width = sum(_TEXT if column.kind == "text" else 1 for column in problem.schema.features)
    if problem.rows * width <= _LARGE:
        return (0,)
    smaller: list[int] = []
    rows = problem.rows
    while rows * width > _CELLS and rows // GROWTH >= _FEWEST:
        rows //= GROWTH
        smaller.append(rows)
    return (*reversed(smaller), 0)


def sampled(problem: Problem, size: int) -> Problem:
    """The problem on a sample of about so many of its rows; on all of them if `size` is 0."""
    if not size:
        return problem
    rows = _kept(problem, size)
    frame, schema = problem.table
    labels, test_rows = problem.labels, problem.test_rows
    return dataclasses.replace(
        problem,
        frame=frame[rows],
        rows=len(rows),
        class_counts=problem.class_counts
        if labels is None
        else tuple(np.bincount(labels[rows], minlength=len(schema.classes)).tolist()),
        test_rows=None if test_rows is None else np.flatnonzero(np.isin(rows, test_rows)),
        positions=rows if problem.positions is None else problem.positions[rows],
        sample=size,
        sampled_from=problem.rows,
    )


def about(problem: Problem) -> str:
    """What a reader is told of a problem that is a sample."""
    return f"a random sample of {problem.rows:,} of the {problem.sampled_from:,} rows"


def _kept(problem: Problem, size: int) -> Array:
    """Which rows stay, in their order."""
    groups = problem.group_indices
    strata = np.zeros(problem.rows, np.int64) if problem.labels is None else problem.labels.astype(np.int64)
    if groups is not None and tables.keeps_groups_whole(*problem.table):
        return _whole_groups(groups, strata, size / problem.rows)
    if groups is not None and len(problem.groups) <= _MOST_GROUPS:
        strata = strata * len(problem.groups) + groups
    if problem.test_rows is not None:
        strata = 2 * strata + np.isin(np.arange(problem.rows), problem.test_rows)
    order = Seeds(0).numpy("sample").permutation(problem.rows)
    by_stratum = order[np.argsort(strata[order], kind="stable")]
    _, first, counts = np.unique(strata[by_stratum], return_index=True, return_counts=True)
    place = np.arange(problem.rows) - np.repeat(first, counts)  # within its stratum
    most = np.maximum(np.round(size / problem.rows * counts).astype(int), np.minimum(counts, LEAST))
    return np.sort(by_stratum[place < np.repeat(most, counts)])


def _whole_groups(groups: Array, classes: Array, share: float) -> Array:
    """The rows of a share of the groups, or of more where a class would keep too few rows."""
    order = Seeds(0).numpy("sample").permutation(int(groups.max()) + 1)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    places = place[groups]  # of each row's group in the order in which groups are taken
    needed = [round(share * len(order)), min(len(order), tables.FEW_GROUPS + 1)]  # with fewer they would be divided
    for k in np.unique(classes):
        own = np.sort(places[classes == k])
        needed.append(int(own[min(len(own), LEAST) - 1]) + 1)
    return np.flatnonzero(places < max(needed))
