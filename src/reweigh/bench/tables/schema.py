"""What a table holds, as values: its columns, its task and its classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import polars as pl

from reweigh.bench.tables import values

TaskKind = Literal["binary", "multiclass", "regression"]
ColumnKind = Literal[
    "number",
    "category",
    "boolean",
    "date",
    "text",
    "id",
    "constant",
    "empty",
    "unusable",
    "dropped",
    "target",
    "group",
    "time",
]

TASKS: tuple[TaskKind, ...] = ("binary", "multiclass", "regression")
#: The kinds a model gets to see.
FEATURES = ("number", "category", "boolean", "date", "text")


@dataclass(frozen=True, kw_only=True)
class ColumnSchema:
    """One column of a table.

    Parameters
    ----------
    name
        As the file has it: any text.
    kind
        How it is treated; only those in `FEATURES` are given to a model.
    missing
        Share of the cells that are missing, or not a value of this kind.
    distinct
        Number of different cells.
    pattern
        How dates in strings are written.
    """

    name: str
    kind: ColumnKind
    missing: float
    distinct: int
    pattern: str | None = None


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What a table holds.

    Parameters
    ----------
    task
        `"binary"`, `"multiclass"` or `"regression"`.
    target
        Name of the column to predict.
    columns
        Every column, in the order of the table.
    classes, class_counts
        The classes (numbers in their order, words in the alphabet's) and how many rows each has; empty for regression.
    rows, unlabelled
        Rows of the table, and how many of them have no target: `labelled` drops those.
    group, time
        Names of the columns that name groups and moments, if any.
    notes
        What was inferred and how to override it, one sentence each.
    """

    task: TaskKind
    target: str
    columns: tuple[ColumnSchema, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    rows: int
    unlabelled: int
    group: str | None
    time: str | None
    notes: tuple[str, ...]

    @property
    def features(self) -> tuple[ColumnSchema, ...]:
        """The columns a model gets to see."""
        return tuple(column for column in self.columns if column.kind in FEATURES)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that matter: what the model sees, the target, the group and the time."""
        kinds = (*FEATURES, "target", "group", "time")
        return tuple(column.name for column in self.columns if column.kind in kinds)

    def column(self, name: str) -> ColumnSchema:
        """The column of this name."""
        return next(column for column in self.columns if column.name == name)

    def labels(self, frame: pl.DataFrame) -> pl.Series:
        """The target of each row: a class index (UInt32) or a number (Float64), null where there is none."""
        cells = frame.get_column(self.target)
        if self.task == "regression":
            return values.numbers(cells)
        return class_indices(cells, self.classes)

    def labelled(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows that have a target."""
        labels = self.labels(frame)
        return frame.filter(labels.is_not_null()) if labels.null_count() else frame

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a record or a report."""
        return asdict(self)


def class_indices(cells: pl.Series, classes: Sequence[str]) -> pl.Series:
    """The position of each cell among the classes; null where it is missing or not one of them."""
    return values.words(cells).replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.UInt32
    )
