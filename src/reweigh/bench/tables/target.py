"""What is to be predicted, inferred from the cells of the target: a class or an amount, and which rows have none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, listed, quoted
from reweigh.bench.tables.kinds import MOSTLY
from reweigh.bench.tables.schema import TaskKind

#: More different whole numbers than this are amounts, fewer are classes.
_CLASSES = 20
#: A target with more classes than this cannot be learnt.
_MOST_CLASSES = 1000
#: A class with fewer rows than this is barely tested.
_RARE = 10


class Target:
    """The target: its task, classes and rows without one."""

    def __init__(self, cells: pl.Series, task: TaskKind | None, notes: list[str]) -> None:
        self.name = cells.name
        if cells.dtype.is_temporal() or values.is_unusable(cells):
            raise TableError(
                f"the target {quoted(cells.name)} holds {cells.dtype}, which is neither a class nor a number. "
                "Choose another column."
            )
        if cells.null_count() == len(cells):
            raise TableError(f"the target {quoted(cells.name)} is missing in every row. Choose another column.")
        self.task: TaskKind = task or self._inferred(cells, notes)
        self.classes: tuple[str, ...] = ()
        self.counts: tuple[int, ...] = ()
        usable = self._regression(cells) if self.task == "regression" else self._classes(cells, notes)
        self.unlabelled = len(cells) - usable
        if self.unlabelled:
            notes.append(
                f"{self.unlabelled} of {len(cells)} rows have no usable target {quoted(cells.name)} and are dropped."
            )

    def _inferred(self, cells: pl.Series, notes: list[str]) -> TaskKind:
        distinct = cells.drop_nulls().n_unique()
        name = quoted(cells.name)
        if _is_amount(cells):
            notes.append(
                f"Task: regression, because {name} is a number with {distinct} different values; "
                "`--task multiclass` makes them classes."
            )
            return "regression"
        task: TaskKind = "multiclass" if distinct > 2 else "binary"
        numeric = cells.dtype.is_numeric() and distinct > 2
        way = "`--task regression` makes it a number." if numeric else "`--task` overrides it."
        notes.append(f"Task: {task}, because {name} has {distinct} different values; {way}")
        return task

    def _regression(self, cells: pl.Series) -> int:
        numbers = values.numbers(cells).drop_nulls()
        if len(numbers) < 0.5 * (len(cells) - cells.null_count()):
            other = cells.drop_nulls().filter(values.numbers(cells.drop_nulls()).is_null())[0]
            raise TableError(
                f"the target {quoted(self.name)} is not a number in most rows (for example {quoted(other)}), so it "
                "cannot be a regression. Leave `--task` out, or choose another column."
            )
        if numbers.n_unique() == 1:
            raise TableError(
                f"the target {quoted(self.name)} has only one value ({numbers[0]}), so there is nothing to learn. "
                "Choose another column."
            )
        return len(numbers)

    def _classes(self, cells: pl.Series, notes: list[str]) -> int:
        words = values.words(cells).drop_nulls()
        counts = dict(zip(*(column.to_list() for column in words.value_counts(name="count")), strict=True))
        name = quoted(self.name)
        if len(counts) == 1:
            raise TableError(
                f"the target {name} has only one class ({quoted(next(iter(counts)))}), so there is nothing to learn. "
                "Choose another column, or rows with both outcomes."
            )
        if self.task == "binary" and len(counts) > 2:
            raise TableError(
                f"the target {name} has {len(counts)} classes, so the task is not binary. Use `--task multiclass`."
            )
        if len(counts) > min(_MOST_CLASSES, len(words) / 2) and len(counts) > 2:
            raise TableError(
                f"the target {name} has {len(counts)} classes in {len(words)} rows, too many to learn. Choose another "
                "column, or `--task regression` if it is an amount."
            )
        self.classes = _in_order(counts)
        self.counts = tuple(counts[label] for label in self.classes)
        _note_balance(self.classes, self.counts, notes)
        _note_names(self.classes, counts, notes)
        return len(words)


def _is_amount(cells: pl.Series) -> bool:
    """Whether a target is a number of many values, of which fractions are a sign."""
    if cells.dtype == pl.Boolean:
        return False
    numbers = values.numbers(cells).drop_nulls()
    filled = len(cells) - cells.null_count()
    if len(numbers) < MOSTLY * filled:
        return False
    distinct = numbers.n_unique()
    if bool((numbers != numbers.floor()).any()):
        return distinct > 2
    return distinct > min(_CLASSES, max(2, len(numbers) // 5))


def _in_order(labels: Iterable[str]) -> tuple[str, ...]:
    names = sorted(labels)
    numbers = pl.Series(names, dtype=pl.String).cast(pl.Float64, strict=False)
    if numbers.null_count() or not bool(numbers.is_finite().all()):
        return tuple(names)
    return tuple(name for _, name in sorted(zip(numbers.to_list(), names, strict=True)))


def _note_names(classes: Sequence[str], counts: Mapping[str, int], notes: list[str]) -> None:
    """Classes that may be no class, and classes that may be one."""
    for label in classes:
        if label in values.NAMES:
            notes.append(
                f"{counts[label]} rows have the target {quoted(label)}, which is kept as a class. If it means that the "
                "target is unknown, leave those cells empty."
            )
    alike: dict[str, list[str]] = {}
    for label in classes:
        alike.setdefault(label.casefold(), []).append(label)
    for twins in alike.values():
        if len(twins) > 1:
            notes.append(
                f"{listed(twins)} are {len(twins)} classes that differ in upper and lower case only. If they mean the "
                "same, write them alike."
            )


def _note_balance(classes: Sequence[str], counts: Sequence[int], notes: list[str]) -> None:
    total = sum(counts)
    common = sorted(zip(counts, classes, strict=True), key=lambda pair: -pair[0])
    shares = ", ".join(f"{quoted(label)} {100 * count / total:.3g} %" for count, label in common[:4])
    rest = f" and {len(common) - 4} more" if len(common) > 4 else ""
    notes.append(f"Class balance: {shares}{rest}.")
    single = [label for count, label in common if count == 1]
    if single:
        notes.append(
            f"{'Class' if len(single) == 1 else 'Classes'} {listed(single)} with one row: it can be trained on or "
            "tested on, not both. Join it with another class, or drop the row."
        )
    rare = [label for count, label in common if 1 < count < _RARE]
    if rare:
        notes.append(
            f"{'Class' if len(rare) == 1 else 'Classes'} {listed(rare)} with fewer than {_RARE} rows: the results for "
            f"{'it' if len(rare) == 1 else 'them'} are little more than chance."
        )
