"""`reweigh judge`: the verdict over trainings that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reweigh.bench.cli.console import SafeConsole


def judge(
    scores: Annotated[Path, Positional, arg(metavar="SCORES")],
    /,
    metric: str,
    baseline: str = "mean",
    method: str = "method",
    seed: str = "seed",
    data: str = "",
    smallest: bool | None = None,
) -> int:
    """The verdict over trainings that exist already: paired intervals, correction, several data sets, a page.

    For example:
        reweigh judge scores.csv --metric accuracy --baseline plain
        reweigh judge wandb_export.csv --metric test/accuracy --method config.method --seed config.seed

    Args:
        scores: A CSV, TSV or Parquet file with one training per row (method, seed and scores), or long with the columns
            metric and value. Exports of Weights & Biases and MLflow work as they are.
        metric: The score to judge by.
        baseline: The method that all others are compared with.
        method: The column with the method.
        seed: The column with the seed; trainings of equal seeds are compared pairwise.
        data: The column with the data set, if there are several.
        smallest: Whether less is better; inferred from the score's name if not given.
    """
    from reweigh.bench.cli import own

    return own.judge_scores(
        scores, SafeConsole(), metric=metric, baseline=baseline, method=method, seed=seed, data=data, smallest=smallest
    )
