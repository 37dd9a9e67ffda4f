"""What a table holds: the task, and what each column is, said in words with the way to overrule it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, listed, near, quoted

TaskKind = Literal["binary", "multiclass", "regression"]
Kind = Literal[
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

#: The share of cells that must be numbers (or dates) for the others to count as slips of the pen.
_MOSTLY = 0.95
#: Nearly every row has a value of its own.
_UNIQUE = 0.95
#: Below this many cells "all different" and "ascending" may be chance.
_ENOUGH = 20
#: Words a cell, and shares of different cells, from which strings are prose and no names.
_PROSE_WORDS, _PROSE_DISTINCT = 4.0, 0.2
#: More whole numbers than this are amounts, fewer are classes.
_CLASSES = 20
#: A target of words with more classes than this is no target.
_MOST_CLASSES = 1000
#: Names of which most will share one feature.
_MANY_LEVELS = 100
#: A class with fewer rows than this is hardly tested.
_RARE = 10


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name
        As the file has it: any text.
    kind
        What it is taken for; only those in `FEATURES` are given to a model.
    missing
        Share of the cells that are missing, or are no value of this kind.
    distinct
        Number of different cells.
    pattern
        How dates in strings are written.
    """

    name: str
    kind: Kind
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
        What was inferred and how to overrule it, a sentence each.
    """

    task: TaskKind
    target: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    rows: int
    unlabelled: int
    group: str | None
    time: str | None
    notes: tuple[str, ...]

    @property
    def features(self) -> tuple[Column, ...]:
        """The columns a model gets to see."""
        return tuple(column for column in self.columns if column.kind in FEATURES)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the columns that matter: what the model sees, the target, the group and the time."""
        kinds = (*FEATURES, "target", "group", "time")
        return tuple(column.name for column in self.columns if column.kind in kinds)

    def column(self, name: str) -> Column:
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
    """The position of each cell among the classes; null where it is missing or none of them."""
    return values.words(cells).replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.UInt32
    )


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
    """What a table holds, inferred from its cells; a column's name is never more than a name.

    Parameters
    ----------
    frame
        A table from `read`.
    target
        The column to predict.
    task
        Instead of the one inferred: whole numbers of few values and words are classes, other numbers a regression.
    categorical
        Columns of names, whatever they look like.
    drop
        Columns that are not given to the model.
    group
        The column that says which group a row belongs to. Results are told by group; the model does not see it.
    time
        The column that says when a row was: the test part is then the latest. The model does not see it.

    Returns
    -------
    Schema
        Task, column kinds, class balance and notes.

    Raises
    ------
    TableError
        If a column is not there, or there is nothing to learn.

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
    aim = _Target(frame.get_column(target), task, notes)
    columns: list[Column] = []
    for cells in frame:
        special: dict[str | None, Kind] = {time: "time", group: "group", target: "target"}
        kind = special.get(cells.name) or ("dropped" if cells.name in drop else None)
        columns.append(_column(cells, kind, cells.name in categorical, notes))
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
    asked: list[tuple[str, str]] = [("--categorical", name) for name in categorical]
    asked += [("--drop", name) for name in drop]
    asked += [(option, name) for option, name in (("--group", group), ("--time", time)) if name is not None]
    for option, name in asked:
        if name not in frame.columns:
            raise TableError(f"`{option}` names {quoted(name)}, which is no column. {near(name, frame.columns)}")
        if name == target:
            raise TableError(f"`{option}` names {quoted(name)}, which is the target. Leave it out there.")
    for name in drop:
        others = [option for option, other in asked if other == name and option != "--drop"]
        if others:
            raise TableError(f"{quoted(name)} is named by both `--drop` and `{others[0]}`. Leave one of them out.")
    if group is not None and group == time:
        raise TableError(f"{quoted(group)} is named by both `--group` and `--time`. Leave one of them out.")


class _Target:
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
        way = "`--task regression` makes it a number." if numeric else "`--task` overrules it."
        notes.append(f"Task: {task}, because {name} has {distinct} different values; {way}")
        return task

    def _regression(self, cells: pl.Series) -> int:
        numbers = values.numbers(cells).drop_nulls()
        if len(numbers) < 0.5 * (len(cells) - cells.null_count()):
            other = cells.drop_nulls().filter(values.numbers(cells.drop_nulls()).is_null())[0]
            raise TableError(
                f"the target {quoted(self.name)} is no number in most rows (for example {quoted(other)}), so there is "
                "no regression. Leave `--task` out, or choose another column."
            )
        if numbers.n_unique() == 1:
            raise TableError(
                f"the target {quoted(self.name)} has one value only ({numbers[0]}), so there is nothing to learn. "
                "Choose another column."
            )
        return len(numbers)

    def _classes(self, cells: pl.Series, notes: list[str]) -> int:
        words = values.words(cells).drop_nulls()
        counts = dict(zip(*(column.to_list() for column in words.value_counts(name="count")), strict=True))
        name = quoted(self.name)
        if len(counts) == 1:
            raise TableError(
                f"the target {name} has one class only ({quoted(next(iter(counts)))}), so there is nothing to learn. "
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
        return len(words)


def _is_amount(cells: pl.Series) -> bool:
    """Whether a target is a number of many values, of which fractions are a sign."""
    if cells.dtype == pl.Boolean:
        return False
    numbers = values.numbers(cells).drop_nulls()
    filled = len(cells) - cells.null_count()
    if len(numbers) < _MOSTLY * filled:
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


def _note_balance(classes: Sequence[str], counts: Sequence[int], notes: list[str]) -> None:
    total = sum(counts)
    common = sorted(zip(counts, classes, strict=True), key=lambda pair: -pair[0])
    shares = ", ".join(f"{quoted(label)} {100 * count / total:.3g} %" for count, label in common[:4])
    rest = f" and {len(common) - 4} more" if len(common) > 4 else ""
    notes.append(f"Class balance: {shares}{rest}.")
    rare = [label for count, label in common if count < _RARE]
    if rare:
        notes.append(
            f"{'Class' if len(rare) == 1 else 'Classes'} {listed(rare)} with fewer than {_RARE} rows: what is said of "
            f"{'it' if len(rare) == 1 else 'them'} is little more than chance."
        )


def _column(cells: pl.Series, kind: Kind | None, categorical: bool, notes: list[str]) -> Column:
    missing, distinct = cells.null_count(), _distinct(cells)
    pattern: str | None = None
    if kind == "time":
        pattern = _check_time(cells)
    if kind is None:
        kind, missing, pattern = _kind(cells, distinct, categorical, notes)
    return Column(name=cells.name, kind=kind, missing=missing / max(len(cells), 1), distinct=distinct, pattern=pattern)


def _distinct(cells: pl.Series) -> int:
    if values.is_unusable(cells):
        return 0
    return cells.n_unique() - bool(cells.null_count())


def _kind(cells: pl.Series, distinct: int, categorical: bool, notes: list[str]) -> tuple[Kind, int, str | None]:
    """What a feature is, how many cells are missing or none of the kind, and how its dates are written."""
    missing = cells.null_count()
    if missing == len(cells):
        return "empty", missing, None
    if values.is_unusable(cells):
        return "unusable", missing, None
    if distinct == 1 and not missing:
        return "constant", missing, None
    if categorical:
        return "category", missing, None
    if cells.dtype == pl.Boolean:
        return "boolean", missing, None
    if cells.dtype.is_temporal():
        return "date", missing, None
    if cells.dtype.is_numeric():
        return _number_kind(cells, distinct), missing, None
    return _text_kind(cells, distinct, notes)


def _number_kind(cells: pl.Series, distinct: int) -> Kind:
    if distinct == 2 and bool(((cells == 0) | (cells == 1)).all()):
        return "boolean"
    return "id" if cells.dtype.is_integer() and _counts_up(cells, distinct) else "number"


def _counts_up(cells: pl.Series, distinct: int) -> bool:
    """Whether whole numbers only number the rows: none twice, in order, and without large gaps."""
    if len(cells) < _ENOUGH or distinct < len(cells) or cells.null_count():
        return False
    ordered = cells.is_sorted() or cells.is_sorted(descending=True)
    low, high = cells.min(), cells.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    return ordered and high - low < 10 * len(cells)


def _text_kind(cells: pl.Series, distinct: int, notes: list[str]) -> tuple[Kind, int, str | None]:
    filled = len(cells) - cells.null_count()
    name = quoted(cells.name)
    as_numbers = values.numbers(cells)
    if as_numbers.count() >= _MOSTLY * filled:
        odd = cells.filter(as_numbers.is_null() & cells.is_not_null())
        if len(odd):
            notes.append(
                f"{name} is taken for a number; {len(odd)} of its cells are text (for example {quoted(odd[0])}) and "
                f"count as missing. Mend them, or use `--categorical {name}` if they are names."
            )
        return "number", as_numbers.null_count(), None
    lowered = {word.lower() for word in cells.drop_nulls().unique()} if distinct <= 4 else set[str]()
    if any(lowered == set(pair) for pair in values.TRUTH):
        return "boolean", cells.null_count(), None
    patterns = values.date_patterns(cells, _MOSTLY)
    if patterns:
        return "date", _note_dates(cells, patterns, notes), patterns[0]
    if _is_prose(cells, distinct, filled):
        notes.append(
            f"{name} is taken for free text and read word by word; `--categorical {name}` takes each cell as one name."
        )
        return "text", cells.null_count(), None
    if filled >= _ENOUGH and distinct >= _UNIQUE * filled:
        return "id", cells.null_count(), None
    return "category", cells.null_count(), None


def _note_dates(cells: pl.Series, patterns: Sequence[str], notes: list[str]) -> int:
    """Say what is doubtful about dates in strings; returns the number of cells without one."""
    best, name = patterns[0], quoted(cells.name)
    absent = values.dates(cells, best).null_count()
    odd = absent - cells.null_count()
    if odd:
        notes.append(f"{name} is taken for a date ({best}); {odd} of its cells are none and count as missing.")
    if best.startswith("%m/%d") and best.replace("%m/%d", "%d/%m") in patterns:
        notes.append(
            f"{name} may be month/day/year or day/month/year and is read as the first; write 2024-12-31 to be sure."
        )
    return absent


def _is_prose(cells: pl.Series, distinct: int, filled: int) -> bool:
    if distinct < _PROSE_DISTINCT * filled:
        return False
    mean = cells.str.count_matches(r"\S+").mean()
    return isinstance(mean, float) and mean >= _PROSE_WORDS


def _check_time(cells: pl.Series) -> str | None:
    """How the moments in a time column are written; refuses one that cannot be put in order."""
    if cells.dtype.is_numeric() or cells.dtype.is_temporal():
        if cells.null_count() < len(cells):
            return None
    elif values.is_text(cells) and (patterns := values.date_patterns(cells, _MOSTLY)):
        return patterns[0]
    raise TableError(
        f"`--time` names {quoted(cells.name)}, which holds neither numbers nor dates. Write dates like 2024-12-31, or "
        "choose another column."
    )


_DROPPED: dict[Kind, str] = {
    "id": "Dropped {names}: nearly every row has a value of its own, as ids have; `--categorical COL` keeps one.",
    "constant": "Dropped {names}: the same value in every row.",
    "empty": "Dropped {names}: missing in every row.",
    "unusable": "Dropped {names}: lists, records or bytes; unpack them into columns of their own to use them.",
    "group": "{names} names groups: results are told by group, and the model does not see it (`--group`).",
    "time": "{names} orders the rows: the test part is the latest, and the model does not see it (`--time`).",
}


def _note_columns(columns: Sequence[Column], notes: list[str]) -> None:
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
        told = listed([column.name for column in gaps])
        notes.append(f"At least half of {told} is missing; `--drop COL` leaves a column out.")


def _why_none(columns: Sequence[Column]) -> str:
    others = [column for column in columns if column.kind != "target"]
    if not others:
        return "it is the only one"
    return ", ".join(f"{quoted(column.name)} is {_WHY.get(column.kind, column.kind)}" for column in others[:6])


_WHY: dict[str, str] = {"id": "an id", "dropped": "dropped by `--drop`", "group": "the group", "time": "the time"}
