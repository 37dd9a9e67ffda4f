"""What a table holds, inferred: the task and the kind of each column, with notes on how to override it."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from reweigh.bench.tables.errors import TableError, listed, near, quoted
from reweigh.bench.tables.kinds import describe_column
from reweigh.bench.tables.schema import FEATURES, TASKS, ColumnKind, ColumnSchema, Schema, TaskKind
from reweigh.bench.tables.target import Target

#: Names of which most will share one feature.
_MANY_LEVELS = 100


def describe(
    frame: pl.DataFrame,
    *,
    target: str,
    task: TaskKind | None = None,
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    group: str | None = None,
    time: str | None = None,
) -> Schema:
    """What a table holds, inferred from its cells and never from the names of its columns.

    Parameters
    ----------
    frame
        A table from `read`.
    target
        The column to predict.
    task
        Instead of the one inferred: whole numbers of few values and words are classes, other numbers a regression.
    categorical
        Columns to treat as names, even if they look like numbers.
    drop
        Columns that are not given to the model.
    group
        The column of groups. Results are reported by group; the model does not see it.
    time
        The column of moments: the test part is then the latest rows. The model does not see it.

    Returns
    -------
    Schema
        Task, column kinds, class balance and notes.

    Raises
    ------
    TableError
        If a column does not exist, or there is nothing to learn.

    Examples
    --------
    >>> frame = pl.DataFrame({"age": [31.5, 40.0, None] * 10, "city": ["Rom", "Bonn", "Rom"] * 10, "y": [1, 0, 1] * 10})
    >>> schema = describe(frame, target="y")
    >>> schema.task, schema.classes, schema.class_counts
    ('binary', ('0', '1'), (10, 20))
    >>> [(column.name, column.kind) for column in schema.features]
    [('age', 'number'), ('city', 'category')]
    """
    _check_names(frame, target, categorical, drop, group, time)
    if task is not None and task not in TASKS:
        raise TableError(f"`--task` must be one of {', '.join(TASKS)}, got {quoted(task)}.")
    notes: list[str] = []
    aim = Target(frame.get_column(target), task, notes)
    columns: list[ColumnSchema] = []
    for cells in frame:
        special: dict[str | None, ColumnKind] = {time: "time", group: "group", target: "target"}
        kind = special.get(cells.name) or ("dropped" if cells.name in drop else None)
        columns.append(describe_column(cells, kind, cells.name in categorical, notes))
    _note_columns(columns, notes)
    if not any(column.kind in FEATURES for column in columns):
        raise TableError(
            f"there is no column left to predict {quoted(target)} from: {_why_none(columns)}. Keep some with "
            "`--categorical COL`, or give a table with more columns."
        )
    return Schema(
        task=aim.task,
        target=target,
        columns=tuple(columns),
        classes=aim.classes,
        class_counts=aim.counts,
        rows=frame.height,
        unlabelled=aim.unlabelled,
        group=group,
        time=time,
        notes=tuple(notes),
    )


def _check_names(
    frame: pl.DataFrame,
    target: str,
    categorical: Sequence[str],
    drop: Sequence[str],
    group: str | None,
    time: str | None,
) -> None:
    if target not in frame.columns:
        raise TableError(f"there is no column {quoted(target)} to predict. {near(target, frame.columns)}")
    named: list[tuple[str, str]] = [("--categorical", name) for name in categorical]
    named += [("--drop", name) for name in drop]
    named += [(option, name) for option, name in (("--group", group), ("--time", time)) if name is not None]
    for option, name in named:
        if name not in frame.columns:
            raise TableError(f"`{option}` names {quoted(name)}, which is not a column. {near(name, frame.columns)}")
        if name == target:
            raise TableError(f"`{option}` names {quoted(name)}, which is the target. Leave it out there.")
    for name in drop:
        others = [option for option, other in named if other == name and option != "--drop"]
        if others:
            raise TableError(f"{quoted(name)} is named by both `--drop` and `{others[0]}`. Leave one of them out.")
    if group is not None and group == time:
        raise TableError(f"{quoted(group)} is named by both `--group` and `--time`. Leave one of them out.")


_DROPPED: dict[ColumnKind, str] = {
    "id": "Dropped {names}: nearly every row has its own value, like an id; `--categorical COL` keeps one.",
    "constant": "Dropped {names}: the same value in every row.",
    "empty": "Dropped {names}: missing in every row.",
    "unusable": "Dropped {names}: lists, records or bytes; unpack them into separate columns to use them.",
    "group": "{names} names groups: results are reported by group, and the model does not see it (`--group`).",
    "time": "{names} orders the rows: the test part is the latest, and the model does not see it (`--time`).",
}


def _note_columns(columns: Sequence[ColumnSchema], notes: list[str]) -> None:
    for kind, sentence in _DROPPED.items():
        names = [column.name for column in columns if column.kind == kind]
        if names:
            notes.append(sentence.format(names=listed(names)))
    many = [column.name for column in columns if column.kind == "category" and column.distinct > _MANY_LEVELS]
    if many:
        notes.append(
            f"More than {_MANY_LEVELS} different names in {listed(many)}: the most frequent count one by one, the "
            "others as one; `--drop COL` leaves a column out."
        )
    gaps = [column for column in columns if column.kind in FEATURES and column.missing >= 0.5]
    if gaps:
        names = listed([column.name for column in gaps])
        notes.append(f"At least half of {names} is missing; `--drop COL` leaves a column out.")


def _why_none(columns: Sequence[ColumnSchema]) -> str:
    others = [column for column in columns if column.kind != "target"]
    if not others:
        return "it is the only one"
    return ", ".join(f"{quoted(column.name)} is {_WHY.get(column.kind, column.kind)}" for column in others[:6])


_WHY: dict[str, str] = {"id": "an id", "dropped": "dropped by `--drop`", "group": "the group", "time": "the time"}
