"""What a page concludes from an interval, in the words that were fixed before the runs.

`reports/PLAN.md` has the table. The paper's gain and the smallest effect worth having decide, not a p-value alone:
an interval around zero that is narrow enough is a result, and one that is wide is none.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as scipy_stats

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Endpoint, Table, is_share

Word = Literal[
    "confirmed",
    "smaller than in the paper",
    "smaller than worth having",
    "no difference that matters",
    "excluded",
    "undecided",
    "better",
    "worse",
]
#: The order in which a page counts them.
WORDS: tuple[Word, ...] = (
    "confirmed",
    "better",
    "smaller than in the paper",
    "smaller than worth having",
    "no difference that matters",
    "excluded",
    "worse",
    "undecided",
)
#: The chance of seeing the effect that a number of seeds is computed for.
POWER = 0.9
#: Nobody runs more, and their number need not be exact.
_MOST_SEEDS = 10**7


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The conclusion of one setting.

    Parameters
    ----------
    setting
        The column, or what several were averaged over.
    word
        What is concluded.
    difference
        Ours minus theirs, as recorded.
    gain
        The paper's gain, as recorded numbers are scaled; None where it has none.
    needed
        Where undecided, the seeds with which the gain, or the smallest effect worth having, would be seen nine times in
        ten; None where it is decided or more seeds would not help.
    stand_in
        What the data stands in for.
    """

    setting: str
    word: Word
    difference: Difference
    gain: float | None = None
    needed: int | None = None
    stand_in: str | None = None


def conclude(difference: Difference, *, gain: float | None, worth: float, smallest: bool = False) -> Word:
    """The word for an interval, given the paper's gain and the smallest effect worth having, in the same unit.

    With `smallest`, less is better, and a gain is negative.

    Examples
    --------
    >>> d = stats.paired([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])  # 2 [-0.5, 4.5]
    >>> conclude(d, gain=3.0, worth=0.5), conclude(d, gain=6.0, worth=0.5), conclude(d, gain=6.0, worth=5.0)
    ('undecided', 'excluded', 'no difference that matters')
    """
    low, high = (-difference.high, -difference.low) if smallest else (difference.low, difference.high)
    aim = None if gain is None else (-gain if smallest else gain)
    seen = difference.decisive_p < 0.05 and (low > 0 or high < 0) and difference.n > 1
    if -worth <= low and high <= worth and not (seen and low > 0):
        return "no difference that matters"
    if aim is None:
        return ("better" if low > 0 else "worse") if seen else "undecided"
    if seen and low > 0:
        if high < worth:
            return "smaller than worth having"
        if high < aim:
            return "smaller than in the paper"
        # A gain below the margin is not confirmed by an interval that also holds gains beyond the margin.
        return "confirmed" if aim >= worth else "undecided"
    return "undecided" if low <= aim <= high else "excluded"


def conclusions(results: Results) -> list[Conclusion]:
    """The conclusions of a page: one for each setting of its endpoint, or one for their mean; none without one."""
    endpoint, table = results.table.endpoint, results.table
    if endpoint is None:
        return []
    ours, theirs = rows_of(table, endpoint)
    pairs = [
        (column, difference)
        for column in results.columns
        if _chosen(endpoint, column.name) and (difference := _difference(results, column, ours, theirs)) is not None
    ]
    if not pairs:
        return []
    if endpoint.averaged:
        whole = _averaged([column for column, _ in pairs], ours, theirs)
        gain = None if endpoint.gain is None else endpoint.gain / scale_of(results)
        name = f"mean over {len(pairs)} settings"
        return [_concluded(results, endpoint, name, whole, gain, None)] if whole else []
    if (ours, theirs) != (table.primary, plan.BASELINE) and len(pairs) > 1:
        corrected = stats.holm({column.name: difference for column, difference in pairs})
        pairs = [(column, corrected[column.name]) for column, _ in pairs]
    return [
        _concluded(
            results,
            endpoint,
            column.name,
            difference,
            _gain(endpoint, scale_of(results), column, ours, theirs),
            column.column.stand_in,
        )
        for column, difference in pairs
    ]


def rows_of(table: Table, endpoint: Endpoint) -> tuple[str, str]:
    """The two rows that a page compares."""
    return endpoint.ours or table.primary, endpoint.theirs or plan.BASELINE


def scale_of(results: Results) -> float:
    """What recorded numbers are multiplied with where the paper's are in percent."""
    values = (v for column in results.columns for row in column.rows.values() for v in row.values)
    return 100.0 if is_share(results.table.metric, values) else 1.0


def _chosen(endpoint: Endpoint, name: str) -> bool:
    return not endpoint.columns or any(name.startswith(beginning) for beginning in endpoint.columns)


def _difference(results: Results, column: ColumnResults, ours: str, theirs: str) -> Difference | None:
    """The declared comparison, corrected as the page corrects it, or another pair of rows."""
    if (ours, theirs) == (results.table.primary, plan.BASELINE):
        return column.differences.get(ours)
    if ours not in column.rows or theirs not in column.rows:
        return None
    return results.apart(results.table.metric, column.rows[ours].outcomes, column.rows[theirs].outcomes, primary=True)


def _averaged(columns: Sequence[ColumnResults], ours: str, theirs: str) -> Difference | None:
    """The difference of the means over the columns, on the seeds that all of them have."""
    rows = [(column.rows[ours], column.rows[theirs]) for column in columns]
    seeds = set.intersection(*(set(row.outcomes) for pair in rows for row in pair))
    if not seeds:
        return None
    first, second = (
        [float(np.mean([pair[k].outcomes[seed].value for pair in rows])) for seed in sorted(seeds)] for k in (0, 1)
    )
    return stats.paired(first, second, primary=True)


def _gain(endpoint: Endpoint, scale: float, column: ColumnResults, ours: str, theirs: str) -> float | None:
    """The paper's gain in this column, as our numbers are recorded."""
    if endpoint.gain is not None:
        return endpoint.gain / scale
    figures = column.column.paper
    return (figures[ours] - figures[theirs]) / scale if ours in figures and theirs in figures else None


def _concluded(
    results: Results,
    endpoint: Endpoint,
    setting: str,
    difference: Difference,
    gain: float | None,
    stand_in: str | None,
) -> Conclusion:
    worth = endpoint.worth / scale_of(results)
    word = conclude(difference, gain=gain, worth=worth, smallest=results.table.smallest)
    needed = None
    if word == "undecided" and not results.table.overlap_of(setting):
        needed = seeds_to_decide(difference, gain, worth, smallest=results.table.smallest)
    return Conclusion(setting=setting, word=word, difference=difference, gain=gain, needed=needed, stand_in=stand_in)


def seeds_to_decide(difference: Difference, gain: float | None, worth: float, *, smallest: bool) -> int | None:
    """The seeds that would decide what is undecided, more than there are; None where no number is known to."""
    mean = -difference.mean if smallest else difference.mean
    width = (difference.high - difference.low) / 2
    if mean > width:  # a gain, and whether it is worth having is open: an interval so short that it ends below that
        return math.ceil(difference.n * (width / (worth - mean)) ** 2) if mean < worth else None
    # Below what is worth having, only the absence of such an effect can be shown.
    needed = seeds_needed(difference, max(abs(gain), worth) if gain else worth)
    return None if needed is None or needed <= difference.n else needed


def seeds_needed(difference: Difference, effect: float) -> int | None:
    """The seeds with which an effect of this size is seen nine times in ten, at the spread of these differences.

    Examples
    --------
    >>> d = stats.paired([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])  # a deviation of 1.29
    >>> seeds_needed(d, 1.29)  # of one deviation
    13
    """
    if difference.n < 2 or not difference.sd > 0 or not effect > 0:
        return None
    squared = (effect / difference.sd) ** 2

    def power(n: int) -> float:
        return float(scipy_stats.ncf.sf(scipy_stats.t.ppf(0.975, n - 1) ** 2, 1, n - 1, n * squared))

    enough = 2
    while power(enough) < POWER and enough < _MOST_SEEDS:
        enough *= 2
    return enough if enough == 2 else bisect.bisect_left(range(enough), POWER, lo=enough // 2, key=power)
