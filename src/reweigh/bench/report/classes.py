"""Accuracy class by class, from head to tail: the baseline against the primary row."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Outcome, Results, RowResults
from reweigh.bench.report.charts import Panel
from reweigh.bench.report.dumbbells import Pair, dumbbells, scale_of
from reweigh.bench.report.numbers import Unit

_METRIC = "test/class_accuracy"
#: More classes than this are shown as groups of neighbours.
_MOST_CLASSES = 24
_GROUPS = 12


_UNIT = Unit(scale=100.0, digits=1, points=" points", sign=" %")


def classes(results: Results) -> list[Panel]:
    """A panel for each column whose runs recorded the accuracy of each class, all on one scale."""
    accuracies: dict[str, list[Pair]] = {}
    for column in results.columns:
        plain, ours = column.rows.get(plan.BASELINE), column.rows.get(results.table.primary)
        if plain and ours and _recorded(plain) and _recorded(ours):
            accuracies[column.name] = _accuracies(plain, ours)
    scale = scale_of([pair for pairs in accuracies.values() for pair in pairs], _UNIT)
    return [Panel(title=name, markup=dumbbells(pairs, _UNIT, scale=scale)) for name, pairs in accuracies.items()]


def _recorded(row: RowResults) -> bool:
    return all(_METRIC in o.records[o.chosen] for o in row.outcomes.values())


def _accuracies(plain: RowResults, ours: RowResults) -> list[Pair]:
    """Name, baseline and primary accuracy of each class, or of groups of neighbours where classes are many."""
    first = next(iter(plain.outcomes.values()))
    base, primary = (_mean([o.records[o.chosen][_METRIC] for o in row.outcomes.values()]) for row in (plain, ours))
    order = _head_to_tail(first, len(base))
    names = _recorded_list(first, "class_names") or [f"class {i}" for i in range(len(base))]
    if len(order) <= _MOST_CLASSES:
        return [Pair(name=str(names[i]), before=float(base[i]), after=float(primary[i])) for i in order]
    parts = np.array_split(np.asarray(order), _GROUPS)
    places = np.cumsum([0, *map(len, parts)])
    return [
        Pair(
            name=f"classes {places[k] + 1}–{places[k + 1]}",
            before=float(_mean(base[part])),
            after=float(_mean(primary[part])),
        )
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
