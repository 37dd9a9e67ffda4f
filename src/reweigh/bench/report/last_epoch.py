"""The declared comparison and its scale controls once more, at the last epoch: what the choice of epochs cannot touch.

A small validation set chooses noisily, and noise in the choice hides differences; a test at the last epoch has none.
It is shown beside the chosen epoch, and never instead of it.
"""

from __future__ import annotations

import functools

from reweigh.bench import plan
from reweigh.bench.report.verdict import Control, between
from reweigh.bench.results import Results


def last_epoch(results: Results) -> dict[str, Control]:
    """By cell, the four differences at the last epoch; without the cells where the last epoch is always chosen."""
    primary = results.table.primary
    found: dict[str, Control] = {}
    for cell in results.cells:
        main = [cell.rows[label] for label in (primary, plan.BASELINE) if label in cell.rows]
        chosen_earlier = any(o.chosen < len(o.records) - 1 for row in main for o in row.outcomes.values())
        at_the_last = functools.partial(between, results.table, cell, last=True)
        against_plain = at_the_last(primary, plan.BASELINE)
        if chosen_earlier and against_plain is not None and against_plain.n > 1:
            found[cell.cell.name] = Control(
                cell=cell.cell.name,
                primary=against_plain,
                normalised=at_the_last(plan.NORMALISED, plan.BASELINE),
                scaled=at_the_last(plan.SCALED_BASELINE, plan.BASELINE),
                beyond=at_the_last(primary, plan.SCALED_BASELINE),
            )
    return found
