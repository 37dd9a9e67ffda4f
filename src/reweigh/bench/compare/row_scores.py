"""Differences from the scores of single rows: half as wide as those over splits.

Runs keep their outputs on the rows that they tested; the folder keeps which rows those were, split by split, so that a
report needs no data. Accuracies, log-loss and cost are means over rows. F1, the Matthews correlation and AUROC are
taken apart into what each row contributes to its split's score (the jackknife's pseudo-values). All other metrics, and
errors of numbers, are compared split by split.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.splits import FOLDS, parts_of, tests_in_folds
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import intervals, results
from reweigh.bench.lab.results import Outcome
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import ScoringRules

Array = np.ndarray[Any, Any]

#: Metrics that are means over rows, and those that are over the rows of a class or a group.
_MEANS, _OF_PARTS = ("accuracy", "balanced_accuracy", "loss"), ("class_accuracy", "group_score")
#: Looks that a search takes before the last one: after two and after four rounds.
LOOKS = 3
#: What the last look may spend; p-values are scaled so that 0.05 stands for it.
_LAST = intervals.alpha_of_look(LOOKS - 1, LOOKS)


def stops_below(look: int) -> float:
    """The p-value below which an early look, counted from zero, ends a search."""
    return intervals.alpha_of_look(min(look, LOOKS - 1), LOOKS) * 0.05 / _LAST


def keep_splits(folder: Path, problem: Problem, seeds: Iterable[int]) -> None:
    """Write down which rows each split tests, their classes and groups, where that has not been done yet."""
    labels = problem.labels
    if labels is None:
        return
    groups = problem.group_indices
    folder.mkdir(exist_ok=True)
    for seed in seeds:
        path = folder / f"{seed}.npy"
        if not path.exists():
            rows = parts_of(problem, seed).test
            round_ = np.full(len(rows), seed // FOLDS if tests_in_folds(problem) else seed)
            group = np.full(len(rows), -1) if groups is None else groups[rows]
            write_atomically(path, _bytes(np.stack([rows, labels[rows], group, round_])))


class TestedRows(NamedTuple):
    """The rows that a split tests, the class and group of each, and the round that the split belongs to."""

    rows: Array
    classes: Array
    groups: Array
    round: int


class ScoreMatrices(NamedTuple):
    """Scores of two methods by round and row, the class of each row where classes count alike, and who tested it."""

    ours: Array
    theirs: Array
    classes: Array | None
    folds: Array


@dataclasses.dataclass(frozen=True, eq=False)
class RowScores:
    """The differences of a comparison: of rows where the metric allows it, of splits otherwise.

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
    judging: ScoringRules

    def difference(
        self,
        key: str,
        ours: Mapping[int, Outcome],
        theirs: Mapping[int, Outcome],
        values: Mapping[int, tuple[float, float]],
        *,
        index: int | None = None,
        primary: bool = False,
    ) -> Difference:
        """The difference of two rows in a number such as `test/accuracy`; `values` are both rows' by split.

        `index` is that of a class or group, where the number is a list of theirs. Its `n` counts the splits that both
        have.
        """
        metric = key.removeprefix("test/")
        first, second = ([pair[k] for pair in values.values()] for k in (0, 1))
        matrices = self._matrices(metric, ours, theirs, list(values), index)
        if matrices is None:  # a single round cannot tell what other splits and seeds would add
            return results.difference(first, second, self.table.overlap, primary=primary)
        apart = intervals.across_rows(
            matrices.ours,
            matrices.theirs,
            matrices.classes,
            test_over_train=self.table.overlap,
            folds=matrices.folds,
            alpha=_LAST,
            primary=primary,
        )
        return dataclasses.replace(apart, n=len(values), p=min(1.0, apart.p * 0.05 / _LAST))

    def half_widths(
        self, key: str, ours: Mapping[int, Outcome], theirs: Mapping[int, Outcome], rounds: Sequence[int], alpha: float
    ) -> list[float] | None:
        """The half-width of the same interval after so many rounds; None where rows are not what is compared."""
        seeds = sorted(set(ours) & set(theirs))
        matrices = self._matrices(key.removeprefix("test/"), ours, theirs, seeds, None)
        if matrices is None:
            return None
        return intervals.half_widths(
            matrices.ours,
            matrices.theirs,
            matrices.classes,
            test_over_train=self.table.overlap,
            rounds=rounds,
            folds=matrices.folds,
            alpha=alpha * _LAST / 0.05,
        )

    def _matrices(
        self,
        metric: str,
        ours: Mapping[int, Outcome],
        theirs: Mapping[int, Outcome],
        seeds: Sequence[int],
        index: int | None,
    ) -> ScoreMatrices | None:
        """The scores of both; None before the second round, and where rows are not what is compared."""
        rounds = {self._split(seed).round for seed in seeds} if self._known(metric, seeds) else set[int]()
        if len(rounds) < 2:
            return None
        rows = np.unique(np.concatenate([self._split(seed).rows for seed in seeds]))
        order = {round_: i for i, round_ in enumerate(sorted(rounds))}
        scores = np.full((2, len(rounds), len(rows)), np.nan)
        folds = np.full((len(rounds), len(rows)), -1)
        classes, groups = np.zeros((2, len(rows)), np.int64)
        for seed in seeds:
            split = self._split(seed)
            places = np.searchsorted(rows, split.rows)
            classes[places], groups[places] = split.classes, split.groups
            folds[order[split.round], places] = seed
            for k, outcomes in enumerate((ours, theirs)):
                scores[k, order[split.round], places] = self._scores(metric, outcomes[seed], seed)
        counted = np.ones(len(rows), bool)
        if metric in _OF_PARTS:
            counted = (classes if metric == "class_accuracy" else groups) == index
        elif metric == "balanced_accuracy" and self.judging.counted is not None:
            counted = np.asarray(self.judging.counted)[classes]
        own = classes[counted] if metric == "balanced_accuracy" else None
        return ScoreMatrices(scores[0][:, counted], scores[1][:, counted], own, folds[:, counted])

    def tested(self, outcomes: Mapping[int, Outcome]) -> list[tuple[Array, Array]]:
        """The outputs of a row on the rows it was tested on, and the classes of these, split by split."""
        known = (seed for seed in sorted(outcomes) if (self.folder / f"{seed}.npy").exists())
        return [(_outputs(outcomes[seed]), self._split(seed).classes) for seed in known]

    def _known(self, metric: str, seeds: Iterable[int]) -> bool:
        by_row = metric in (*_MEANS, *_OF_PARTS, *metrics.JACKKNIFED) or (metric == "cost" and self.judging.costs)
        return bool(by_row) and all((self.folder / f"{seed}.npy").exists() for seed in seeds)

    def _scores(self, metric: str, outcome: Outcome, seed: int) -> Array:
        if metric in metrics.JACKKNIFED:
            return _pseudo_values(metric, _outputs_file(outcome), self.folder / f"{seed}.npy", self.judging)
        outputs, targets = _outputs(outcome), self._split(seed).classes
        if metric == "loss":
            return -special.log_softmax(outputs, axis=1)[np.arange(len(targets)), targets]
        predicted = outputs.argmax(axis=1)
        if metric == "cost":
            assert self.judging.costs is not None
            positive = targets == self.judging.positive
            false_positive, false_negative = self.judging.costs
            return np.where(positive, false_negative, false_positive) * (predicted != targets)
        return (predicted == targets).astype(np.float64)

    def _split(self, seed: int) -> TestedRows:
        rows, classes, groups, rounds = _read(self.folder / f"{seed}.npy")
        return TestedRows(rows, classes, groups, int(rounds[0]))


@functools.lru_cache(maxsize=256)
def _read(path: Path) -> Array:
    return np.load(path, allow_pickle=False)


@functools.lru_cache(maxsize=2048)
def _read_outputs(path: Path) -> Array:
    return np.load(path, allow_pickle=False).astype(np.float64)


@functools.lru_cache(maxsize=2048)
def _pseudo_values(metric: str, outputs: Path, split: Path, judging: ScoringRules) -> Array:
    """Kept, since they take longest, and every answer compares each row with several others."""
    _, classes, _, _ = _read(split)
    return metrics.pseudo_values(metric, _read_outputs(outputs), classes, judging)


def _outputs(outcome: Outcome) -> Array:
    return _read_outputs(_outputs_file(outcome))


def _outputs_file(outcome: Outcome) -> Path:
    return outcome.run.directory / "arrays" / "test_outputs.npy"


def _bytes(array: Array) -> bytes:
    import io

    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
