"""The declared comparison and its scale controls once more, at the last epoch: what the choice of epochs cannot touch.

A small validation set chooses noisily, and noise in the choice hides differences; a test at the last epoch has none.
It is shown beside the chosen epoch, and never instead of it.
"""

from __future__ import annotations

import math

from reweigh.bench import plan
from reweigh.bench.report.verdict import Control
from reweigh.bench.results import CellResults, Results, difference
from reweigh.bench.stats import Difference


def last_epoch(results: Results) -> dict[str, Control]:
    """By cell, the four differences at the last epoch; without the cells where the last epoch is always chosen."""
    primary = results.table.primary
    found: dict[str, Control] = {}
    for cell in results.cells:
        main = [cell.rows[label] for label in (primary, plan.BASELINE) if label in cell.rows]
        chosen_earlier = any(o.chosen < len(o.records) - 1 for row in main for o in row.outcomes.values())
        against_plain = _between(results, cell, primary, plan.BASELINE)
        if chosen_earlier and against_plain is not None:
            found[cell.cell.name] = Control(
                cell=cell.cell.name,
                primary=against_plain,
                normalised=_between(results, cell, plan.NORMALISED, plan.BASELINE),
                scaled=_between(results, cell, plan.SCALED_BASELINE, plan.BASELINE),
                beyond=_between(results, cell, primary, plan.SCALED_BASELINE),
            )
    return found


def _between(results: Results, cell: CellResults, ours: str, theirs: str) -> Difference | None:
    """Two rows of a cell at the last epoch, on the seeds where both are finite."""
    if ours not in cell.rows or theirs not in cell.rows:
        return None
    first, second = cell.rows[ours].outcomes, cell.rows[theirs].outcomes
    seeds = [s for s in sorted(set(first) & set(second)) if math.isfinite(first[s].last + second[s].last)]
    if len(seeds) < 2:
        return None
    return difference(results.table, [first[s].last for s in seeds], [second[s].last for s in seeds])
