"""Accuracy class by class, from head to tail: the baseline against the primary row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench import plan
from reweigh.bench.report.svg import element
from reweigh.bench.results import CellResults, Outcome, Results, Row

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
    """One cell."""

    name: str
    lines: Sequence[ClassLine]


def classes(results: Results) -> list[ClassPanel]:
    """A panel for each cell whose runs recorded the accuracy of each class."""
    panels: list[ClassPanel] = []
    for cell in results.cells:
        plain, ours = cell.rows.get(plan.BASELINE), cell.rows.get(results.table.primary)
        if plain and ours and _recorded(plain) and _recorded(ours):
            panels.append(ClassPanel(name=cell.cell.name, lines=_lines(cell, plain, ours)))
    return panels


def _recorded(row: Row) -> bool:
    return all(_METRIC in o.records[o.chosen] for o in row.outcomes.values())


def _lines(cell: CellResults, plain: Row, ours: Row) -> list[ClassLine]:
    first = next(iter(plain.outcomes.values()))
    base, primary = (np.mean([o.records[o.chosen][_METRIC] for o in row.outcomes.values()], 0) for row in (plain, ours))
    order = _head_to_tail(first, len(base))
    names = _recorded_list(first, "class_names") or [f"class {i}" for i in range(len(base))]
    if len(order) <= _MOST_CLASSES:
        return [_line(str(names[i]), float(base[i]), float(primary[i])) for i in order]
    parts = np.array_split(np.asarray(order), _GROUPS)
    places = np.cumsum([0, *map(len, parts)])
    return [
        _line(f"classes {places[k] + 1}–{places[k + 1]}", float(base[part].mean()), float(primary[part].mean()))
        for k, part in enumerate(parts)
    ]


def _head_to_tail(outcome: Outcome, count: int) -> list[int]:
    """Classes by their number of training examples where it was recorded, else in their own order."""
    counts = _recorded_list(outcome, "class_counts") or [0] * count
    return sorted(range(count), key=lambda i: -counts[i])


def _recorded_list(outcome: Outcome, name: str) -> list[Any] | None:
    return next((record[name] for record in outcome.records if name in record), None)


def _line(name: str, base: float, primary: float) -> ClassLine:
    left, right = f"{100 * base:.1f} %", f"{100 * primary:.1f} %"
    at = [f"{1.5 + 97 * value:.2f}%" for value in (base, primary)]
    mark = element(
        "svg",
        element("title", f"{name}: baseline {left}, primary {right}"),
        element("line", class_="grid", x1="1.5%", x2="98.5%", y1=9, y2=9),
        element("line", class_="link " + ("primary" if primary >= base else "loss"), x1=at[0], x2=at[1], y1=9, y2=9),
        element("circle", class_="dot hollow baseline", cx=at[0], cy=9, r=4),
        element("circle", class_="dot primary", cx=at[1], cy=9, r=4),
        class_="mark",
        height=18,
        role="img",
    )
    return ClassLine(name=name, mark=mark, baseline=left, primary=right)
