"""What a file of this folder makes of its bytes, and how bytes without a header become a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from reweigh.bench.tables import values


class Table(NamedTuple):
    """A table, its target, and the rows its makers set aside."""

    frame: pl.DataFrame
    target: str
    test_rows: range | None = None
    val_rows: range | None = None
    notes: tuple[str, ...] = ()


def parse(
    content: bytes, names: Sequence[str] | None = None, *, separator: str = ",", comment: str | None = None
) -> pl.DataFrame:
    """Separated values, with the names of the columns where the file has none; blank lines are no rows.

    Cells lose the spaces around them, and columns that are numbers then become numbers.
    """
    frame = pl.read_csv(
        content,
        separator=separator,
        has_header=names is None,
        new_columns=names,
        comment_prefix=comment,
        infer_schema_length=None,
    )
    columns = [_typed(values.clean(column)) for column in frame]
    return pl.DataFrame(columns).filter(~pl.all_horizontal(pl.all().is_null()))


def _typed(column: pl.Series) -> pl.Series:
    if not values.is_text(column):
        return column
    for dtype in (pl.Int64, pl.Float64):
        numbers = column.cast(dtype, strict=False)
        if numbers.null_count() == column.null_count() < len(column):
            return numbers
    return column
