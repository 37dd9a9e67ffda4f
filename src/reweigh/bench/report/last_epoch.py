"""The declared comparison and its scale controls at the last epoch, which no choice of epochs can affect.

A small validation set chooses noisily, and noise in the choice hides differences; a test at the last epoch has none.
It is shown with the chosen epoch, and never instead of it.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.report.verdict import Control, between


def last_epoch(results: Results) -> dict[str, Control]:
    """By column, the four differences at the last epoch; without the columns where the last epoch is always chosen."""
    primary = results.table.primary
    controls: dict[str, Control] = {}
    for column in results.columns:
        main = [column.rows[label] for label in (primary, plan.BASELINE) if label in column.rows]
        chosen_earlier = any(o.chosen < len(o.records) - 1 for row in main for o in row.outcomes.values())
        at_the_last = functools.partial(between, results, _at_the_last(column))
        against_plain = at_the_last(primary, plan.BASELINE)
        if chosen_earlier and against_plain is not None and against_plain.n > 1:
            controls[column.name] = Control(
                column=column.name,
                primary=against_plain,
                normalised=at_the_last(plan.NORMALISED, plan.BASELINE),
                scaled=at_the_last(plan.SCALED_BASELINE, plan.BASELINE),
                beyond=at_the_last(primary, plan.SCALED_BASELINE),
            )
    return controls


def _at_the_last(column: ColumnResults) -> ColumnResults:
    """The column as if the last epoch had been chosen in every run."""
    rows = {
        label: replace(row, outcomes={s: replace(o, chosen=len(o.records) - 1) for s, o in row.outcomes.items()})
        for label, row in column.rows.items()
    }
    return replace(column, rows=rows)
