"""Rows dealt out to training, validation and test, and what the parts have in common that they should not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from reweigh import _validate as validate
from reweigh.bench import data
from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, listed, near, quoted
from reweigh.bench.tables.schema import Schema

Array = np.ndarray[Any, Any]

#: Amounts are dealt out as if each tenth of them were a class.
_BINS = 10
#: With more groups than this, or fewer rows a group, groups are taken for people or places and kept whole.
_FEW_GROUPS, _ROWS_A_GROUP = 50, 30


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
    """The rows of a table dealt out by a seed.

    Every class (for regression, every tenth of the target) has the same share in all parts. With a group column that
    names few large groups, every group of every class has; many small groups (patients, shops) are kept whole instead,
    so that none is on both sides. With a time column nothing is shuffled: the test part is the latest rows, the
    validation part the latest before them, and rows of one moment stay together; every seed then gives the same parts.

    Parameters
    ----------
    frame
        Rows that have a target: `Schema.labelled`.
    schema
        What `describe` says the table holds.
    seed
        Other seeds deal out other parts.
    test, val
        Shares of all rows. With `test_rows`, the others are dealt out in the proportion of training to `val`.
    test_rows
        Rows that are the test part whatever the seed: an official split, or a file of its own (`append`).
    whole_groups
        Whether groups are kept whole, where their number should not decide.

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
        raise TableError("the training part has one class only. Give a larger table, or another split.")
    return Split(train, rest, held, dealer.notes(dealt))


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
    """How many rows of one table are also in another, cell by cell.

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
    """A whole number for each row; rows of one number are dealt out alike."""
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
    """What decides where a row goes, worked out once for a table."""

    def __init__(self, frame: pl.DataFrame, schema: Schema, seed: int, whole_groups: bool | None) -> None:
        self.seed = seed
        self.schema = schema
        self.strata = _strata(frame, schema)
        self.moments = None if schema.time is None else _moments(frame, schema)
        self.groups = None if schema.group is None else _group_indices(frame, schema.group)
        self.whole = self.groups is not None and _keeps_whole(self.groups, whole_groups)

    def notes(self, rows: Array) -> tuple[str, ...]:
        """What to say of how these rows, all that are dealt out, came into their parts."""
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
        if self.moments is not None:
            return _latest(self.moments[rows], rows, fraction, str(self.schema.time))
        rng = _rng(self.seed, stream)
        strata = self.strata[rows]
        if self.groups is not None:
            groups = self.groups[rows]
            if self.whole:
                return _by_group(groups, rows, fraction, rng, str(self.schema.group))
            strata = strata * (int(self.groups.max()) + 1) + groups
        stay, held = data.split(strata, fraction, rng)
        return rows[stay], rows[held]


def _rng(seed: int, stream: str) -> np.random.Generator:
    from reweigh.bench.seeds import Seeds  # brings torch, for which a listing or a description should not wait

    return Seeds(seed).numpy(f"table-{stream}")


def _group_indices(frame: pl.DataFrame, group: str) -> Array:
    """A whole number for each group; rows without one are a group of their own."""
    return values.words(frame.get_column(group)).rank("dense").fill_null(0).cast(pl.Int64).to_numpy()


def _keeps_whole(groups: Array, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    number = len(np.unique(groups))
    return number > _FEW_GROUPS or len(groups) / number < _ROWS_A_GROUP


def _by_group(groups: Array, rows: Array, fraction: float, rng: np.random.Generator, name: str) -> tuple[Array, Array]:
    """Whole groups in random order until the share is reached; at least one stays and one is held out."""
    present, sizes = np.unique(groups, return_counts=True)
    if len(present) < 2:
        raise TableError(f"`--group` names {quoted(name)}, which has too few groups to keep some apart. Leave it out.")
    order = rng.permutation(len(present))
    before = np.cumsum(sizes[order]) - sizes[order]
    number = int(np.clip((before + sizes[order] / 2 < fraction * len(rows)).sum(), 1, len(present) - 1))
    is_held = np.isin(groups, present[order[:number]])
    return rows[~is_held], rows[is_held]


def _moments(frame: pl.DataFrame, schema: Schema) -> Array:
    assert schema.time is not None
    cells = frame.get_column(schema.time)
    pattern = schema.column(schema.time).pattern
    read = values.seconds(cells, pattern) if values.is_text(cells) else values.numbers(cells)
    return read.fill_null(-np.inf).to_numpy()  # without a moment: with the earliest, never in the test part


def _latest(moments: Array, rows: Array, fraction: float, name: str) -> tuple[Array, Array]:
    """Cut at the moment that leaves a share nearest to the one asked for after it."""
    distinct = np.unique(moments)
    if len(distinct) < 2:
        raise TableError(
            f"`--time` names {quoted(name)}, which has too few different moments to cut at. Leave `--time` out."
        )
    after = np.array([1.0 - np.searchsorted(np.sort(moments), distinct[1:]) / len(moments)]).ravel()
    cut = distinct[1:][np.argmin(np.abs(after - fraction))]
    is_held = moments >= cut
    return rows[~is_held], rows[is_held]


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
