"""The power curve: how small an effect would be decided after how much more time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from scipy import stats as distributions

from reweigh.bench.compare.answer import Answer, seconds_per_split
from reweigh.bench.compare.row_scores import RowScores
from reweigh.bench.compare.search import MOST
from reweigh.bench.compare.splits import FOLDS
from reweigh.bench.lab.results import Figure, Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.report.charts import Line, for_widths, lines

#: More splits than a search runs by so many times are drawn.
_BEYOND = 2


def power(answer: Answer, results: Results, tested: RowScores | None) -> list[Figure]:
    """What the half-width of the main interval becomes with time; nothing before there is an interval."""
    decision = answer.decision
    shown = decision.best if decision.keeps_plain else decision.use
    if shown is None or shown.difference is None or shown.difference.n < 2 or shown.difference.constant:
        return []
    apart = shown.difference
    splits = sorted({apart.n, *range(FOLDS * math.ceil(apart.n / FOLDS), _BEYOND * MOST + 1, FOLDS)})
    alpha = 0.05 / (1 if apart.primary else decision.comparisons)
    halves = _half_widths(results, tested, decision.reference.key, shown.key, splits, alpha)
    if halves is None:
        halves = [_over_splits(apart, results.table.overlap, n, alpha) for n in splits]
    known = [(n, half) for n, half in zip(splits, halves, strict=True) if math.isfinite(half) and half > 0]
    if len(known) < 2:
        return []
    each = seconds_per_split(results) / max(answer.jobs, 1)
    divisor, unit_name = (60.0, "minutes") if each * (known[-1][0] - apart.n) > 180 else (1.0, "seconds")
    unit, seen = answer.unit, abs(apart.mean)
    later = [each * (n - apart.n) / divisor for n, _ in known]
    drawn = [
        Line(name="effect seen", role="baseline", xs=[later[0], later[-1]], ys=[seen, seen]),
        Line(
            name="decided from",
            role="primary",
            xs=later,
            ys=[half for _, half in known],
            tips=[f"{n} splits: {unit.value(half)}{unit.points}" for n, half in known],
        ),
    ]
    words = f"{unit.value(known[0][1])}{unit.points} now, {unit.value(known[-1][1])} after {known[-1][0]} splits"
    highest = 1.1 * max(seen, *(half for _, half in known))

    def draw(width: float, height: float, letters: int) -> Markup:
        return lines(
            drawn,
            title="The smallest effect that would be decided, over time",
            description=f"{words}; the effect seen is {unit.value(seen)}.",
            x_label=f"{unit_name} still to spend",
            y_domain=(0.0, highest),
            tick=unit.tick,
            size=(width, 0.8 * height),
            names=100,
            letters=letters,
        )

    return [
        Figure(
            title="What more time would decide",
            markup=for_widths(draw),
            caption=f"The smallest difference in {answer.metric.name} between {answer.names[shown.key]} and "
            f"{answer.names[decision.reference.key]} that would be decided, after correction for the number of "
            f"comparisons: {words}. What seeds and splits add shrinks with time; what the rows of this table allow "
            f"does not. A search ends after {MOST} splits.",
        )
    ]


def _half_widths(
    results: Results,
    tested: RowScores | None,
    plain: tuple[str, str],
    ours: tuple[str, str],
    splits: Sequence[int],
    alpha: float,
) -> list[float] | None:
    if tested is None:
        return None
    columns = {column.name: column for column in results.columns}
    outcomes = [columns[model].rows[label].outcomes for model, label in (ours, plain)]
    rounds = [max(math.ceil(n / FOLDS), 1) for n in splits]
    return tested.half_widths(results.table.metric, *outcomes, rounds=rounds, alpha=alpha)


def _over_splits(apart: Difference, overlap: float, n: int, alpha: float) -> float:
    return float(distributions.t.ppf(1 - alpha / 2, n - 1)) * apart.sd * math.sqrt(1 / n + overlap)
