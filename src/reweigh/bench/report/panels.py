"""What figures are made of: panels in groups, one group a cell; and series over epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reweigh.bench.results import Row

#: Points of a line, columns of a heat map: more would only make the page heavier.
_MOST_EPOCHS = 80


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small picture and what it shows."""

    title: str
    markup: Markup


@dataclass(frozen=True, kw_only=True)
class Group:
    """The panels of one cell."""

    name: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Series:
    """A recorded number over epochs: its mean over seeds, and the sample deviation around it."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def series(row: Row | None, name: str) -> Series | None:
    """A recorded number of a row over the epochs that all its seeds have; None where none was recorded."""
    if row is None:
        return None
    runs = [outcome.records for outcome in row.outcomes.values()]
    if not all(isinstance(record.get(name), (int, float)) for records in runs for record in records):
        return None
    kept = shown_epochs(min(len(records) for records in runs))
    values = np.array([[float(records[i][name]) for i in kept] for records in runs])
    with np.errstate(invalid="ignore"):  # a diverged run: its numbers are left out of the drawing
        mean, deviation = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(kept))
    mean = np.where(np.isfinite(mean), mean, np.nan)
    if np.isnan(mean).all():
        return None
    return Series(
        epochs=[float(runs[0][i].get("epoch", i + 1)) for i in kept],
        mean=mean.tolist(),
        low=(mean - deviation).tolist(),
        high=(mean + deviation).tolist(),
    )


def shown_epochs(count: int) -> list[int]:
    """Indices of at most a page's worth of epochs, first and last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, _MOST_EPOCHS))})
