"""Tables with a target. `read` gives a `RawTable` from the bytes of its files, or from images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from reweigh.bench.catalogue.card import Loaded
from reweigh.bench.catalogue.places import Origin, contents

if TYPE_CHECKING:  # a listing reads the cards of all tables, and should not wait for polars
    import polars as pl

__all__ = ["NamedTable", "RawTable", "build", "parse"]


class RawTable(NamedTuple):
    """What a reader returns; see `NamedTable`."""

    frame: pl.DataFrame
    target: str
    test_rows: range | None = None
    val_rows: range | None = None
    notes: tuple[str, ...] = ()
    indicators: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedTable(Loaded):
    """A table loaded by name.

    Parameters
    ----------
    frame
        All rows, training and test.
    target
        The column to predict.
    test_rows, val_rows
        Positions of the rows its makers set aside, where they did.
    notes
        What to know about it before believing a result.
    indicators
        Attributes that the table has as several columns, a one in one of them: their columns, by attribute.
    """

    frame: pl.DataFrame = field(repr=False)
    target: str
    test_rows: range | None
    val_rows: range | None
    notes: tuple[str, ...]
    indicators: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def summary(self) -> str:
        """Rows and columns."""
        return f"{self.frame.height} rows with {self.frame.width - 1} columns and the target {self.target!r}"


VALUE = NamedTable


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> NamedTable:
    """A table from the bytes of its files, or from the images that are its rows."""
    table: RawTable = module.read(origin.base or contents(module, origin), **options)
    return NamedTable(
        **origin.about(name),
        sha256=origin.sha256(),
        **table._asdict(),
    )


def parse(
    content: bytes, names: Sequence[str] | None = None, *, separator: str = ",", comment: str | None = None
) -> pl.DataFrame:
    """Separated values, with the names of the columns where the file has none; blank lines are not rows.

    Cells lose the spaces around them, and columns that are numbers then become numbers.
    """
    import polars as pl

    from reweigh.bench.tables import values

    frame = pl.read_csv(
        content,
        separator=separator,
        has_header=names is None,
        new_columns=names,
        comment_prefix=comment,
        infer_schema_length=None,
    )

    def typed(column: pl.Series) -> pl.Series:
        if not values.is_text(column):
            return column
        for dtype in (pl.Int64, pl.Float64):
            numbers = column.cast(dtype, strict=False)
            if numbers.null_count() == column.null_count() < len(column):
                return numbers
        return column

    columns = [typed(values.clean(column)) for column in frame]
    return pl.DataFrame(columns).filter(~pl.all_horizontal(pl.all().is_null()))
