"""How each kind of column becomes numbers.

A value of a class here has been fitted on training cells and holds plain data only. `fill` writes the features of some
cells into a float32 view, so that a table is encoded a piece at a time without a second copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, quoted
from reweigh.bench.tables.saved import restored

Array = np.ndarray[Any, Any]

#: No training row of n lies more than sqrt(n) standard deviations from the mean, so this bound holds only what a
#: model has never seen anything like, and keeps it finite.
_BOUND = 1e4

#: Dates as numbers.
_PARTS = ("year", "month", "weekday", "seconds")

#: What a word is, how many different ones count, and in how many training cells they are looked for.
_WORD, _MOST_WORDS, _TEXTS_FITTED = r"\w+", 4000, 20_000


@dataclass(frozen=True, kw_only=True)
class StandardScaling:
    """A number minus the training mean, over the training standard deviation; a missing one is the training median."""

    median: float
    mean: float
    deviation: float

    @classmethod
    def fit(cls, cells: Array) -> StandardScaling:
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
    scale: StandardScaling
    indicator: bool

    @classmethod
    def fit(cls, name: str, numbers: Array) -> NumberColumn:
        """From training cells in which NaN is missing."""
        known = numbers.astype(np.float64)
        return cls(name=name, scale=StandardScaling.fit(known), indicator=bool(np.isnan(known).any()))

    @staticmethod
    def read(cells: pl.Series) -> Array:
        """Cells as numbers in which NaN is missing; those that are plain numbers are not copied."""
        plain = values.plain_numbers(cells)
        return _floats(values.numbers(cells)) if plain is None else plain

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return (self.name, *_missing(self.name, self.indicator))

    def check(self, cells: pl.Series) -> None:
        """Reject a column that holds something else."""
        if not (cells.dtype.is_numeric() or cells.dtype == pl.Boolean):
            _demand_readable(cells, values.numbers(cells), "numbers")

    def fill(self, numbers: Array, out: Array) -> None:
        """Write the features of these cells, from `read`."""
        known = numbers.astype(np.float64)
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
    scales: tuple[StandardScaling, ...]
    indicator: bool

    @classmethod
    def fit(cls, name: str, cells: pl.Series, pattern: str | None) -> DateColumn:
        """From training cells."""
        parts = _date_parts(cells, pattern)
        scales = tuple(StandardScaling.fit(part) for part in parts)
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
    r"""Words weighted by how rare they are, each row of length one, reduced to the directions that vary most.

    .. math:: x_t = (1 + \ln c_t) \Big(1 + \ln\frac{1+n}{1+n_t}\Big)

    with :math:`c_t` the count of word t in the cell and :math:`n_t` the number of the n training cells that have it;
    the vector of a cell is divided by its length. What is written are its products with the first right singular
    vectors of the training cells (latent semantic analysis), scaled so that a feature has mean square one in
    training. Where there are fewer words than features, the words themselves are the features.
    """

    kind: ClassVar[str] = "text"
    name: str
    words: tuple[str, ...]
    rarity: tuple[float, ...]
    components: tuple[tuple[float, ...], ...]

    @classmethod
    def fit(cls, name: str, cells: pl.Series, width: int) -> TextColumn:
        """From training cells: the most frequent words of at most some thousand cells, and so many features."""
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import CountVectorizer

        texts = _texts(cells.gather_every(max(1, -(-len(cells) // _TEXTS_FITTED))))
        try:
            counter = CountVectorizer(token_pattern=_WORD, max_features=_MOST_WORDS).fit(texts)
        except ValueError:  # not a single word
            return cls(name=name, words=(), rarity=(), components=())
        words = tuple(map(str, counter.get_feature_names_out()))
        counts = counter.transform(texts)
        rarity = 1.0 + np.log((1.0 + len(texts)) / (1.0 + np.bincount(counts.indices, minlength=len(words))))
        weighted = _weighted(counts, rarity)
        if len(words) <= width:
            components: Array = np.eye(len(words))
        else:
            components = np.asarray(TruncatedSVD(width, n_iter=4, random_state=0).fit(weighted).components_)
        size = np.sqrt(np.mean(np.square(weighted @ components.T)))
        components = np.round(components / max(size, 1e-12), 6)
        return cls(
            name=name, words=words, rarity=tuple(rarity.tolist()), components=tuple(map(tuple, components.tolist()))
        )

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each feature."""
        return tuple(f"{self.name}: topic {k}" for k in range(1, len(self.components) + 1))

    def check(self, cells: pl.Series) -> None:
        """Any cell is text."""

    def fill(self, cells: pl.Series, out: Array) -> None:
        """Write the features of these cells."""
        from sklearn.feature_extraction.text import CountVectorizer

        if not self.words:
            return
        counts = CountVectorizer(token_pattern=_WORD, vocabulary=self.words).transform(_texts(cells))
        out[:] = _weighted(counts, np.asarray(self.rarity)) @ np.asarray(self.components).T


AnyColumn = NumberColumn | BooleanColumn | CategoryColumn | DateColumn | TextColumn
_KINDS: dict[str, type[AnyColumn]] = {
    kind.kind: kind for kind in (NumberColumn, BooleanColumn, CategoryColumn, DateColumn, TextColumn)
}


def to_dict(column: AnyColumn) -> dict[str, Any]:
    """A column as plain values."""
    return {"kind": column.kind, **asdict(column)}


def from_dict(saved: Mapping[str, Any]) -> AnyColumn:
    """The inverse of `to_dict`, also after a way through JSON; raises `ValueError` or `TypeError` if it is not one."""
    fields = dict(saved)
    column: AnyColumn = restored(_KINDS[fields.pop("kind")], fields)
    fits = True
    if isinstance(column, CategoryColumn):
        fits = len(set(column.levels)) == len(column.levels)
    elif isinstance(column, DateColumn):
        fits = len(column.scales) == len(_PARTS) and column.pattern in (None, *values.DATES)
    elif isinstance(column, TextColumn):
        lengths = {len(column.rarity), len(set(column.words)), *map(len, column.components)}
        fits = lengths == {len(column.words)}
    if not fits:
        raise ValueError(f"the parts of the column {quoted(column.name)} do not fit each other")
    return column


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


def _texts(cells: pl.Series) -> list[str]:
    return values.words(cells).fill_null("").to_list()


def _weighted(counts: Any, rarity: Array) -> Any:
    """Counts of words, a sparse matrix, damped, weighted by rarity and divided by the length of each row."""
    weighted = counts.astype(np.float64)
    weighted.data = (1.0 + np.log(weighted.data)) * rarity[weighted.indices]
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
    weighted.data /= np.repeat(np.where(length > 0, length, 1.0), np.diff(weighted.indptr))
    return weighted
