"""Which rows a seed trains on, chooses on and tests on."""

from __future__ import annotations

import dataclasses

import numpy as np

from reweigh.bench import draws, tables
from reweigh.bench.compare.problem import TEST_SHARE, VAL_SHARE, Array, Problem
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.tables import Split

#: Splits of a round, which test every row once.
FOLDS = 5
#: Share of the training rows that each split leaves out, where time cuts all of them at the same rows.
_LEFT_OUT = 0.1


def parts_of(problem: Problem, seed: int, *, share: float = 1.0) -> Split:
    """Which rows a seed trains on, chooses on and tests on; with a `share`, that part of the training rows alone.

    Five seeds in a row are a round: its folds test every row once. Where test rows are given, or are the latest, all
    seeds test on the same.
    """
    if share != 1.0:
        return _thinned(problem, parts_of(problem, seed), seed, away=1.0 - share)
    round_, fold = divmod(seed, FOLDS)
    if problem.frame is not None and problem.imbalance == 1.0:
        test_rows = problem.test_rows
        dealt = _folds(problem, round_)
        if dealt is not None:
            test_rows = np.flatnonzero(dealt == fold)
        parts = tables.split(*problem.table, seed=seed, test=TEST_SHARE, val=VAL_SHARE, test_rows=test_rows)
        return _thinned(problem, parts, seed) if problem.in_time else parts
    labels, draw = problem.labels, Seeds(seed).numpy("data")
    assert labels is not None
    test = problem.test_rows
    if test is None:
        test = np.flatnonzero(draws.folds(labels, FOLDS, Seeds(round_).numpy("folds")) == fold)
    rest = np.setdiff1d(np.arange(len(labels)), test)
    if problem.imbalance != 1.0:
        rest = rest[draws.longtail_indices(labels[rest], problem.imbalance, draw)]
    train, val = draws.split(labels[rest], VAL_SHARE / (1 - TEST_SHARE), draw)
    return Split(np.sort(rest[train]), np.sort(rest[val]), np.sort(test))


def tests_in_folds(problem: Problem) -> bool:
    """Whether the splits of a round test every row once; otherwise every split is a round of its own."""
    if problem.frame is None:
        return problem.test_rows is None
    return _folds(problem, 0) is not None


def with_test_rows(problem: Problem, parts: Split, *, hold_out: bool) -> Split:
    """The parts for a model to keep: all rows but given test rows are trained on, unless some are to be held out.

    The validation part takes the place of the test part; nothing is reported of it. With `hold_out` it is not trained
    on, since a correction of outputs is fitted to it.
    """
    away = [] if problem.test_rows is None else [np.asarray(problem.test_rows)]
    away += [parts.val] if hold_out else []
    if problem.imbalance != 1.0:  # the rows that thinning left out stay out
        train = parts.train if hold_out else np.union1d(parts.train, parts.val)
    else:
        train = np.setdiff1d(np.arange(problem.rows), np.concatenate(away)) if away else np.arange(problem.rows)
    return Split(train, parts.val, parts.val)


def _folds(problem: Problem, round_: int) -> Array | None:
    return None if problem.test_rows is not None else tables.folds(*problem.table, seed=round_, count=FOLDS)


def _thinned(problem: Problem, parts: Split, seed: int, *, away: float = _LEFT_OUT) -> Split:
    """Parts without a random share of the training rows, a tenth unless given.

    Time cuts at the same rows whatever the seed. Without this, repetitions of what has no other randomness (boosters)
    would be copies of one result, and their spread zero.
    """
    labels, draw = problem.labels, Seeds(seed).numpy("left out")
    strata = np.zeros(len(parts.train), dtype=np.int64) if labels is None else labels[parts.train]
    stay, _ = draws.split(strata, away, draw)
    return dataclasses.replace(parts, train=parts.train[stay])
