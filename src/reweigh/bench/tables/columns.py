"""How each kind of column becomes numbers.

A value of a class here has been fitted on training cells and holds plain data only. `fill` writes the features of some
cells into a float32 view, so that a table is encoded a piece at a time without a second copy.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, quoted

Array = np.ndarray[Any, Any]

#: No training row of n lies more than sqrt(n) standard deviations from the mean, so this bound holds only what a
#: model has never seen anything like, and keeps it finite.
_BOUND = 1e4

#: Dates as numbers.
_PARTS = ("year", "month", "weekday", "seconds")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A number minus the training mean, over the training standard deviation; a missing one is the training median."""

    median: float
    mean: float
    deviation: float

    @classmethod
    def fit(cls, cells: Array) -> Scale:
        """From training cells in which NaN is missing. Constant and missing columns get a deviation of one."""
        known = cells[~np.isnan(cells)]
        if not len(known):
            return cls(median=0.0, mean=0.0, deviation=1.0)
        # Scaled first: the squares of large numbers, and the sum of many, are infinite.
        largest = float(np.abs(known).max()) or 1.0
        scaled = known / largest
        mean, deviation = float(scaled.mean()), float(scaled.std())
        tiny = deviation <= 1e-12 or deviation * largest == 0.0
        return cls(
            median=float(np.median(scaled)) * largest,
            mean=mean * largest,
            deviation=1.0 if tiny else deviation * largest,
        )

    def apply(self, cells: Array) -> Array:
        """Standardised cells."""
        filled = np.where(np.isnan(cells), self.median, cells)
        with np.errstate(over="ignore"):  # an infinite difference is out of bounds like any other
            return np.clip((filled - self.mean) / self.deviation, -_BOUND, _BOUND)


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """One standardised feature, and one for "missing" if any training cell was."""

    kind: ClassVar[str] = "number"
    name: str
    scale: Scale
    indicator: bool

    @classmethod
    def fit(cls, name: str, cells: pl.Series) -> NumberColumn:
        """From training cells."""
        known = _floats(values.numbers(cells))
        return cls(name=name, scale=Scale.fit(known), indicator=bool(np.isnan(known).any()))

    @classmethod
    def fit_plain(cls, name: str, numbers: Array) -> NumberColumn:
        """From training cells none of which is missing."""
        return cls(name=name, scale=Scale.fit(numbers.astype(np.float64)), indicator=False)

    def fill_plain(self, numbers: Array, out: Array) -> None:
        """Write the features of cells none of which is missing."""
        out[:, 0] = self.scale.apply(numbers.astype(np.float64))
        if self.indicator:
            out[:, 1] = 0.0

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return (self.name, *_missing(self.name, self.indicator))

    def check(self, cells: pl.Series) -> None:
        """Reject a column that holds something else."""
        if not (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
            _demand_readable(cells, values.numbers(cells), "numbers")

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        known = _floats(values.numbers(cells))
        out[:, 0] = self.scale.apply(known)
        if self.indicator:
            out[:, 1] = np.isnan(known)


@dataclass(frozen=True, kw_only=True)
class BooleanColumn:
    """0 or 1, the training share of 1 where missing, and one feature for "missing" if any training cell was."""

    kind: ClassVar[str] = "boolean"
    name: str
    share: float
    indicator: bool

    @classmethod
    def fit(cls, name: str, cells: pl.Series) -> BooleanColumn:
        """From training cells."""
        known = _floats(values.truths(cells).cast(pl.Float64))
        here = known[~np.isnan(known)]
        return cls(name=name, share=float(here.mean()) if len(here) else 0.5, indicator=len(here) < len(known))

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return (self.name, *_missing(self.name, self.indicator))

    def check(self, cells: pl.Series) -> None:
        """Reject a column that holds something else."""
        if cells.dtype != pl.Boolean:
            _demand_readable(cells, values.truths(cells), "truth values (true/false, yes/no, 1/0)")

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        known = _floats(values.truths(cells).cast(pl.Float64))
        out[:, 0] = np.where(np.isnan(known), self.share, known)
        if self.indicator:
            out[:, 1] = np.isnan(known)


@dataclass(frozen=True, kw_only=True)
class CategoryColumn:
    """One feature for each frequent level, one for the rare and unseen ones, and one for "missing" if there was any."""

    kind: ClassVar[str] = "category"
    name: str
    levels: tuple[str, ...]
    indicator: bool

    @classmethod
    def fit(cls, name: str, cells: pl.Series, most: int) -> CategoryColumn:
        """From training cells: at most `most` levels, none of which is rare."""
        words = values.words(cells)
        counts = words.drop_nulls().value_counts(name="count")
        rare = max(2, min(10, len(cells) // 200))
        common = [
            (-count, level)
            for level, count in zip(*(column.to_list() for column in counts), strict=True)
            if count >= rare
        ]
        levels = tuple(level for _, level in sorted(common)[:most])
        return cls(name=name, levels=levels, indicator=words.null_count() > 0)

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        levels = (f"{self.name} = {level}" for level in self.levels)
        return (*levels, f"{self.name} (other)", *_missing(self.name, self.indicator))

    def check(self, cells: pl.Series) -> None:
        """Any cell is a level, even if an unseen one."""

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        other = len(self.levels)
        words = values.words(cells)
        codes = words.replace_strict(list(self.levels), list(range(other)), default=other, return_dtype=pl.UInt32)
        if self.indicator:
            codes = codes.set(words.is_null(), other + 1)
        out[:] = 0.0
        out[np.arange(len(out)), codes.to_numpy()] = 1.0


@dataclass(frozen=True, kw_only=True)
class DateColumn:
    """Year, month, weekday and seconds since 1970, each standardised, and "missing" if any training cell was."""

    kind: ClassVar[str] = "date"
    name: str
    pattern: str | None
    scales: tuple[Scale, ...]
    indicator: bool

    @classmethod
    def fit(cls, name: str, cells: pl.Series, pattern: str | None) -> DateColumn:
        """From training cells."""
        parts = _date_parts(cells, pattern)
        scales = tuple(Scale.fit(part) for part in parts)
        return cls(name=name, pattern=pattern, scales=scales, indicator=bool(np.isnan(parts[0]).any()))

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return (*(f"{self.name}: {part}" for part in _PARTS), *_missing(self.name, self.indicator))

    def check(self, cells: pl.Series) -> None:
        """Reject a column that holds something else."""
        if not cells.dtype.is_temporal():
            written = f" written {self.pattern}" if self.pattern else ""
            _demand_readable(cells, values.dates(cells, self.pattern), f"dates{written}")

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        parts = _date_parts(cells, self.pattern)
        for position, (scale, part) in enumerate(zip(self.scales, parts, strict=True)):
            out[:, position] = scale.apply(part)
        if self.indicator:
            out[:, len(_PARTS)] = np.isnan(parts[0])


@dataclass(frozen=True, kw_only=True)
class TextColumn:
    r"""Words hashed into a fixed number of features, weighted by how rare they are, each row of length one.

    .. math:: x_b = \Big(1 + \ln\frac{1+n}{1+n_b}\Big) \sum_{t : h(t) = b} s(t)\,(1 + \ln c_t)

    with :math:`c_t` the count of word t in the cell, h(t) its feature and s(t) = ±1 its sign (both from a hash that is
    the same on every machine), and :math:`n_b` the number of the n training cells that have a word in feature b.
    """

    kind: ClassVar[str] = "text"
    name: str
    rarity: tuple[float, ...]

    @classmethod
    def fit(cls, name: str, cells: pl.Series, width: int, rows: int = 8192) -> TextColumn:
        """From training cells, `rows` at a time."""
        rows_with = np.zeros(width)
        for start in range(0, len(cells), rows):
            row, bucket, _ = _hashed_words(cells.slice(start, rows), width)
            rows_with += np.bincount(np.unique(row * width + bucket) % width, minlength=width)
        rarity = 1.0 + np.log((1.0 + len(cells)) / (1.0 + rows_with))
        return cls(name=name, rarity=tuple(rarity.tolist()))

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return tuple(f"{self.name}: words {bucket}" for bucket in range(len(self.rarity)))

    def check(self, cells: pl.Series) -> None:
        """Any cell is text."""

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        width = len(self.rarity)
        row, bucket, amount = _hashed_words(cells, width)
        dense = np.bincount(row * width + bucket, weights=amount, minlength=len(cells) * width).reshape(-1, width)
        dense *= np.asarray(self.rarity)
        length = np.sqrt((dense**2).sum(axis=1, keepdims=True))
        out[:] = dense / np.where(length > 0, length, 1.0)


AnyColumn = NumberColumn | BooleanColumn | CategoryColumn | DateColumn | TextColumn
_KINDS: dict[str, type[AnyColumn]] = {
    kind.kind: kind for kind in (NumberColumn, BooleanColumn, CategoryColumn, DateColumn, TextColumn)
}


def to_dict(column: AnyColumn) -> dict[str, Any]:
    """A column as plain values."""
    return {"kind": column.kind, **asdict(column)}


def from_dict(saved: Mapping[str, Any]) -> AnyColumn:
    """The inverse of `to_dict`, also after a way through JSON."""
    fields = dict(saved)
    kind = _KINDS[fields.pop("kind")]
    if "scale" in fields:
        fields["scale"] = Scale(**fields["scale"])
    if "scales" in fields:
        fields["scales"] = tuple(Scale(**scale) for scale in fields["scales"])
    arguments: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return kind(**arguments)


def _floats(series: pl.Series) -> Array:
    """Null as NaN."""
    return series.fill_null(float("nan")).to_numpy()


def _missing(name: str, indicator: bool) -> tuple[str, ...]:
    return (f"{name} (missing)",) if indicator else ()


def _demand_readable(cells: pl.Series, read: pl.Series, what: str) -> None:
    """A few odd cells count as missing; a column full of them is the wrong column."""
    filled = cells.count()
    if not filled or read.count() >= filled / 2:
        return
    odd = cells.filter(read.is_null() & cells.is_not_null())[0]
    raise TableError(
        f"the column {quoted(cells.name)} should hold {what} as in training, but most of it is something else (for "
        f"example {quoted(odd)}). Give the same columns as the model was trained on."
    )


def _date_parts(cells: pl.Series, pattern: str | None) -> list[Array]:
    moments = values.dates(cells, pattern)
    parts: Sequence[pl.Series] = (
        moments.dt.year(),
        moments.dt.month(),
        moments.dt.weekday(),
        values.seconds(moments),
    )
    return [_floats(part.cast(pl.Float64)) for part in parts]


def _hashed_words(cells: pl.Series, width: int) -> tuple[Array, Array, Array]:
    """For each different word of each cell: the row, the feature, and the signed, damped count."""
    tokens = values.words(cells).fill_null("").str.to_lowercase().str.extract_all(r"\w+")
    lengths = tokens.list.len().to_numpy()
    if not lengths.sum():
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    flat = tokens.filter(pl.Series(lengths > 0)).explode()
    pairs = pl.DataFrame({"row": np.repeat(np.arange(len(lengths)), lengths), "word": flat})
    # In order of appearance, so that words that share a feature are always added up in the same order.
    counted = pairs.group_by(["row", "word"], maintain_order=True).len("count")
    different = counted.get_column("word").unique()
    hashes = counted.get_column("word").replace_strict(
        different, [_stable_hash(word) for word in different], return_dtype=pl.UInt64
    )
    keys = hashes.to_numpy()
    sign = np.where(keys >> np.uint64(63), -1.0, 1.0)
    amount = sign * (1.0 + np.log(counted.get_column("count").to_numpy().astype(np.float64)))
    return counted.get_column("row").to_numpy(), (keys % np.uint64(width)).astype(np.int64), amount


@functools.lru_cache(maxsize=1 << 17)
def _stable_hash(word: str) -> int:
    """Unlike Python's own hash, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
