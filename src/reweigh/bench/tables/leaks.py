"""Columns that give the target away: worth a second look before anybody believes a score."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import quoted
from reweigh.bench.tables.schema import Schema

#: A column alone that is right in this share of rows, or ranks an amount this well, knows the answer.
_KNOWS = 0.99
#: By how much it must beat naming the most frequent class: the share of that one's errors it makes at most.
_OF_ERRORS = 0.1
#: Rows that are looked at, and columns.
_ROWS, _COLUMNS = 5_000, 500


def leaks(frame: pl.DataFrame, schema: Schema) -> list[str]:
    """A warning for each column that predicts the target nearly on its own, with the fix.

    Words are judged by the most frequent class of each word that occurs twice or more, numbers by a tree of few leaves,
    amounts by the rank correlation.
    """
    labelled = schema.labelled(frame)
    if labelled.height > _ROWS:
        labelled = labelled.sample(_ROWS, seed=0)
    labels = schema.labels(labelled).to_numpy()
    notes: list[str] = []
    for column in schema.features[:_COLUMNS]:
        cells = labelled.get_column(column.name)
        share = _of_amounts(cells, labels) if schema.task == "regression" else _of_classes(cells, labels)
        if share is not None:
            what = (
                f"is right in {100 * share:.4g} % of rows" if schema.task != "regression" else "ranks nearly all rows"
            )
            notes.append(
                f"Check {quoted(column.name)}: alone it predicts {quoted(schema.target)} and {what}. If it is only "
                f"known afterwards, or is the target in other words, leave it out: `--drop {shlex.quote(column.name)}`."
            )
    return notes


def _of_classes(cells: pl.Series, labels: np.ndarray[Any, Any]) -> float | None:
    counts = np.bincount(labels)
    common = counts.max() / len(labels)
    least = max(_KNOWS, 1 - _OF_ERRORS * (1 - common))
    if values.is_text(cells):
        codes = values.words(cells).fill_null("").rank("dense").cast(pl.Int64).to_numpy()
        table = np.zeros((codes.max() + 1, len(counts)))
        np.add.at(table, (codes, labels), 1)
        seen = table.sum(axis=1)
        share = float(table.max(axis=1)[seen > 1].sum() / len(labels))  # a word of its own says nothing
    else:
        from sklearn.tree import DecisionTreeClassifier

        numbers = values.numbers(cells).fill_null(np.nan).to_numpy()[:, None]
        if not np.isfinite(numbers).any():
            return None
        tree = DecisionTreeClassifier(max_leaf_nodes=max(4, 2 * len(counts)), min_samples_leaf=2, random_state=0)
        share = float(tree.fit(numbers, labels).score(numbers, labels))
    return share if share >= least else None


def _of_amounts(cells: pl.Series, labels: np.ndarray[Any, Any]) -> float | None:
    if values.is_text(cells):
        return None
    pairs = pl.DataFrame({"x": values.numbers(cells), "y": labels}).drop_nulls()
    if pairs.height < 20 or pairs.get_column("x").n_unique() < pairs.height / 4:
        return None
    correlation = pairs.select(pl.corr("x", "y", method="spearman")).item()
    return abs(correlation) if correlation is not None and abs(correlation) >= 0.999 else None
