"""What the page on hidden groups shows besides the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reweigh.bench.lab.results import ColumnResults, Figure, Results
from reweigh.bench.report.markup import table
from reweigh.bench.report.numbers import shown


def figures(results: Results) -> list[Figure]:
    """One table per column: every group's accuracy under every row."""
    drawn: list[Figure] = []
    for column in results.columns:
        first = next(iter(column.rows.values()), None)
        outcome = None if first is None else next(iter(first.outcomes.values()))
        if outcome is None or "group_names" not in outcome.records[0]:
            continue
        facts = outcome.records[0]
        heads = [f"{name} ({count})" for name, count in zip(facts["group_names"], facts["group_counts"], strict=True)]
        drawn.append(
            Figure(
                title=f"Every group: {column.name}",
                markup=table(["", "all, shares of training", *heads], _lines(results, column)),
                caption="Accuracy on test rows in percent, mean over seeds; in brackets the training rows of the group "
                "in the first seed. The worst group of the table above is each run's own, so its mean is below the "
                "smallest mean here.",
            )
        )
    return drawn


def _lines(results: Results, column: ColumnResults) -> Iterator[Sequence[str]]:
    for label, row in column.rows.items():
        last = [outcome.records[outcome.chosen] for outcome in row.outcomes.values()]
        everything = float(np.mean([record["test/accuracy"] for record in last]))
        by_group = np.mean([record["test/group_score"] for record in last], axis=0)
        yield [shown(results.table, label), f"{100 * everything:.1f}", *(f"{100 * value:.1f}" for value in by_group)]
