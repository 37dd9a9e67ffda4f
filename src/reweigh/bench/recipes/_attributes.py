"""Tables with one standardised column per attribute, as MET reads them.

With one column per level of a category most cells of a row are zero: a masked autoencoder reconstructs them easily, its
loss starts near 0.2, and weights that grow with the loss are all alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl

from reweigh.bench.tables import Schema, TableError, quoted
from reweigh.bench.tables import values as cells_as
from reweigh.bench.tables.columns import StandardScaling

Array = np.ndarray[Any, Any]


def joined(frame: pl.DataFrame, indicators: Mapping[str, tuple[str, ...]]) -> pl.DataFrame:
    """The table with every group of columns of zeros and a one made a single column: which of them is one, from 1.

    Examples
    --------
    >>> joined(pl.DataFrame({"a1": [1, 0], "a2": [0, 1], "b": [5, 6]}), {"a": ("a1", "a2")}).to_dict(as_series=False)
    {'b': [5, 6], 'a': [1, 2]}
    """
    for name, group in indicators.items():
        ones = frame.select(group).to_numpy()
        if not ((ones == 0) | (ones == 1)).all() or not (ones.sum(1) == 1).all():
            raise TableError(f"the columns {quoted(group[0])} to {quoted(group[-1])} must hold one 1 in every row.")
        frame = frame.drop(group).with_columns(pl.Series(name, ones.argmax(1) + 1))
    return frame


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """Turns a table into one float32 column per attribute, as learnt from training rows.

    Numbers stay numbers, and missing ones are the median. The levels of anything else are numbered in the order of
    their names; missing cells and levels that no training row has are numbered -1. All columns are then standardised.

    Parameters
    ----------
    columns
        Name, levels and scale of each attribute; no levels for numbers.
    """

    columns: tuple[tuple[str, tuple[str, ...] | None, StandardScaling], ...]

    @classmethod
    def fit(cls, frame: pl.DataFrame, schema: Schema, rows: Array) -> Self:
        """From training rows."""
        columns: list[tuple[str, tuple[str, ...] | None, StandardScaling]] = []
        for column in schema.features:
            if column.kind == "text":
                raise TableError(f"column {quoted(column.name)} holds free text, which is not one attribute.")
            cells = frame.get_column(column.name).gather(rows)
            words = None if _is_number(cells) else cells_as.words(cells).drop_nulls().unique().to_list()
            levels = None if words is None else tuple(sorted(words))
            columns.append((column.name, levels, StandardScaling.fit(_codes(cells, levels))))
        return cls(columns=tuple(columns))

    def transform(self, frame: pl.DataFrame, rows: Array) -> Array:
        """These rows as a float32 matrix, one column per attribute."""
        out = np.empty((len(rows), len(self.columns)), np.float32)
        for k, (name, levels, scale) in enumerate(self.columns):
            out[:, k] = scale.apply(_codes(frame.get_column(name).gather(rows), levels))
        return out


def _is_number(cells: pl.Series) -> bool:
    return cells.dtype.is_numeric() or cells.dtype == pl.Boolean


def _codes(cells: pl.Series, levels: tuple[str, ...] | None) -> Array:
    """Cells as numbers: themselves, or the number of their level."""
    if levels is None:
        return cells_as.numbers(cells).cast(pl.Float64).fill_null(float("nan")).to_numpy()
    words = cells_as.words(cells)
    return words.replace_strict(list(levels), list(range(len(levels))), default=-1, return_dtype=pl.Float64).to_numpy()
