"""A table as a matrix: fitted on the training rows alone, kept as plain data, the same in every process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from reweigh import _validate as validate
from reweigh.bench.tables import columns as kinds
from reweigh.bench.tables import values
from reweigh.bench.tables.columns import AnyColumn, Array, CategoryColumn, StandardScaling
from reweigh.bench.tables.errors import TableError, listed, near, quoted
from reweigh.bench.tables.saved import restored
from reweigh.bench.tables.schema import ColumnSchema, Schema, class_indices

#: Raised by one whenever the meaning of a saved encoder changes.
FORMAT = 2

#: Rows encoded at a time: enough for NumPy to be busy, few enough that wide text stays small.
_PIECE = 8192


@dataclass(frozen=True, kw_only=True)
class ClassTarget:
    """Class names as indices."""

    name: str
    classes: tuple[str, ...]

    def transform(self, cells: pl.Series) -> Array:
        """Class indices, int64."""
        indices = class_indices(cells, self.classes)
        if indices.null_count():
            odd = cells.filter(indices.is_null())[0]
            what = "is missing" if odd is None else f"has the unknown class {quoted(odd)}"
            raise TableError(
                f"the target {quoted(self.name)} {what} in {indices.null_count()} of {len(cells)} rows; known are "
                f"{listed(self.classes)}. Drop those rows."
            )
        return indices.cast(pl.Int64).to_numpy()

    def inverse(self, encoded: Array) -> Array:
        """Class names of indices."""
        return np.array(self.classes, dtype=object)[np.asarray(encoded, dtype=np.int64)]


@dataclass(frozen=True, kw_only=True)
class NumberTarget:
    """A number minus the training mean, over the training standard deviation, so that losses have a scale."""

    name: str
    mean: float
    deviation: float

    def transform(self, cells: pl.Series) -> Array:
        """Standardised numbers, float32."""
        numbers = values.numbers(cells)
        if numbers.null_count():
            raise TableError(
                f"the target {quoted(self.name)} is not a number in {numbers.null_count()} of {len(cells)} rows. Drop "
                "those rows."
            )
        return ((numbers.to_numpy() - self.mean) / self.deviation).astype(np.float32)

    def inverse(self, encoded: Array) -> Array:
        """Numbers in the target's own unit, float64."""
        return np.asarray(encoded, dtype=np.float64) * self.deviation + self.mean


@dataclass(frozen=True, kw_only=True)
class TableEncoder:
    """Turns a table into a float32 matrix, as learnt from training rows.

    Numbers are filled with the median and standardised, categories become one feature for each frequent level and one
    for all others, truth values 0 and 1, dates year, month, weekday and seconds, free text the main directions of
    its words, weighted by rarity. Columns with gaps in training get a feature for that. No other row is used.

    Parameters
    ----------
    columns
        One fitted column for each the model sees.
    target
        The fitted target.

    Examples
    --------
    >>> from reweigh.bench.tables.infer import describe
    >>> frame = pl.DataFrame({"age": [30.0, 50.0] * 20, "city": ["Rom", "Bonn"] * 20, "y": [1, 0] * 20})
    >>> encoder = TableEncoder.fit(frame, describe(frame, target="y"))
    >>> encoder.features
    ('age', 'city = Bonn', 'city = Rom', 'city (other)')
    >>> encoder.transform(pl.DataFrame({"city": ["Paris"], "age": [None]})).tolist()
    [[0.0, 0.0, 0.0, 1.0]]
    """

    columns: tuple[AnyColumn, ...]
    target: ClassTarget | NumberTarget

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        schema: Schema,
        rows: Array | None = None,
        *,
        levels: int = 32,
        words: int = 64,
        memory: int = 800_000_000,
        read: dict[str, Array] | None = None,
    ) -> TableEncoder:
        """An encoder from training rows.

        Parameters
        ----------
        frame
            A table.
        schema
            What it holds, from `describe`.
        rows
            Indices of the training rows; all of them unless given.
        levels
            Levels of a category that get their own feature, at most. Rare levels never do.
        words
            Features of a column of free text.
        memory
            Bytes that the encoded training rows may take: `levels` and `words` are halved until they do.
        read
            The columns of numbers of this very table that were read before, and where those are put that are read now:
            many encoders of one table need to read them once.
        """
        validate.whole("levels", levels, 1)
        validate.whole("words", words, 1)
        height = frame.height if rows is None else len(rows)
        if not height:
            raise TableError("there are no training rows to fit the encoder on. Give a larger table.")

        def cells(name: str) -> pl.Series:
            return _some(frame.get_column(name), rows)

        fitted: dict[str, AnyColumn] = {}
        for column in schema.features:
            if column.kind == "number":
                numbers = _numbers(frame.get_column(column.name), read)
                fitted[column.name] = kinds.NumberColumn.fit(column.name, numbers if rows is None else numbers[rows])
            elif column.kind != "text":
                fitted[column.name] = _fit(column, cells(column.name), levels)
        texts = [column.name for column in schema.features if column.kind == "text"]
        levels, words = _within(fitted.values(), len(texts), levels, words, memory // (4 * height))
        for name, column in fitted.items():
            if isinstance(column, CategoryColumn):
                fitted[name] = CategoryColumn(name=name, levels=column.levels[:levels], indicator=column.indicator)
        for name in texts:
            fitted[name] = kinds.TextColumn.fit(name, cells(name), words)
        return cls(
            columns=tuple(fitted[column.name] for column in schema.features),
            target=_fit_target(schema, cells(schema.target)),
        )

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature. Names of columns and levels are the user's own text."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(len(column.features) for column in self.columns)

    def transform(
        self,
        frame: pl.DataFrame,
        rows: Array | None = None,
        *,
        out: Array | None = None,
        read: dict[str, Array] | None = None,
    ) -> Array:
        """The features of a table as a float32 matrix.

        Parameters
        ----------
        frame
            A table with the columns of training, in any order; others are left alone.
        rows
            Indices of the rows wanted; all of them unless given. The table itself is not copied.
        out
            Where to write, if not into a new matrix.
        read
            As for `fit`.

        Raises
        ------
        TableError
            If columns are missing or hold something other than in training. Levels not seen in training are "other".
        """
        self._check(frame, read or {})
        height = frame.height if rows is None else len(rows)
        out = np.empty((height, self.width), dtype=np.float32) if out is None else out
        sources = [
            _numbers(frame.get_column(column.name), read)
            if isinstance(column, kinds.NumberColumn)
            else frame.get_column(column.name)
            for column in self.columns
        ]
        for top in range(0, height, _PIECE):
            bottom = min(top + _PIECE, height)
            wanted = slice(top, bottom) if rows is None else rows[top:bottom]
            start = 0
            for column, source in zip(self.columns, sources, strict=True):
                # All columns of a piece before the next: the piece stays in the cache.
                stop = start + len(column.features)
                place = out[top:bottom, start:stop]
                if isinstance(column, kinds.NumberColumn):
                    assert isinstance(source, np.ndarray)
                    column.fill(source[wanted], place)
                else:
                    assert isinstance(source, pl.Series)
                    column.fill(source[wanted] if isinstance(wanted, slice) else source.gather(wanted), place)
                start = stop
        return out

    def transform_target(self, frame: pl.DataFrame, rows: Array | None = None) -> Array:
        """The targets: class indices (int64) or standardised numbers (float32)."""
        if self.target.name not in frame.columns:
            raise TableError(
                f"the table has no column {quoted(self.target.name)} with the target. "
                f"{near(self.target.name, frame.columns)}"
            )
        return self.target.transform(_some(frame.get_column(self.target.name), rows))

    def inverse_target(self, encoded: Array) -> Array:
        """Class names of class indices, or numbers in the target's own unit."""
        return self.target.inverse(encoded)

    def _check(self, frame: pl.DataFrame, read: Collection[str]) -> None:
        here = set(frame.columns)
        absent = [column.name for column in self.columns if column.name not in here]
        if absent:
            what = f"column {quoted(absent[0])}" if len(absent) == 1 else f"{len(absent)} columns {listed(absent)}"
            raise TableError(
                f"the table lacks the {what} that the model was trained on. {near(absent[0], frame.columns)}"
            )
        for column in self.columns:
            if column.name not in read:
                column.check(frame.get_column(column.name))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in which every float comes back as it was."""
        target = self.target
        if isinstance(target, ClassTarget):
            saved: dict[str, Any] = {"name": target.name, "classes": list(target.classes)}
        else:
            saved = {"name": target.name, "mean": target.mean, "deviation": target.deviation}
        return {"format": FORMAT, "columns": [kinds.to_dict(column) for column in self.columns], "target": saved}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TableEncoder:
        """The inverse of `to_dict`."""
        if saved.get("format") != FORMAT:
            raise TableError(
                f"the encoder was written in format {saved.get('format')!r}, and this version reads {FORMAT}. Train "
                "the model again, or use the version it was made with."
            )
        kind = ClassTarget if "classes" in saved["target"] else NumberTarget
        columns = tuple(kinds.from_dict(column) for column in saved["columns"])
        return cls(columns=columns, target=restored(kind, saved["target"]))


def _numbers(cells: pl.Series, read: dict[str, Array] | None) -> Array:
    """A column of numbers, read if it was not read before."""
    if read is None:
        return kinds.NumberColumn.read(cells)
    if cells.name not in read:
        read[cells.name] = kinds.NumberColumn.read(cells)
    return read[cells.name]


def _some(cells: pl.Series, rows: Array | None) -> pl.Series:
    return cells if rows is None else cells.gather(rows)


def _fit(column: ColumnSchema, cells: pl.Series, levels: int) -> AnyColumn:
    if column.kind == "boolean":
        return kinds.BooleanColumn.fit(column.name, cells)
    if column.kind == "date":
        return kinds.DateColumn.fit(column.name, cells, column.pattern)
    return CategoryColumn.fit(column.name, cells, levels)


def _fit_target(schema: Schema, cells: pl.Series) -> ClassTarget | NumberTarget:
    if schema.task != "regression":
        return ClassTarget(name=schema.target, classes=schema.classes)
    scale = StandardScaling.fit(values.numbers(cells).drop_nulls().to_numpy())
    return NumberTarget(name=schema.target, mean=scale.mean, deviation=scale.deviation)


def _within(fitted: Collection[AnyColumn], texts: int, levels: int, words: int, width: int) -> tuple[int, int]:
    """Levels and words small enough for this many features in all, if possible."""

    def needed() -> int:
        total = texts * words
        for column in fitted:
            spare = max(len(column.levels) - levels, 0) if isinstance(column, CategoryColumn) else 0
            total += len(column.features) - spare
        return total

    while needed() > width and (levels > 2 or words > 16):
        levels, words = max(levels // 2, min(levels, 2)), max(words // 2, min(words, 16))
    return levels, words
