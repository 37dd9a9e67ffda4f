"""Text in the CSV files that the bench writes: what a spreadsheet would run as a formula is marked as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

#: How a cell begins that spreadsheets may run; the last four are the wide forms of East Asian keyboards.
_PATTERN = r"^[=+\-@\t\r\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
_STARTS = re.compile("[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20]")


def harmless(text: str) -> str:
    """The text with a `'` in front if a spreadsheet would run it.

    Examples
    --------
    >>> harmless("=HYPERLINK(A1)"), harmless("clerk")
    ("'=HYPERLINK(A1)", 'clerk')
    """
    return f"'{text}" if _STARTS.match(text) else text


def harmless_table(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with harmless text cells and column names; numbers are left as they are."""
    import polars as pl

    cells = pl.col(pl.String)
    marked = pl.when(cells.str.contains(_PATTERN)).then(pl.lit("'") + cells).otherwise(cells)
    names = {name: harmless(name) for name in frame.columns}
    return frame.with_columns(marked.name.keep()).rename({old: new for old, new in names.items() if old != new})
