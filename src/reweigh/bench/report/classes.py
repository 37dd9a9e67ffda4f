"""Accuracy class by class, from head to tail: the baseline against the primary row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Outcome, Results, RowResults
from reweigh.bench.report.markup import element
from reweigh.bench.report.svg import Scale, linear_ticks

_METRIC = "test/class_accuracy"
#: More classes than this are shown as groups of neighbours.
_MOST_CLASSES = 24
_GROUPS = 12


@dataclass(frozen=True, kw_only=True)
class ClassLine:
    """One class, or a group of neighbours: its name and its two dots."""

    name: str
    mark: Markup
    baseline: str
    primary: str


@dataclass(frozen=True, kw_only=True)
class ClassPanel:
    """One column."""

    name: str
    lines: Sequence[ClassLine]
    axis: Markup


def classes(results: Results) -> list[ClassPanel]:
    """A panel for each column whose runs recorded the accuracy of each class, all on one scale."""
    accuracies: dict[str, list[tuple[str, float, float]]] = {}
    for column in results.columns:
        plain, ours = column.rows.get(plan.BASELINE), column.rows.get(results.table.primary)
        if plain and ours and _recorded(plain) and _recorded(ours):
            accuracies[column.name] = _accuracies(plain, ours)
    values = [value for lines in accuracies.values() for _, *both in lines for value in both if math.isfinite(value)]
    # Whole tens of percent around all values.
    low = math.floor(10 * min(values, default=0.0) + 1e-9) / 10
    scale = Scale(low, max(math.ceil(10 * max(values, default=1.0) - 1e-9) / 10, low + 0.1), 2, 98)
    return [
        ClassPanel(name=name, lines=[_line(*line, scale) for line in lines], axis=_axis(scale))
        for name, lines in accuracies.items()
    ]


def _recorded(row: RowResults) -> bool:
    return all(_METRIC in o.records[o.chosen] for o in row.outcomes.values())


def _accuracies(plain: RowResults, ours: RowResults) -> list[tuple[str, float, float]]:
    """Name, baseline and primary accuracy of each class, or of groups of neighbours where classes are many."""
    first = next(iter(plain.outcomes.values()))
    base, primary = (_mean([o.records[o.chosen][_METRIC] for o in row.outcomes.values()]) for row in (plain, ours))
    order = _head_to_tail(first, len(base))
    names = _recorded_list(first, "class_names") or [f"class {i}" for i in range(len(base))]
    if len(order) <= _MOST_CLASSES:
        return [(str(names[i]), float(base[i]), float(primary[i])) for i in order]
    parts = np.array_split(np.asarray(order), _GROUPS)
    places = np.cumsum([0, *map(len, parts)])
    return [
        (f"classes {places[k] + 1}–{places[k + 1]}", float(_mean(base[part])), float(_mean(primary[part])))
        for k, part in enumerate(parts)
    ]


def _mean(values: Any) -> np.ndarray[Any, Any]:
    """The mean along the first axis without the classes that a test part lacks (NaN); NaN where all parts do."""
    array = np.asarray(values, dtype=np.float64)
    there = np.isfinite(array)
    count = np.asarray(there.sum(0))
    return np.divide(np.where(there, array, 0.0).sum(0), count, out=np.full(count.shape, np.nan), where=count > 0)


def _head_to_tail(outcome: Outcome, count: int) -> list[int]:
    """Classes by their number of training examples where it was recorded, else in their own order."""
    counts = _recorded_list(outcome, "class_counts") or [0] * count
    return sorted(range(count), key=lambda i: -counts[i])


def _recorded_list(outcome: Outcome, name: str) -> list[Any] | None:
    return next((record[name] for record in outcome.records if name in record), None)


def _line(name: str, base: float, primary: float, scale: Scale) -> ClassLine:
    left, right = (f"{100 * value:.1f}" if math.isfinite(value) else "–" for value in (base, primary))
    known = math.isfinite(base + primary)  # a class that no test part has is a line without dots
    mark = element(
        "svg",
        element("title", f"{name}: baseline {left} %, primary {right} %" if known else f"{name}: not tested"),
        element("line", class_="grid", x1="2%", x2="98%", y1=9, y2=9),
        *(_dots(base, primary, scale) if known else ()),
        class_="mark",
        height=18,
        role="img",
    )
    return ClassLine(name=name, mark=mark, baseline=left, primary=right)


def _dots(base: float, primary: float, scale: Scale) -> list[Markup]:
    at = [f"{scale(value):.2f}%" for value in (base, primary)]
    return [
        element("line", class_="link " + ("primary" if primary >= base else "loss"), x1=at[0], x2=at[1], y1=9, y2=9),
        element("circle", class_="dot hollow baseline", cx=at[0], cy=9, r=4),
        element("circle", class_="dot primary", cx=at[1], cy=9, r=4),
    ]


def _axis(scale: Scale) -> Markup:
    ticks = [
        element("text", f"{100 * value:g}", x=f"{scale(value):.2f}%", y=11, class_="tick", text_anchor="middle")
        for value in linear_ticks(scale.low, scale.high, 3)
    ]
    return element("svg", *ticks, class_="mark", height=16, aria_hidden="true")
