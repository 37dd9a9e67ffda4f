"""Differences from the scores of single rows, where the metric is a mean over them: half as wide as those over splits.

Runs keep their outputs on the rows that they tested; the folder keeps which rows those were, split by split, so that a
report needs no data. What is not a mean over rows (AUROC, F1, an error of numbers) is compared split by split.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from reweigh.bench.compare.problem import FOLDS, Problem, parts_of, tests_in_folds
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import intervals, results
from reweigh.bench.lab.results import Outcome
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.train.scores import Judging

Array = np.ndarray[Any, Any]

#: Looks that a search takes before the last one: after two and after four rounds.
LOOKS = 3
#: What the last look may spend; p-values are scaled so that 0.05 stands for it.
_LAST = intervals.alpha_of_look(LOOKS - 1, LOOKS)


def stops_below(look: int) -> float:
    """The p-value below which an early look, counted from zero, ends a search."""
    return intervals.alpha_of_look(min(look, LOOKS - 1), LOOKS) * 0.05 / _LAST


def keep_splits(folder: Path, problem: Problem, seeds: Iterable[int]) -> None:
    """Write down which rows each split tests, and their classes, where that has not been done yet."""
    labels = problem.labels
    if labels is None:
        return
    folder.mkdir(exist_ok=True)
    for seed in seeds:
        path = folder / f"{seed}.npy"
        if not path.exists():
            rows = parts_of(problem, seed).test
            round_ = seed // FOLDS if tests_in_folds(problem) else seed
            with_round = np.stack([rows, labels[rows], np.full(len(rows), round_)])
            write_atomically(path, _bytes(with_round))


@dataclasses.dataclass(frozen=True, eq=False)
class RowScores:
    """The differences of a comparison: of rows where the metric allows, of splits otherwise.

    Parameters
    ----------
    table
        The comparison.
    folder
        Where `keep_splits` wrote.
    judging
        Which classes count, and what mistakes cost.
    """

    table: Table
    folder: Path
    judging: Judging

    def difference(
        self,
        metric: str,
        ours: Mapping[int, Outcome],
        theirs: Mapping[int, Outcome],
        values: Mapping[int, tuple[float, float]],
        *,
        primary: bool = False,
    ) -> Difference:
        """The difference of two rows in a metric such as `accuracy`; `values` are both rows' by split.

        Its `n` counts the splits that both have.
        """
        first, second = ([pair[k] for pair in values.values()] for k in (0, 1))
        rounds = {self._split(seed)[2] for seed in values} if self._known(metric, values) else set[int]()
        if len(rounds) < 2:  # a single round cannot tell what other splits and seeds would add
            return results.difference(self.table, first, second, primary=primary)
        rows = np.unique(np.concatenate([self._split(seed)[0] for seed in values]))
        order = {round_: i for i, round_ in enumerate(sorted(rounds))}
        scores = np.full((2, len(rounds), len(rows)), np.nan)
        classes = np.zeros(len(rows), np.int64)
        for seed in values:
            tested, targets, round_ = self._split(seed)
            places = np.searchsorted(rows, tested)
            classes[places] = targets
            for k, outcomes in enumerate((ours, theirs)):
                scores[k, order[round_], places] = self._scores(metric, _outputs(outcomes[seed]), targets)
        counted = np.ones(len(rows), bool)
        if metric == "balanced_accuracy" and self.judging.counted is not None:
            counted = np.asarray(self.judging.counted)[classes]
        apart = intervals.across_rows(
            scores[0][:, counted],
            scores[1][:, counted],
            classes[counted] if metric == "balanced_accuracy" else None,
            test_over_train=self.table.overlap,
            alpha=_LAST,
            primary=primary,
        )
        return dataclasses.replace(apart, n=len(values), p=min(1.0, apart.p * 0.05 / _LAST))

    def _known(self, metric: str, seeds: Iterable[int]) -> bool:
        means = metric in ("accuracy", "balanced_accuracy", "loss") or (metric == "cost" and self.judging.costs)
        return bool(means) and all((self.folder / f"{seed}.npy").exists() for seed in seeds)

    def _scores(self, metric: str, outputs: Array, targets: Array) -> Array:
        if metric == "loss":
            return -special.log_softmax(outputs, axis=1)[np.arange(len(targets)), targets]
        predicted = outputs.argmax(axis=1)
        if metric == "cost":
            assert self.judging.costs is not None
            positive = targets == self.judging.positive
            false_positive, false_negative = self.judging.costs
            return np.where(positive, false_negative, false_positive) * (predicted != targets)
        return (predicted == targets).astype(np.float64)

    def _split(self, seed: int) -> tuple[Array, Array, int]:
        rows, targets, rounds = _read(self.folder / f"{seed}.npy")
        return rows, targets, int(rounds[0])


@functools.lru_cache(maxsize=256)
def _read(path: Path) -> Array:
    return np.load(path, allow_pickle=False)


@functools.lru_cache(maxsize=2048)
def _read_outputs(path: Path) -> Array:
    return np.load(path, allow_pickle=False).astype(np.float64)


def _outputs(outcome: Outcome) -> Array:
    return _read_outputs(outcome.run.directory / "arrays" / "test_outputs.npy")


def _bytes(array: Array) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
