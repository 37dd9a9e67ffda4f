"""Rows divided into training, validation and test, and rows that are in more than one part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from reweigh import _validate as validate
from reweigh.bench import draws
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, listed, near, quoted
from reweigh.bench.tables.schema import Schema

Array = np.ndarray[Any, Any]

#: Amounts are split as if each tenth of them were a class.
_BINS = 10
#: With more groups than this, or fewer rows per group, groups are assumed to be people or places and kept whole.
FEW_GROUPS, _ROWS_A_GROUP = 50, 30


@dataclass(frozen=True, eq=False)
class Split:
    """Ascending row indices of the three parts; together every row once."""

    train: Array
    val: Array
    test: Array
    notes: tuple[str, ...] = ()


def split(
    frame: pl.DataFrame,
    schema: Schema,
    *,
    seed: int,
    test: float = 0.2,
    val: float = 0.2,
    test_rows: Array | range | None = None,
    whole_groups: bool | None = None,
) -> Split:
    """Split the rows of a table by a seed.

    Every class (for regression, every tenth of the target) has the same share in all parts. With a group column that
    names few large groups, every group of every class has; many small groups (patients, shops) are kept whole instead,
    so that none is on both sides. With a time column nothing is shuffled: the test part is the latest rows, the
    validation part the latest before them, and rows of one moment stay together; every seed then gives the same parts.

    Parameters
    ----------
    frame
        Rows that have a target: `Schema.labelled`.
    schema
        What the table holds, from `describe`.
    seed
        Other seeds give other parts.
    test, val
        Shares of all rows. With `test_rows`, the others are split in the proportion of training to `val`.
    test_rows
        Rows that are the test part for every seed: an official split, or a separate file (`append`).
    whole_groups
        Whether groups are kept whole; by default their number decides.

    Returns
    -------
    Split
        Row indices, and notes on how they were chosen.

    Examples
    --------
    >>> from reweigh.bench.tables.infer import describe
    >>> frame = pl.DataFrame({"x": np.arange(50) ** 2, "y": ["no"] * 40 + ["yes"] * 10})
    >>> parts = split(frame, describe(frame, target="y"), seed=0)
    >>> [len(part) for part in (parts.train, parts.val, parts.test)]
    [30, 10, 10]
    """
    validate.fraction("test", test, "It is the share of rows to test on.", one=False)
    validate.fraction("val", val, "It is the share of rows to choose hyper-parameters on.", one=False)
    if test + val >= 1:
        raise ValueError(f"`test` and `val` must leave rows for training, got {test} and {val}.")
    dealer = _Dealer(frame, schema, seed, whole_groups)
    if test_rows is None:
        dealt = np.arange(frame.height)
        rest, held = dealer.hold_out(dealt, test, "test")
    else:
        is_test = np.zeros(frame.height, dtype=bool)
        is_test[test_rows] = True
        rest, held = np.flatnonzero(~is_test), np.flatnonzero(is_test)
        dealt = rest
    train, rest = dealer.hold_out(rest, val / (1 - test), "val")
    for part, rows in (("training", train), ("validation", rest), ("test", held)):
        if not len(rows):
            raise TableError(f"the {part} part has no rows. Give a larger table, or another split.")
    if schema.task != "regression" and len(np.unique(dealer.strata[train])) < 2:
        raise TableError("the training part has only one class. Give a larger table, or another split.")
    return Split(train, rest, held, dealer.notes(dealt))


def folds(frame: pl.DataFrame, schema: Schema, *, seed: int, count: int) -> Array | None:
    """The fold that each row is tested in; None where rows are split by time, or where there are too few groups.

    Classes (for regression, tenths of the target) and few large groups are spread evenly over the folds; many small
    groups are kept whole. Each fold as the `test_rows` of `split` tests every row once.

    Parameters
    ----------
    frame, schema
        As for `split`.
    seed
        Other seeds give other folds.
    count
        How many folds there are.
    """
    dealer = _Dealer(frame, schema, seed, None)
    rng = Seeds(seed).numpy("table-folds")
    if dealer.moments is not None:
        return None
    if dealer.groups is None:
        return draws.folds(dealer.strata, count, rng)
    if not dealer.whole:
        return draws.folds(dealer.strata * (int(dealer.groups.max()) + 1) + dealer.groups, count, rng)
    return draws.grouped_folds(dealer.groups, count, rng) if len(np.unique(dealer.groups)) >= 2 * count else None


def keeps_groups_whole(frame: pl.DataFrame, schema: Schema) -> bool:
    """Whether a split puts no group on two sides: they are many or small, such as patients or shops."""
    return schema.group is not None and _keeps_whole(_group_indices(frame, schema.group), None)


def append(frame: pl.DataFrame, test: pl.DataFrame, schema: Schema | None = None) -> tuple[pl.DataFrame, Array]:
    """A table with the rows of a test table below it, and which rows those are.

    Columns are matched by name; those only the test table has are left out. Where the two files give a column different
    types, a common one is found.

    Parameters
    ----------
    frame, test
        Two tables from `read`.
    schema
        What the first holds. The test table may lack the columns that are not used.

    Raises
    ------
    TableError
        If the test table lacks columns.
    """
    wanted = frame.columns if schema is None else schema.used
    absent = [name for name in wanted if name not in test.columns]
    if absent:
        raise TableError(
            f"the test table lacks {'columns' if len(absent) > 1 else 'the column'} {listed(absent)} of the training "
            f"table. {near(absent[0], test.columns)}"
        )
    joined = [_joined(frame.get_column(name), test.get_column(name)) for name in wanted]
    return values.table(joined), np.arange(frame.height, frame.height + test.height)


def duplicates_across(train: pl.DataFrame, test: pl.DataFrame) -> int:
    """How many rows of the second table are also in the first, cell by cell.

    Rows are compared by a 64-bit hash: among a million rows each, a chance agreement is a one in ten million event.

    Examples
    --------
    >>> train = pl.DataFrame({"x": [1, 2, 2], "y": ["a", "b", "b"]})
    >>> duplicates_across(train, pl.DataFrame({"x": [2.0, 2.0, 1.0], "y": ["b", "b", "b"]}))
    2
    """
    both, below = append(train, test)
    usable = [column for column in both if not values.is_unusable(column)]
    if not usable or not len(below):
        return 0
    hashes = values.table(usable).hash_rows(seed=0).to_numpy()
    return int(np.isin(hashes[below], hashes[: below[0]]).sum())


def _strata(frame: pl.DataFrame, schema: Schema) -> Array:
    """A whole number for each row; rows with the same number are split alike."""
    labels = schema.labels(frame)
    if labels.null_count():
        raise TableError(
            f"{labels.null_count()} rows have no target {quoted(schema.target)}. Drop them: `schema.labelled(frame)`."
        )
    if schema.task != "regression":
        return labels.cast(pl.Int64).to_numpy()
    ranks = labels.rank("ordinal").cast(pl.Int64).to_numpy() - 1
    return ranks * min(_BINS, max(1, len(ranks) // 10)) // len(ranks)


class _Dealer:
    """What decides which part a row goes to, computed once per table."""

    def __init__(self, frame: pl.DataFrame, schema: Schema, seed: int, whole_groups: bool | None) -> None:
        self.seed = seed
        self.schema = schema
        self.strata = _strata(frame, schema)
        self.moments = None if schema.time is None else _moments(frame, schema)
        self.groups = None if schema.group is None else _group_indices(frame, schema.group)
        self.whole = self.groups is not None and _keeps_whole(self.groups, whole_groups)

    def notes(self, rows: Array) -> tuple[str, ...]:
        """Notes on how these rows, all that are split, came into their parts."""
        if self.moments is not None:
            absent = int(np.isneginf(self.moments[rows]).sum())
            return (f"{absent} rows have no {quoted(self.schema.time)} and count as the earliest.",) if absent else ()
        if self.groups is None or not self.whole:
            return ()
        return (
            f"{quoted(self.schema.group)} has {len(np.unique(self.groups[rows]))} groups: each is kept whole, so that "
            "none is on two sides of a split.",
        )

    def hold_out(self, rows: Array, fraction: float, stream: str) -> tuple[Array, Array]:
        """Some rows in two parts, the second with about this share of them."""
        stay, held = self._indices(rows, fraction, Seeds(self.seed).numpy(f"table-{stream}"))
        return rows[stay], rows[held]

    def _indices(self, rows: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
        if self.moments is not None:
            _demand_two(self.moments[rows], "--time", self.schema.time, "different moments to cut at")
            return draws.timed_split(self.moments[rows], fraction)
        if self.groups is None:
            return draws.split(self.strata[rows], fraction, rng)
        groups = self.groups[rows]
        if self.whole:
            _demand_two(groups, "--group", self.schema.group, "groups to keep some apart")
            return draws.grouped_split(groups, fraction, rng)
        return draws.split(self.strata[rows] * (int(self.groups.max()) + 1) + groups, fraction, rng)


def _demand_two(values: Array, option: str, name: str | None, what: str) -> None:
    if len(np.unique(values)) < 2:
        raise TableError(f"`{option}` names {quoted(name)}, which has too few {what}. Leave `{option}` out.")


def _group_indices(frame: pl.DataFrame, group: str) -> Array:
    """A whole number for each group; rows without a group form their own."""
    return values.words(frame.get_column(group)).rank("dense").fill_null(0).cast(pl.Int64).to_numpy()


def _keeps_whole(groups: Array, given: bool | None) -> bool:
    if given is not None:
        return given
    number = len(np.unique(groups))
    return number > FEW_GROUPS or len(groups) / number < _ROWS_A_GROUP


def _moments(frame: pl.DataFrame, schema: Schema) -> Array:
    assert schema.time is not None
    cells = frame.get_column(schema.time)
    pattern = schema.column(schema.time).pattern
    read = values.seconds(cells, pattern) if values.is_text(cells) else values.numbers(cells)
    return read.fill_null(-np.inf).to_numpy()  # without a moment: with the earliest, never in the test part


def _joined(above: pl.Series, below: pl.Series) -> pl.Series:
    if above.dtype == below.dtype:
        return pl.concat([above, below])
    if below.null_count() == len(below) or above.null_count() == len(above):
        empty = below.null_count() == len(below)
        kind = above.dtype if empty else below.dtype
        return pl.concat([above.cast(kind, strict=False), below.cast(kind, strict=False)])
    if above.dtype.is_numeric() and below.dtype.is_numeric():
        return pl.concat([above.cast(pl.Float64), below.cast(pl.Float64)])
    if above.dtype.is_temporal() and below.dtype.is_temporal():
        return pl.concat([values.dates(above), values.dates(below)]).rename(above.name)
    return pl.concat([values.words(above), values.words(below)]).rename(above.name)
