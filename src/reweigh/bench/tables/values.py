"""A column's cells as numbers, text, truth values or dates, whatever type the file gave them.

The type of a column may differ between the file a model was trained on and the one it predicts (a file of five rows
without a gap has integers where a longer one has floats), so cells are read by what the column *means*.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

#: Cells that mean "missing" and may also be the name of a class.
NAMES = ("None", "NA", "N/A", "n/a")
#: Cells that mean "missing", in addition to the empty one.
MISSING = ("", "?", "NA", "N/A", "n/a", "<NA>", "#N/A", "null", "NULL", "Null", "nan", "NaN", "NAN", "None")

#: How truth values are written; a column of words is one of truth values if it has both words of a pair and no other.
TRUTH = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"))

#: Ways to write a date, the unmistakable ones first. Where two read every cell, the first is taken.
DATES = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d-%b-%Y",
    "%d %b %Y",
    "%m/%d/%Y",
    "%m/%d/%Y %H:%M",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y",
    "%d/%m/%Y %H:%M",
    "%d/%m/%Y %H:%M:%S",
)

#: The years 1000 to 2999 in days since 1970: "%Y" alone would take 20-1-20 for the year 20, and a file may hold
#: moments that no calendar has.
_EARLIEST, _LATEST = -354_285, 376_200
_TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}


def table(columns: Iterable[pl.Series]) -> pl.DataFrame:
    """Columns side by side under their own names; one name may be empty, for which polars would make one up."""
    return pl.DataFrame({column.name: column for column in columns})


def is_text(series: pl.Series) -> bool:
    """Whether the cells are strings."""
    return series.dtype == pl.String


def is_unusable(series: pl.Series) -> bool:
    """Whether the cells are lists, records, bytes or Python objects, which no model can use."""
    return series.dtype.is_nested() or isinstance(series.dtype, (pl.Binary, pl.Object))


def clean(series: pl.Series, *, names: bool = False) -> pl.Series:
    """A column with one notion of missing, null, and few types: strings, integers, floats, truth values, dates.

    Strings lose the white space around them; nested and binary values are left for `describe` to drop. With `names`,
    "None" and "NA" are words like others.
    """
    if isinstance(series.dtype, (pl.Categorical, pl.Enum)):
        series = series.cast(pl.String)
    dtype = series.dtype
    if isinstance(dtype, (pl.Date, pl.Datetime)):
        return _on_the_calendar(series)
    if dtype == pl.String:
        stripped = series.str.strip_chars()
        missing = [word for word in MISSING if not (names and word in NAMES)]
        return stripped.set(stripped.is_in(missing), None)
    if dtype == pl.Duration:
        return series.dt.total_microseconds() / 1e6
    if dtype == pl.Time:
        return series.cast(pl.Int64) / 1e9
    if dtype.is_decimal() or isinstance(dtype, (pl.Int128, pl.UInt64)):
        series = series.cast(pl.Float64)
    return series.set(~series.is_finite(), None) if series.dtype.is_float() else series


def numbers(series: pl.Series) -> pl.Series:
    """The cells as Float64; what is not a finite number is null."""
    if series.dtype == pl.String:
        series = series.str.strip_chars()
    elif series.dtype.is_temporal():
        return seconds(series)
    elif not (series.dtype.is_numeric() or series.dtype == pl.Boolean):
        return pl.Series(series.name, [None] * len(series), dtype=pl.Float64)
    values = series.cast(pl.Float64, strict=False)
    return values.set(~values.is_finite(), None)


_PLAIN = (pl.Float32, pl.Float64, pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


def plain_numbers(series: pl.Series) -> np.ndarray[Any, Any] | None:
    """The cells of a column as they lie in memory, without a copy; None unless all of them are finite numbers.

    A table of thousands of columns is read column by column for every split: `numbers` costs much more than a view.
    """
    if not isinstance(series.dtype, _PLAIN) or series.null_count() or series.n_chunks() != 1:
        return None
    numbers = series.to_numpy(allow_copy=False)
    return None if series.dtype.is_float() and not np.isfinite(numbers).all() else numbers


def words(series: pl.Series) -> pl.Series:
    """The cells as strings, the same for 3, 3.0 and "3"; missing ones stay null.

    Examples
    --------
    >>> words(pl.Series([3.0, 2.5, None])).to_list(), words(pl.Series([3, None])).to_list()
    (['3', '2.5', None], ['3', None])
    """
    if series.dtype.is_float():
        series = series.set(~series.is_finite(), None)
        whole = series.cast(pl.Int64, strict=False)
        as_whole = (whole.cast(pl.Float64) == series).fill_null(False)
        return whole.cast(pl.String).zip_with(as_whole, series.cast(pl.String))
    if series.dtype == pl.String:
        return clean(series, names=True)  # what means "missing" was decided when the table was read
    if is_unusable(series):
        return pl.Series(series.name, [None] * len(series), dtype=pl.String)
    return series.cast(pl.String)


def truths(series: pl.Series) -> pl.Series:
    """The cells as truth values; anything else is null."""
    if series.dtype == pl.Boolean:
        return series
    if series.dtype.is_numeric():
        return (series == 1).set((series != 0) & (series != 1), None)
    yes, no = (["1", "1.0"], ["0", "0.0"])
    lowered = words(series).str.to_lowercase()
    return lowered.replace_strict(
        [*(pair[0] for pair in TRUTH), *yes, *(pair[1] for pair in TRUTH), *no],
        [True] * (len(TRUTH) + 2) + [False] * (len(TRUTH) + 2),
        default=None,
        return_dtype=pl.Boolean,
    )


def dates(series: pl.Series, pattern: str | None = None) -> pl.Series:
    """The cells as moments in UTC; strings are read by `pattern`, and what does not follow it is null."""
    if series.dtype == pl.String:
        if pattern is None:
            return pl.Series(series.name, [None] * len(series), dtype=pl.Datetime("us"))
        series = _parsed(series, pattern)
    elif not isinstance(series.dtype, (pl.Date, pl.Datetime)):
        return pl.Series(series.name, [None] * len(series), dtype=pl.Datetime("us"))
    series = _on_the_calendar(series)
    if isinstance(series.dtype, pl.Datetime) and series.dtype.time_zone:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return series.cast(pl.Datetime("us"))


def seconds(moments: pl.Series, pattern: str | None = None) -> pl.Series:
    """Seconds since 1970 as Float64."""
    return dates(moments, pattern).dt.epoch("us").cast(pl.Float64) / 1e6


def date_patterns(series: pl.Series, share: float) -> list[str]:
    """The ways to write a date that read at least this share of a column of strings, the best first."""
    filled = series.drop_nulls()
    sample = filled.head(200)
    candidates = [p for p in DATES if dates(sample, p).count() >= share * len(sample)] if len(sample) else []
    if not candidates:
        return []
    read = {pattern: dates(filled, pattern).count() for pattern in candidates}
    enough = [pattern for pattern in candidates if read[pattern] >= share * len(filled)]
    return sorted(enough, key=lambda pattern: -read[pattern])


def _on_the_calendar(series: pl.Series) -> pl.Series:
    """Dates and moments outside four-digit years as missing; compared as numbers, because polars stops at some."""
    a_day = 1 if series.dtype == pl.Date else 86_400 * _TICKS[getattr(series.dtype, "time_unit", "us")]
    count = series.to_physical()
    return series.set((count < _EARLIEST * a_day) | (count >= _LATEST * a_day), None)


def _parsed(series: pl.Series, pattern: str) -> pl.Series:
    if "%H" in pattern:
        return series.str.to_datetime(pattern, strict=False, time_unit="us", exact=True)
    return series.str.to_date(pattern, strict=False, exact=True)
