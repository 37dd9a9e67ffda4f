"""What training rows looked like, column by column, kept with a model so that new rows can be compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import listed, quoted
from reweigh.bench.tables.saved import restored
from reweigh.bench.tables.schema import FEATURES, Schema

#: The kinds of columns that have a smallest and a largest cell.
_RANGED = ("number", "date")
#: Of a column with more different names than this, which names are new is not known.
_MOST_LEVELS = 1000
#: Missing cells are worth a word if they are more by this share of rows than in training.
_MORE_MISSING = 0.1
#: Columns that are described before the rest is counted.
_MOST_LINES = 6


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """A column of the training rows: the range of its numbers or moments, its names, and the share that is missing.

    Parameters
    ----------
    name, kind, pattern
        As in the schema.
    missing
        Share of the cells.
    low, high
        The smallest and the largest number, or moment in seconds since 1970.
    levels
        The names, unless they are too many.
    """

    name: str
    kind: str
    pattern: str | None
    missing: float
    low: float | None = None
    high: float | None = None
    levels: tuple[str, ...] = ()

    def differences(self, cells: pl.Series) -> list[str]:
        """What new cells have that training cells had not."""
        known = _known(cells, self.kind, self.pattern)
        rows, differences = len(cells), list[str]()
        if self.low is not None and self.high is not None:
            outside = known.filter((known < self.low) | (known > self.high))
            if len(outside):
                seen, new = (self._span(a, b) for a, b in ((self.low, self.high), (outside.min(), outside.max())))
                differences.append(f"is outside {seen} in {_of(len(outside), rows)} ({new})")
        if self.levels:
            foreign = known.filter(~known.is_in(list(self.levels))).drop_nulls()
            if len(foreign):
                names = listed(foreign.unique().sort().to_list())
                differences.append(f"has names that training rows did not have in {_of(len(foreign), rows)} ({names})")
        missing = known.null_count() / max(rows, 1)
        if missing > self.missing + _MORE_MISSING:
            differences.append(f"is missing in {missing:.0%} of rows, {self.missing:.0%} in training")
        return differences

    def _span(self, low: Any, high: Any) -> str:
        first, last = (_moment(v) if self.kind == "date" else f"{v:.6g}" for v in (low, high))
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The columns that a model sees, as its training rows had them, and how many rows these were."""

    rows: int
    columns: tuple[ColumnProfile, ...]

    @classmethod
    def of(cls, frame: pl.DataFrame, schema: Schema) -> Profile:
        """The profile of training rows."""
        return cls(
            rows=frame.height,
            columns=tuple(
                _profile(frame.get_column(column.name), column.kind, column.pattern) for column in schema.features
            ),
        )

    def compare(self, frame: pl.DataFrame, target: str) -> str:
        """How new rows differ from training rows, in one paragraph; empty where they do not."""
        lines = [
            f"{quoted(column.name)} {' and '.join(differences)}"
            for column in self.columns
            if column.name in frame.columns and (differences := column.differences(frame.get_column(column.name)))
        ]
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], f"{len(lines) - _MOST_LINES} more columns differ"]
        known = {target, *(column.name for column in self.columns)}
        unused = [name for name in frame.columns if name not in known]
        if unused:
            lines.append(f"the model does not use {listed(unused)}")
        return f"Compared with the {self.rows} training rows: {'; '.join(lines)}." if lines else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Profile:
        """The inverse of `to_dict`, also after a way through JSON.

        Raises
        ------
        ValueError, TypeError
            If it is not a profile.
        """
        profile: Profile = restored(cls, saved)
        for column in profile.columns:
            ranged, named = column.low is not None or column.high is not None, bool(column.levels)
            if column.kind not in FEATURES or ranged > (column.kind in _RANGED) or named > (column.kind == "category"):
                raise ValueError(f"the column {quoted(column.name)} has no such profile")
        return profile


def _profile(cells: pl.Series, kind: str, pattern: str | None) -> ColumnProfile:
    known = _known(cells, kind, pattern)
    shared: dict[str, Any] = {
        "name": cells.name,
        "kind": kind,
        "pattern": pattern,
        "missing": known.null_count() / max(len(cells), 1),
    }
    if kind in _RANGED and known.count():
        low, high = known.min(), known.max()
        assert isinstance(low, float)
        assert isinstance(high, float)
        return ColumnProfile(**shared, low=low, high=high)
    levels = known.drop_nulls().unique().sort() if kind == "category" else known.clear()
    return ColumnProfile(**shared, levels=tuple(levels.to_list()) if len(levels) <= _MOST_LEVELS else ())


def _known(cells: pl.Series, kind: str, pattern: str | None) -> pl.Series:
    """The cells as the model reads them."""
    if kind == "number":
        return values.numbers(cells)
    if kind == "date":
        return values.seconds(cells, pattern)
    return values.truths(cells) if kind == "boolean" else values.words(cells)


def _of(count: int, rows: int) -> str:
    return f"{count} of {rows} row{'s' if rows != 1 else ''}"


def _moment(seconds: float) -> str:
    return str(pl.Series([seconds * 1e6]).cast(pl.Int64).cast(pl.Datetime("us")).dt.date()[0])
