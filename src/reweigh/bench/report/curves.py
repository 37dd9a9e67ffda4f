"""Learning curves: the baseline and the primary row, over epochs."""

from __future__ import annotations

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.report.charts import Group, Panel, over_epochs, series
from reweigh.bench.report.numbers import looks, unit

#: What only says how far a training is: a rule that selects the end has nothing to draw.
_CLOCKS = ("step", "progress", "remaining")


def curves(results: Results) -> list[Group]:
    """For each column: what selects, what is reported, and the plain training loss."""
    names = [n for n in (results.table.select, results.table.metric, "train/loss") if n not in _CLOCKS]
    groups = [
        Group(name=column.name, panels=[p for name in dict.fromkeys(names) if (p := _panel(results, column, name))])
        for column in results.columns
    ]
    return [group for group in groups if group.panels]


def _panel(results: Results, column: ColumnResults, name: str) -> Panel | None:
    recorded = {
        label: values
        for label in (plan.BASELINE, results.table.primary)
        if (values := series(column.rows.get(label), name)) and len(values.epochs) > 1
    }
    if not recorded:
        return None
    uses = {results.table.select: ", selects", results.table.metric: ", reported"}
    title = _plain(name) + uses.get(name, "")
    means = [v for values in recorded.values() for v in values.mean]
    roles = {label: looks(results)[label].role for label in recorded}
    return Panel(title=title, markup=over_epochs(recorded, f"{title}, {column.name}", roles, unit(name, means).tick))


def _plain(name: str) -> str:
    """`val/balanced_accuracy` as words."""
    part, _, rest = name.rpartition("/")
    if name == "train/loss":
        return "plain training loss"
    parts = {"val": "validation ", "test": "test ", "train": "training "}
    return parts.get(part, f"{part} " if part else "") + rest.replace("_", " ")
