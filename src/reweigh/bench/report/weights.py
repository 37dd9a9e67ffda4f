"""What the weights of the primary row did: their distribution, how many were clipped, and who got them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np

from reweigh.bench.lab.results import ColumnResults, Results, RowResults
from reweigh.bench.lab.runs import Record
from reweigh.bench.report import svg
from reweigh.bench.report.charts import Group, Panel, Series, over_epochs, series, shown_epochs

_BINS = 24


def weights(results: Results) -> list[Group]:
    """For each column: distribution over epochs, mean weight, clip share, clean against noisy."""
    groups: list[Group] = []
    for column in results.columns:
        row = column.rows.get(results.table.primary)
        if row is not None:
            panels = [_distribution(row, column), _mean(row, column), _shares(row, column)]
            groups.append(Group(name=column.name, panels=[panel for panel in panels if panel]))
    return [group for group in groups if group.panels]


def _distribution(row: RowResults, column: ColumnResults) -> Panel | None:
    runs = [outcome.records for outcome in row.outcomes.values()]
    kept = shown_epochs(min(len(records) for records in runs))
    chosen = [[records[i] for i in kept] for records in runs]
    flat = [record for records in chosen for record in records]
    if len(kept) < 2 or not all("weights/histogram" in record for record in flat):
        return None
    low = min(float(record["weights/min"]) for record in flat)
    high = max(float(record["weights/max"]) for record in flat)
    if not (high > low and math.isfinite(high - low)):
        return None
    edges = np.linspace(low, high, _BINS + 1)
    shares = np.mean([[_rebinned(record, edges) for record in records] for records in chosen], axis=0)
    epochs = [float(record.get("epoch", i + 1)) for i, record in zip(kept, chosen[0], strict=True)]
    frame = svg.Frame(x_domain=(epochs[0], epochs[-1]), y_domain=(low, high))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(epochs)]
    # A square root keeps the thin tail visible next to the bulk at the smallest weight.
    heat = svg.shades(frame, [epochs[0], *middles, epochs[-1]], edges.tolist(), np.sqrt(shares / shares.max()))
    title = "distribution of weights"
    last = f"Share of training examples by weight, from {low:.3g} to {high:.3g}; darker is more."
    return Panel(
        title=title,
        markup=svg.chart(
            frame,
            heat,
            title=f"{title}, {column.name}",
            description=last,
            x_label="epoch",
            x_ticks=svg.whole_ticks(frame),
            y_format="{:.3g}".format,
        ),
    )


def _rebinned(record: Record, edges: np.ndarray) -> np.ndarray:
    """An epoch's histogram, which spans its own range, as shares on the common edges."""
    counts = np.asarray(record["weights/histogram"], np.float64)
    low, high = float(record["weights/min"]), float(record["weights/max"])
    own = np.linspace(low, max(high, low + 1e-9 * max(1.0, abs(low))), len(counts) + 1)
    below = np.concatenate([[0.0], np.cumsum(counts)]) / max(counts.sum(), 1.0)
    return np.diff(np.interp(edges, own, below))


def _mean(row: RowResults, column: ColumnResults) -> Panel | None:
    everyone = {"all": series(row, "weights/mean")}
    noise = {"noisy": series(row, "weights/noisy"), "clean": series(row, "weights/clean")}
    recorded = any(noise.values())
    title = "mean weight of noisy, of clean and of all examples" if recorded else "mean weight"
    return _panel(title, column, {**noise, **everyone} if recorded else everyone, "{:.4g}".format)


def _shares(row: RowResults, column: ColumnResults) -> Panel | None:
    shares = {"clipped": series(row, "weights/clip_share"), "ESS": series(row, "weights/ess_share")}
    title = "shares: clipped, effective sample size (ESS)"
    return _panel(title, column, shares, lambda share: f"{100 * share:.3g} %", within=(0.0, 1.0))


_ROLES = {"all": "primary", "noisy": "noisy", "clean": "clean", "clipped": "primary", "ESS": "second"}


def _panel(
    title: str,
    column: ColumnResults,
    recorded: Mapping[str, Series | None],
    tick: Callable[[float], str],
    *,
    within: tuple[float, float] | None = None,
) -> Panel | None:
    shown = {name: values for name, values in recorded.items() if values and len(values.epochs) > 1}
    if not shown:
        return None
    return Panel(title=title, markup=over_epochs(shown, f"{title}, {column.name}", _ROLES, tick, within=within))
