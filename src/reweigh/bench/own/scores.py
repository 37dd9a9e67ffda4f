"""A file of scores as values: one training per row, wide or long, also as trackers export them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from reweigh.bench.errors import UserError
from reweigh.bench.registry import near
from reweigh.bench.tables import read

#: The one data set where a file names none.
ONLY = "all runs"
#: Columns of a long file: the name of a score, and its value.
_LONG = ("metric", "value")


@dataclass(frozen=True, kw_only=True)
class TrainingScore:
    """The score of one training; a file without seeds has None."""

    data: str
    method: str
    seed: str | None
    value: float


def read_scores(
    given: Path | pl.DataFrame, *, metric: str, method: str = "method", seed: str = "seed", data: str = ""
) -> list[TrainingScore]:
    """The scores of a file or a frame.

    Parameters
    ----------
    given
        A CSV, TSV or Parquet file, or a frame. Wide files have a column per score, long ones the columns `metric` and
        `value`.
    metric
        The score to judge by: a column of a wide file, a value of `metric` in a long one.
    method, seed, data
        Columns with the method, the seed and the data set. A column of a tracker's export is found by its last part:
        `config.method` of Weights & Biases and `params.method` of MLflow are both `method`.
    """
    frame = given if isinstance(given, pl.DataFrame) else read(given, least=2)
    long = all(any(_last(name) == part for name in frame.columns) for part in _LONG) and _find(frame, metric) is None
    if long:
        kept = frame.filter(pl.col(_column(frame, "metric")).cast(pl.String) == metric)
        if not kept.height:
            known = frame[_column(frame, "metric")].cast(pl.String).unique().sort().to_list()
            raise UserError(f"no row has the metric {metric!r}. {near(metric, [str(name) for name in known])}")
        frame, values = kept, _column(kept, "value")
    else:
        values = _column(frame, metric)
    methods = _column(frame, method)
    seeds = _find(frame, seed)
    sets = _column(frame, data) if data else _find(frame, "dataset") or _find(frame, "data_set")
    scores = [
        TrainingScore(
            data=ONLY if sets is None else str(row[sets]),
            method=str(row[methods]),
            seed=None if seeds is None else str(row[seeds]),
            value=_number(row[values], values, number),
        )
        for number, row in enumerate(frame.iter_rows(named=True), 2)
        if row[values] is not None and row[methods] is not None
    ]
    if seeds is not None:
        _refuse_repeated(scores)
    return scores


def _number(value: Any, column: str, row: int) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"column {column!r} must hold numbers, got {value!r} in row {row}.") from None
    if not math.isfinite(number):
        raise UserError(f"column {column!r} has {value!r} in row {row}: leave diverged trainings out, and say so.")
    return number


def _refuse_repeated(scores: Sequence[TrainingScore]) -> None:
    seen: set[tuple[str, str, str | None]] = set()
    for score in scores:
        key = (score.data, score.method, score.seed)
        if key in seen:
            where = "" if score.data == ONLY else f" on {score.data}"
            raise UserError(
                f"{score.method!r} has two scores for seed {score.seed}{where}. "
                "Keep one row per training, such as its last epoch; name the column of data sets with `--data`, if "
                "there is one."
            )
        seen.add(key)


def _column(frame: pl.DataFrame, wanted: str) -> str:
    column = _find(frame, wanted)
    if column is None:
        raise UserError(f"there is no column {wanted!r}. {near(wanted, frame.columns)}")
    return column


def _find(frame: pl.DataFrame, wanted: str) -> str | None:
    """The column of this name, or the only one that ends in it."""
    if wanted in frame.columns:
        return wanted
    ending = [name for name in frame.columns if _last(name) == wanted.lower()]
    return ending[0] if len(ending) == 1 else None


def _last(name: str) -> str:
    return name.replace("/", ".").rpartition(".")[2].strip().lower()
