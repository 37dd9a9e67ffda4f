"""Learning curves: the baseline and the primary row, over epochs."""

from __future__ import annotations

from collections.abc import Callable

from reweigh.bench import plan
from reweigh.bench.report import svg
from reweigh.bench.report.numbers import looks, unit
from reweigh.bench.report.panels import Group, Panel, Series, series
from reweigh.bench.results import CellResults, Results


def curves(results: Results) -> list[Group]:
    """For each cell: what selects, what is reported, and the plain training loss."""
    names = dict.fromkeys((results.table.select, results.table.metric, "train/loss"))
    groups = [
        Group(name=cell.cell.name, panels=[p for name in names if (p := _panel(results, cell, name))])
        for cell in results.cells
    ]
    return [group for group in groups if group.panels]


def _panel(results: Results, cell: CellResults, name: str) -> Panel | None:
    found = {
        label: values
        for label in (plan.BASELINE, results.table.primary)
        if (values := series(cell.rows.get(label), name)) and len(values.epochs) > 1
    }
    if not found:
        return None
    words = {results.table.select: "validation, selects: ", results.table.metric: "test, reported: "}
    title = words.get(name, "") + _plain(name)
    means = [v for values in found.values() for v in values.mean]
    written = unit(name, means)
    return Panel(
        title=title,
        markup=lines(found, title, cell.cell.name, {k: looks(results)[k].role for k in found}, written.tick),
    )


def lines(
    found: dict[str, Series], title: str, cell: str, roles: dict[str, str], tick: Callable[[float], str]
) -> svg.Markup:
    """Series with bands, each named at its end."""
    everything = [v for values in found.values() for v in (*values.mean, *values.low, *values.high)]
    means = [v for values in found.values() for v in values.mean if v > 0]
    # A loss that falls by orders of magnitude is a flat line on a linear axis.
    log = len(means) == sum(len(v.mean) for v in found.values()) and max(means) > 40 * min(means)
    epochs = [e for values in found.values() for e in values.epochs]
    frame = svg.Frame(
        x_domain=(min(epochs), max(epochs)),
        y_domain=(min(means), max(means)) if log else svg.padded(everything),
        labels=max(24.0, 6.6 * max(len(name) for name in found) + 10) if max(map(len, found)) < 16 else 110,
        log_y=log,
    )
    marks: list[str] = []
    for name, values in found.items():
        marks.append(svg.band(frame, values.epochs, values.low, values.high, role=roles[name]))
    for name, values in found.items():
        marks.append(
            svg.line(
                frame, values.epochs, values.mean, role=roles[name], tip=f"{name}: {tick(values.mean[-1])} at the end"
            )
        )
    marks.append(svg.end_labels(frame, [(v.mean[-1], name, roles[name], None) for name, v in found.items()]))
    ends = "; ".join(f"{name} ends at {tick(values.mean[-1])}" for name, values in found.items())
    return svg.chart(
        frame,
        *marks,
        title=f"{title}, {cell}",
        description=f"Mean over seeds by epoch: {ends}.",
        x_label="epoch",
        y_format=tick,
    )


def _plain(name: str) -> str:
    part, _, rest = name.rpartition("/")
    return "plain training loss" if name == "train/loss" else f"{rest.replace('_', ' ')}" if part else name
