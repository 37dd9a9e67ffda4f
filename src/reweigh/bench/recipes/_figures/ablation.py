"""Accuracy against the scale and against the clip: the paper's first figure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reweigh.bench.lab.plan import BASELINE
from reweigh.bench.lab.results import ColumnResults, Figure, Results
from reweigh.bench.report import charts, svg
from reweigh.bench.report.markup import element

#: A series: by the value on the horizontal axis, the row that has it.
LabelsByValue = Mapping[float, str]


def figures(results: Results, panels: Mapping[str, Mapping[str, LabelsByValue]]) -> list[Figure]:
    """For each column, a chart for each knob, given its series by name."""
    drawn: list[Figure] = []
    for column in results.columns:
        charts_of_column = [chart for knob, series in panels.items() if (chart := _chart(column, knob, series))]
        if charts_of_column:
            drawn.append(
                Figure(
                    title=f"Accuracy against {' and '.join(panels)}, {column.name}",
                    markup=element("div", *charts_of_column, style="display: flex; flex-wrap: wrap; gap: 1em"),
                    caption="Mean over seeds in percent, each point at its own tuned learning rate; the band is one "
                    "sample deviation. The level line is plain training. Tau on a logarithmic axis.",
                )
            )
    return drawn


def _chart(column: ColumnResults, knob: str, series: Mapping[str, LabelsByValue]) -> str:
    lines = [line for name, places in series.items() if (line := _line(column, name, places)) is not None]
    baseline = column.rows.get(BASELINE)
    if not lines:
        return ""
    xs = sorted({x for line in lines for x in line.xs})
    if baseline is not None:
        level = 100 * float(np.mean(baseline.values))
        lines.insert(0, charts.Line(name="plain", role="baseline", xs=[xs[0], xs[-1]], ys=[level, level]))
    edges = [y for line in lines for y in (*line.ys, *(line.band[0] if line.band else ()))]
    edges += [y for line in lines if line.band for y in line.band[1]]
    return charts.lines(
        lines,
        title=f"Accuracy against {knob}, {column.name}",
        description="; ".join(_described(line) for line in lines) + ".",
        x_label=knob,
        y_domain=svg.padded(edges),
        x_ticks=xs,
        names=90,
        log_x=True,
    )


def _line(column: ColumnResults, name: str, places: LabelsByValue) -> charts.Line | None:
    """A series as far as its rows have finished."""
    known = {x: 100 * np.asarray(column.rows[label].values) for x, label in places.items() if label in column.rows}
    if len(known) < 2:
        return None
    xs = sorted(known)
    means = [float(known[x].mean()) for x in xs]
    deviations = [float(known[x].std(ddof=1)) if len(known[x]) > 1 else 0.0 for x in xs]
    return charts.Line(
        name=name,
        role="primary" if name.startswith(("tau = 1", "gamma = 1/")) else "second",
        xs=xs,
        ys=means,
        band=([m - d for m, d in zip(means, deviations, strict=True)],
              [m + d for m, d in zip(means, deviations, strict=True)]),
        tips=[f"{name}: {x:g}, {m:.2f} ± {d:.2f}" for x, m, d in zip(xs, means, deviations, strict=True)],
    )  # fmt: skip


def _described(line: charts.Line) -> str:
    return f"{line.name}: " + ", ".join(f"{x:g} {y:.2f}" for x, y in zip(line.xs, line.ys, strict=True))
