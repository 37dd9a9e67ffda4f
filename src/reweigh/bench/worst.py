"""The worst share of a fixed pool of tasks: how badly a model does where it does badly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

#: The shares of the pool that are reported, in percent.
PERCENT = (10, 20, 30, 40, 50)


class Interval(NamedTuple):
    """A mean over so many tasks, and half the width of its 95 % Student-t interval."""

    mean: float
    half: float
    tasks: int


def worst(
    scores: Sequence[float] | np.ndarray[Any, Any], percent: float = 100.0, *, smallest: bool = False
) -> Interval:
    r"""The mean score of the worst tasks, :math:`\lfloor \mathrm{percent} \cdot n / 100 \rfloor` of them.

    Parameters
    ----------
    scores
        One score a task.
    percent
        Which share of the tasks; 100 takes all.
    smallest
        Whether less is better, as for losses: then the worst are the largest.

    Examples
    --------
    >>> found = worst([0.9, 0.2, 0.8, 1.0, 0.6], 40)
    >>> round(found.mean, 6), found.tasks
    (0.4, 2)

    Notes
    -----
    The interval is over tasks of one trained model: it says how well the pool tells the model's score, and nothing
    about what another training would give.
    """
    ordered = np.sort(np.asarray(scores, np.float64))
    count = int(percent * len(ordered) // 100)
    if not 1 <= count <= len(ordered):
        raise ValueError(f"`percent` must leave at least one of {len(ordered)} tasks and at most all, got {percent!r}.")
    chosen = ordered[-count:] if smallest else ordered[:count]
    mean = float(chosen.mean())
    if count < 2:
        return Interval(mean, float("inf"), count)
    error = float(chosen.std(ddof=1)) / np.sqrt(count)
    return Interval(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)
