"""What the page on fine-tuning shows besides the table itself: what is learnt against what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Figure, Results, RowResults
from reweigh.bench.lab.stats import Difference
from reweigh.bench.report import svg
from reweigh.bench.report.charts import for_widths
from reweigh.bench.report.markup import Toned, table
from reweigh.bench.report.numbers import Unit, looks, short, shown
from reweigh.bench.report.plane import PlanePoint, plane

LEARNT, KEPT = "test/loss", "kept/loss"
_UNIT = Unit(scale=1.0, digits=3)
#: How many times the median difference to plain fine-tuning a row may lie away and still be drawn.
_FAR = 20.0
_AXES = ("loss on the new domain", "loss on the old domain")


def figures(results: Results) -> list[Figure]:
    """The end of training on two axes, the way there, and both numbers as a table."""
    return [figure for column in results.columns for figure in (_end(results, column), _way(results, column),
                                                                 _numbers(results, column))]  # fmt: skip


def answer(results: Results) -> Sequence[str]:
    """Which rows learn more than plain fine-tuning, which keep more, and whether any does both."""
    if not all(plan.BASELINE in column.rows for column in results.columns):
        return ("",)
    return tuple(_sentence(results, column) for column in results.columns)


def _sentence(results: Results, column: ColumnResults) -> str:
    rows = [label for label in column.rows if label != plan.BASELINE and label not in plan.CONTROLS]
    learns = [label for label in rows if _better(_difference(results, column, label, LEARNT))]
    keeps = [label for label in rows if _better(_difference(results, column, label, KEPT))]
    both = [label for label in learns if label in keeps]

    def named(labels: Sequence[str]) -> str:
        return ", ".join(shown(results.table, label) for label in labels) or "none"

    return (
        f"{column.name}: compared with plain fine-tuning, the new domain is learnt better by {named(learns)}; more of "
        f"the old one is kept by {named(keeps)}; both by {named(both)}."
    )


def _better(difference: Difference | None) -> bool:
    return difference is not None and difference.high < 0


def _difference(results: Results, column: ColumnResults, label: str, key: str) -> Difference | None:
    return results.apart(key, column.rows[label].outcomes, column.rows[plan.BASELINE].outcomes)


def _mean(row: RowResults, key: str) -> float:
    return float(np.mean([outcome.score(key) for outcome in row.outcomes.values()]))


def _far_out(column: ColumnResults) -> list[str]:
    """Rows so far from plain fine-tuning on either side that a picture with them would show nothing else."""
    if plan.BASELINE not in column.rows:
        return []
    far: set[str] = set()
    for key in (LEARNT, KEPT):
        plain = _mean(column.rows[plan.BASELINE], key)
        gaps = {
            label: abs(_mean(row, key) - plain)
            for label, row in column.rows.items()
            if label != plan.BASELINE and label not in plan.CONTROLS
        }
        far |= {label for label, gap in gaps.items() if gap > _FAR * float(np.median(list(gaps.values())))}
    return [label for label in column.rows if label in far]


def _outside(results: Results, column: ColumnResults) -> str:
    """A sentence about the rows that are not in the pictures."""
    rows = [
        f"{shown(results.table, label)} at {_mean(column.rows[label], LEARNT):.3f} on the new domain and "
        f"{_mean(column.rows[label], KEPT):.3f} on the old one"
        for label in _far_out(column)
    ]
    return f" Too far out to be drawn: {'; '.join(rows)}." if rows else ""


def _end(results: Results, column: ColumnResults) -> Figure:
    styles = looks(results)
    points = []
    for label, row in column.rows.items():
        if label in plan.CONTROLS or label in _far_out(column):
            continue
        spans = [_span(results, column, label, key) for key in (LEARNT, KEPT)]
        points.append(
            PlanePoint(
                name=styles[label].label,
                role=styles[label].role,
                at=(_mean(row, LEARNT), _mean(row, KEPT)),
                x_span=spans[0],
                y_span=spans[1],
                named=True,
            )
        )
    return Figure(
        title=f"What is learnt against what is kept, {column.name}",
        markup=plane(points, names=_AXES, units=(_UNIT, _UNIT)),
        caption="At the end of training, each row at the learning rate that the new domain's validation text chose. "
        "Left is better learnt, low is better kept. Crosses are the 95 % intervals of the paired difference to plain "
        "fine-tuning, around its number." + _outside(results, column),
    )


def _span(results: Results, column: ColumnResults, label: str, key: str) -> tuple[float, float] | None:
    if label == plan.BASELINE or plan.BASELINE not in column.rows:
        return None
    difference = _difference(results, column, label, key)
    if difference is None or not np.isfinite(difference.low + difference.high):
        return None
    plain = _mean(column.rows[plan.BASELINE], key)
    return plain + difference.low, plain + difference.high


def _way(results: Results, column: ColumnResults) -> Figure:
    """Both losses from the base model to the end of training, mean over seeds."""
    styles = looks(results)
    left_out = (*plan.CONTROLS, *_far_out(column))
    ways = {label: _path(row) for label, row in column.rows.items() if label not in left_out}
    xs, ys = ([value for way in ways.values() for value in way[axis]] for axis in (0, 1))

    def draw(width: float, height: float, letters: int) -> Markup:
        frame = svg.Frame(x_domain=svg.padded(xs), y_domain=svg.padded(ys), width=width, height=height)
        lines = [
            svg.line(frame, *way, role=styles[label].role, tip=styles[label].label, key=styles[label].key)
            for label, way in ways.items()
        ]
        return svg.chart(
            frame,
            *lines,
            title=f"{_AXES[1]} against {_AXES[0]} during training",
            description="One line per row, from the base model at the right.",
            x_label=_AXES[0],
            y_label=_AXES[1],
            x_format=short,
            y_format=short,
        )

    return Figure(
        title=f"The way there, {column.name}",
        markup=for_widths(draw),
        caption="Both losses from the base model, at the right, to the end of training, mean over seeds. A row whose "
        "line runs below another's keeps more at the same loss on the new domain." + _outside(results, column),
    )


def _path(row: RowResults) -> tuple[list[float], list[float]]:
    outcomes = list(row.outcomes.values())
    length = min(len(outcome.records) for outcome in outcomes)

    def values(name: str) -> list[float]:
        first = np.mean([outcome.records[0][f"before/{name}"] for outcome in outcomes])
        later = [np.mean([outcome.records[i][f"{name}/loss"] for outcome in outcomes]) for i in range(length)]
        return [float(value) for value in (first, *later)]

    return values("test"), values("kept")


def _numbers(results: Results, column: ColumnResults) -> Figure:
    first = next(iter(column.rows.values()))
    before = [
        float(np.mean([outcome.records[0][f"before/{name}"] for outcome in first.outcomes.values()]))
        for name in ("test", "kept")
    ]
    heads = ("", "rate", "new domain", "difference, 95 %", "old domain", "difference, 95 %")
    start = ["base model", "", f"{before[0]:.4f}", "", f"{before[1]:.4f}", ""]
    return Figure(
        title=f"Both sides, {column.name}",
        markup=table(heads, [start, *_lines(results, column)]),
        caption="Nats per token on held-out text, mean over seeds; differences to plain fine-tuning, paired by seed.",
    )


def _lines(results: Results, column: ColumnResults) -> Iterator[Sequence[str | Toned]]:
    for label, row in column.rows.items():
        line: list[str | Toned] = [shown(results.table, label), "" if row.lr is None else f"{row.lr:g}"]
        for key in (LEARNT, KEPT):
            line.append(f"{_mean(row, key):.4f}")
            same = label == plan.BASELINE or plan.BASELINE not in column.rows
            difference = None if same else _difference(results, column, label, key)
            line.append("" if difference is None else _toned(difference))
        yield line


def _toned(difference: Difference) -> Toned:
    tone = "good" if difference.high < 0 else "bad" if difference.low > 0 else "none"
    return Toned(f"{difference.mean:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]", tone)
