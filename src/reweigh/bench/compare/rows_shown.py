"""The hardest rows on the page: where they lie among all rows, what is in them, and what a model takes them for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.lab.results import Figure
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.suspects import Ranking
from reweigh.bench.report import svg
from reweigh.bench.report.charts import for_widths
from reweigh.bench.report.markup import element, picture, table

Array = np.ndarray[Any, Any]

#: Rows that are shown; cells of each, letters of a cell, and the width of a thumbnail.
SHOWN = 12
_CELLS, _LETTERS, _SIDE = 8, 40, 64
#: Rows to look at where none stands out.
_AT_LEAST = 20
#: Columns and lines of the map.
_BINS = 36
#: Rows above this share of all ranks stay out of the map's frame.
_CUT = 99.5


def rows_shown(ranking: Ranking, problem: Problem, losses: Array, runs: Sequence[Run]) -> list[Figure]:
    """The map of all rows and the hardest of them.

    Parameters
    ----------
    ranking
        All rows, the hardest first.
    problem
        The data.
    losses
        The loss of every row at every epoch, `(epochs, rows)`; NaN for rows that were never trained on.
    runs
        Runs that tested the rows without training on them.
    """
    worst = hardest_of(ranking, SHOWN)
    figures = [_table(ranking, problem, worst, taken_for(problem, runs))]
    drawn = _map(losses, worst, problem)
    return [drawn, *figures] if drawn is not None else figures


def hardest_of(ranking: Ranking, most: int) -> list[int]:
    """The first rows of a ranking that training has seen; those with the largest late losses where none stands out."""
    standing_out = [int(i) for i in ranking.order[:most] if ranking.kind[i] not in ("ordinary", "never seen")]
    if standing_out:
        return standing_out
    late = np.nan_to_num(ranking.loss, nan=-np.inf)
    return [int(i) for i in np.argsort(-late, kind="stable")[: min(most, _AT_LEAST)] if ranking.kind[i] != "never seen"]


def height(problem: Problem) -> int:
    """How many rows the data have, those included that a problem draws its rows from."""
    return len(problem.images.y) if problem.images is not None else problem.table[0].height


def taken_for(problem: Problem, runs: Sequence[Run]) -> dict[int, str]:
    """What models that did not see a row in training take it for: the class with the largest mean probability."""
    chances = out_of_sample(problem, runs)
    if chances is None:
        return {}
    best = chances.argmax(1)
    return {
        int(i): f"{problem.classes[best[i]]} ({100 * chances[i, best[i]]:.0f} %)"
        for i in np.flatnonzero(np.isfinite(chances[:, 0]))
    }


def out_of_sample(problem: Problem, runs: Sequence[Run]) -> Array | None:
    """Mean probabilities of every class for every row by models that did not see it; NaN where there are none."""
    if problem.regression:
        return None
    total = np.zeros((height(problem), len(problem.classes)))
    for run in runs:
        if run.has_array("test_outputs"):
            outputs = run.array("test_outputs").astype(np.float64)
            chances = np.exp(outputs - outputs.max(1, keepdims=True))
            total[parts_of(problem, run.spec.seed).test] += chances / chances.sum(1, keepdims=True)
    times = total.sum(1, keepdims=True)
    return np.where(times > 0, total / np.maximum(times, 1e-12), np.nan)


def _table(ranking: Ranking, problem: Problem, worst: Sequence[int], taken: dict[int, str]) -> Figure:
    labels = problem.labels
    rows: list[list[str]] = []
    for i in worst:
        given = "" if labels is None else problem.classes[labels[i]]
        loss = f"{ranking.loss[i]:.2g}, median {ranking.class_median[i]:.2g}"
        entries = [str(problem.row_name(i)), given, taken.get(i, ""), loss, _contents(problem, i)]
        rows.append(entries if labels is not None else [entries[0], *entries[3:]])
    heads = ["row", "its class", "taken for", "late loss", "what is in it"]
    counted = "" if problem.images is not None else "Rows are numbered as in the table, from 1 below its header. "
    return Figure(
        title="The hardest rows",
        markup=table(heads if labels is not None else [heads[0], *heads[3:]], rows, label="Hardest rows")
        or Markup("<p>No row was trained on.</p>"),
        caption=f"{_sorted_by(ranking)} A wrong label, a missing column and a rare case look alike here: look at them "
        "before you change or drop any. "
        + ("" if labels is None else "Taken for: by models that did not see the row in training. ")
        + f"{counted}The file hardest.csv has more of them, with the course of loss and weight.",
    )


def _sorted_by(ranking: Ranking) -> str:
    if ranking.wrong is None:
        return "Their loss stays farthest above that of their class through training."
    called, of = int(ranking.wrong.called.sum()), int((ranking.kind != "never seen").sum())
    return (
        "Their labels were believed least, by the model in training and by models that did not see them. By both, "
        + (f"{called:,} of {of:,} labels may well be wrong." if called else "no label stands out as wrong.")
    )


def _contents(problem: Problem, row: int) -> Markup | str:
    """A thumbnail, or the first cells of a row."""
    shown = thumbnail(problem, row)
    if shown is not None:
        return shown
    if problem.images is not None:
        return ""
    frame, schema = problem.table
    names = [column.name for column in schema.features][:_CELLS]
    more = len(schema.features) - len(names)
    cells = [
        element("span", element("b", f"{_short(name)} "), _short(_cell(value)), class_="cell")
        for name, value in zip(names, frame.select(names).row(row), strict=True)
    ]
    rest = [element("span", f"… {more} more", class_="cell quiet")] if more else []
    return element("div", *cells, *rest, class_="cells")


def thumbnail(problem: Problem, row: int) -> Markup | None:
    """The image that a row is; None for a row that is not one, or without Pillow."""
    if find_spec("PIL") is None:
        return None
    pixels = _photo(problem, row) if problem.images is not None else problem.picture(row)
    if pixels is None:
        return None
    shades = 16 if pixels.ndim == 2 else 128
    if pixels.ndim == 2:  # embedded digits count from 0 to 16
        pixels = 255 - (255.0 * pixels / max(int(pixels.max()), 1)).astype(np.uint8)
    style = f"width: {_SIDE}px; height: auto; image-rendering: {'pixelated' if pixels.shape[0] < _SIDE else 'auto'}"
    return picture(pixels, colours=shades, alt=f"row {problem.row_name(row)}", style=style)


def _photo(problem: Problem, row: int) -> Array | None:
    """A photo, small; what is in memory where its file is gone."""
    from PIL import Image

    assert problem.images is not None
    try:
        with Image.open(problem.images.paths[row]) as photo:
            photo.thumbnail((2 * _SIDE, 2 * _SIDE))
            return np.asarray(photo.convert("RGB"))
    except OSError:
        return problem.picture(row)


def _map(losses: Array, worst: Sequence[int], problem: Problem) -> Figure | None:
    """Mean loss against its variation over epochs: all rows as shades, the hardest as dots."""
    losses = losses.astype(np.float64)
    seen = np.isfinite(losses).sum(0) > 1
    if len(losses) < 2 or not seen.any():
        return None
    mean, spread = np.full((2, losses.shape[1]), np.nan)
    mean[seen], spread[seen] = np.nanmean(losses[:, seen], axis=0), np.nanstd(losses[:, seen], axis=0)
    right = max(float(np.percentile(spread[seen], _CUT)), *(float(spread[i]) for i in worst), 1e-6)
    top = max(float(np.percentile(mean[seen], _CUT)), *(float(mean[i]) for i in worst), 1e-6)
    if not math.isfinite(right + top):
        return None
    counts, x_edges, y_edges = np.histogram2d(
        spread[seen], mean[seen], bins=_BINS, range=((0.0, 1.02 * right), (0.0, 1.02 * top))
    )
    shares = np.log1p(counts) / max(float(np.log1p(counts).max()), 1e-12)
    tips = [f"row {problem.row_name(i)}: mean loss {mean[i]:.2g}, variation {spread[i]:.2g}" for i in worst]

    def draw(width: float, height: float, letters: int) -> Markup:
        frame = svg.Frame(x_domain=(0.0, x_edges[-1]), y_domain=(0.0, y_edges[-1]), width=width, height=height)
        heat = svg.shades(frame, x_edges.tolist(), y_edges.tolist(), shares)
        dots = svg.dots(
            frame, [float(spread[i]) for i in worst], [float(mean[i]) for i in worst], role="scaled", tips=tips
        )
        return svg.chart(
            frame,
            heat,
            dots,
            title="Mean loss of each row against its variation over training",
            description=f"{int(seen.sum())} rows; " + "; ".join(tips) + ".",
            x_label="variation of its loss over training",
            y_label="mean loss",
        )

    return Figure(
        title="All rows on a map",
        markup=for_widths(draw),
        caption="Each row by its mean loss over training and how much that varied; darker is more rows, on a "
        "logarithmic scale. Easy rows are at the bottom left, rows that are learnt late at the right, rows that are "
        "never learnt at the top. Dots are the hardest rows, listed below.",
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
