"""What a recipe asks, as a value: its rows, its columns, its metric and the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A column of the table: a setting of the experiment, and the paper's figures for it.

    Parameters
    ----------
    name
        The column's head.
    settings
        Which settings differ from the preset.
    paper
        The paper's figure for each row, in the table's unit; rows it does not have are left out.
    stand_in
        What the data stands in for, if it is not the paper's own.
    """

    name: str
    settings: Mapping[str, Any]
    paper: Mapping[str, float] = field(default_factory=dict[str, float])
    stand_in: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """The plan of an experiment and of its report.

    Parameters
    ----------
    title, question
        What a reader sees first.
    cells
        The columns.
    methods
        The rows, as method texts. The baseline `mean` is always among them, and the two scale controls are added.
    metric
        The recorded number that is reported, and `metric_name` what it is called.
    select
        The recorded validation number that chooses epochs and hyper-parameters; the rule is its largest value, or
        its smallest with `smallest=True`.
    primary
        The row whose comparison with the baseline is declared beforehand.
    seeds, trials
        Paired seeds, and tuning trials of every method.
    smallest
        Whether less is better.
    as_written
        Whether tuning keeps the rows' hyper-parameters as they are written and tries learning rates only.
    notes
        What departs from the paper, for the page.
    """

    title: str
    question: str
    cells: tuple[Cell, ...]
    methods: tuple[str, ...]
    metric: str
    metric_name: str
    select: str
    primary: str = "rgd"
    seeds: int = 5
    trials: int = 5
    smallest: bool = False
    as_written: bool = False
    notes: tuple[str, ...] = ()

    @property
    def rule(self) -> str:
        """The selection rule in words."""
        return f"{'smallest' if self.smallest else 'largest'} {self.select}, earliest epoch on ties"

    def best(self, values: list[float]) -> int:
        """The index the rule chooses; NaN never wins."""
        sign = -1.0 if self.smallest else 1.0
        ranked = [sign * v if v == v else float("-inf") for v in values]
        return max(range(len(ranked)), key=lambda i: ranked[i])
