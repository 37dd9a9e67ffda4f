"""Learning curves: the baseline and the primary row, over epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from reweigh.bench import plan
from reweigh.bench.report import svg
from reweigh.bench.report.numbers import looks, unit
from reweigh.bench.report.panels import Group, Panel, Series, series
from reweigh.bench.results import CellResults, Results

#: What only says how far a training is: a rule that selects the end has nothing to draw.
_CLOCKS = ("step", "progress", "remaining")


def curves(results: Results) -> list[Group]:
    """For each cell: what selects, what is reported, and the plain training loss."""
    names = [n for n in (results.table.select, results.table.metric, "train/loss") if n not in _CLOCKS]
    groups = [
        Group(name=cell.cell.name, panels=[p for name in dict.fromkeys(names) if (p := _panel(results, cell, name))])
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
    uses = {results.table.select: ", selects", results.table.metric: ", reported"}
    title = _plain(name) + uses.get(name, "")
    means = [v for values in found.values() for v in values.mean]
    roles = {label: looks(results)[label].role for label in found}
    return Panel(title=title, markup=lines(found, f"{title}, {cell.cell.name}", roles, unit(name, means).tick))


def lines(
    found: Mapping[str, Series],
    title: str,
    roles: Mapping[str, str],
    tick: Callable[[float], str],
    *,
    within: tuple[float, float] | None = None,
) -> svg.Markup:
    """Series with bands, each named at its end; numbers that have bounds are drawn on a linear axis `within` them."""
    means = [v for values in found.values() for v in values.mean if math.isfinite(v)]
    everything = means + [v for values in found.values() for v in (*values.low, *values.high)]
    # A loss that falls by orders of magnitude is a flat line on a linear axis.
    log = within is None and min(means) > 0 and max(means) > 40 * min(means)
    epochs = [e for values in found.values() for e in values.epochs]
    frame = svg.Frame(
        x_domain=(min(epochs), max(epochs)),
        y_domain=(min(means), max(means)) if log else svg.padded(everything, within=within),
        labels=16 + 6.6 * min(max(map(len, found)), 14),
        log_y=log,
    )
    bands = [svg.band(frame, v.epochs, v.low, v.high, role=roles[name]) for name, v in found.items()]
    ends = {name: f"{name} ends at {tick(values.mean[-1])}" for name, values in found.items()}
    drawn = [svg.line(frame, v.epochs, v.mean, role=roles[name], tip=ends[name]) for name, v in found.items()]
    names = svg.end_labels(frame, [(v.mean[-1], _short(name), roles[name], None) for name, v in found.items()])
    return svg.chart(
        frame,
        *bands,
        *drawn,
        names,
        title=title,
        description=f"Mean over seeds by epoch: {'; '.join(ends.values())}.",
        x_label="epoch",
        x_ticks=svg.whole_ticks(frame),
        y_format=tick,
    )


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"


def _plain(name: str) -> str:
    """`val/balanced_accuracy` as words."""
    part, _, rest = name.rpartition("/")
    if name == "train/loss":
        return "plain training loss"
    parts = {"val": "validation ", "test": "test ", "train": "training "}
    return parts.get(part, f"{part} " if part else "") + rest.replace("_", " ")
