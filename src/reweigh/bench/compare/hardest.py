"""The rows a model finds hardest, with their losses and weights through training."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.rows_shown import hardest_of, height, out_of_sample, taken_for
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.files import write_atomically
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.suspects import Ranking, suspects
from reweigh.bench.spreadsheet import harmless_table
from reweigh.method import method

Array = np.ndarray[Any, Any]

#: Moments of training whose losses and weights are written down.
MOMENTS = 8
#: Rows that are written at most.
MOST = 1000


def trajectories(problem: Problem, runs: Sequence[Run]) -> Array:
    """The mean loss of every row at every epoch over the splits that trained on it; NaN where none did."""
    total = count = None
    for run in runs:
        if not run.has_array("loss_trajectory"):
            continue
        losses = run.array("loss_trajectory").astype(np.float32)
        rows = parts_of(problem, run.spec.seed).train
        if total is None or count is None:
            total = np.zeros((len(losses), height(problem)), np.float32)
            count = np.zeros_like(total)
        seen = np.isfinite(losses)
        total[:, rows] += np.where(seen, losses, 0.0)
        count[:, rows] += seen
    if total is None or count is None:
        return np.full((1, height(problem)), np.nan, np.float32)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def write(
    problem: Problem, runs: Sequence[Run], path: Path, *, weighed_by: str, losses: Array | None = None
) -> Ranking:
    """Write the hardest rows as CSV: what they are, the course of their loss and weight, and the row itself.

    Parameters
    ----------
    problem
        The data.
    runs
        Finished runs of one method on several splits.
    path
        The file to write; it is either whole or as it was before.
    weighed_by
        The method whose weights are shown; plain training's would all be one.
    losses
        What `trajectories` returns for these runs, where that is known already.
    """
    losses = trajectories(problem, runs) if losses is None else losses
    # A regression compares each row with all; classes have models that did not see a row, too.
    ranking = suspects(losses, problem.labels, probabilities=out_of_sample(problem, runs))
    worst = hardest_of(ranking, MOST)
    moments = np.unique(np.linspace(0, len(losses) - 1, MOMENTS).round().astype(int))
    weights = _weights(weighed_by, losses[moments])
    taken = taken_for(problem, runs)
    rows = {int(suspect.index): suspect for suspect in (ranking._row(int(i)) for i in worst)}  # pyright: ignore[reportPrivateUsage]
    table: dict[str, Any] = {
        "row": [problem.row_name(i) for i in worst],
        **({"taken for": [taken.get(i, "") for i in worst]} if taken else {}),
        "reason": [rows[i].reason for i in worst],
        "score": [round(rows[i].score, 4) for i in worst],
    }
    last = max(len(losses) - 1, 1)
    for name, values in (("loss", losses[moments]), ("weight", weights)):
        for k, moment in enumerate(moments):
            table[f"{name} at {moment / last:.0%}"] = [round(float(v), 4) for v in values[k, worst]]
    frame = pl.DataFrame(table)
    if problem.images is None:
        own, _ = problem.table
        frame = pl.concat(
            [frame, own[worst].rename(lambda name: f"{name} " if name in table else name)], how="horizontal"
        )
    text = io.StringIO()
    harmless_table(frame).write_csv(text)
    write_atomically(path, text.getvalue())
    return ranking


def _weights(text: str, losses: Array) -> Array:
    """The weights that losses of one moment have among each other."""
    objective = method(text).objective
    weights = np.full_like(losses, np.nan)
    for k, row in enumerate(losses):
        seen = np.isfinite(row)
        if seen.any() and not getattr(objective, "needs", ()):
            weights[k, seen] = objective.weigh(row[seen].astype(np.float64), objective.init()).weights
    return weights
