"""What a recipe asks, as a value: its rows, its columns, its metric and the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: Parts of the names of metrics that are shares of one.
_SHARES = ("accuracy", "auc", "f1", "recall", "precision", "error_rate", "score", "worst_group")


def is_share(metric: str, values: Iterable[float]) -> bool:
    """Whether numbers of a metric are shares of one, which are written in percent; the paper's are."""
    is_share = any(share in metric.rpartition("/")[2] for share in _SHARES)
    return is_share and all(0 <= v <= 1 for v in values if math.isfinite(v))


@dataclass(frozen=True, kw_only=True)
class Column:
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
    methods, seeds, trials, controls
        The table's own unless given: a column that costs more may have fewer.
    overlap
        As the table's, where the seeds of this column alone are splits of one data set.
    trouble
        What is wrong with the training data: `"rare classes"`, `"hidden groups"`, `"wrong labels"` or `"none"`; empty
        where the column is no part of the overview.
    model
        The kind of model, in words.
    """

    name: str
    settings: Mapping[str, Any]
    paper: Mapping[str, float] = field(default_factory=dict[str, float])
    stand_in: str | None = None
    methods: tuple[str, ...] | None = None
    seeds: int | None = None
    trials: int | None = None
    controls: bool | None = None
    overlap: float = 0.0
    trouble: str = ""
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What a page concludes from: two rows in some settings, declared before the runs.

    Parameters
    ----------
    ours, theirs
        The rows; the table's primary one and plain training if empty.
    columns
        Beginnings of the names of the settings; all of them if empty.
    averaged
        Whether the mean over the settings is the endpoint, and not each of them.
    gain
        The paper's gain, in the unit of its figures; where it is not given, the difference of its figures.
    worth
        The smallest effect worth having, in the same unit.
    """

    ours: str = ""
    theirs: str = ""
    columns: tuple[str, ...] = ()
    averaged: bool = False
    gain: float | None = None
    worth: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a row is made whose label is not simply the text of a method.

    Parameters
    ----------
    method
        The method's text.
    settings
        Which settings differ from those of the column: the recipe's algorithm, for example, and its learning rate.
    select
        The validation number that chooses this row's hyper-parameters, where it is not the table's.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    select: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The plan of an experiment and of its report.

    Parameters
    ----------
    title, question
        What a reader sees first.
    columns
        The columns.
    methods
        The rows, as method texts. The baseline `mean` is always among them, and the two scale controls are added.
    rows
        What the rows stand for whose label is not the text of their method, by label.
    metric
        The recorded number that is reported, and `metric_name` what it is called.
    select
        The recorded validation number that chooses hyper-parameters; the rule is its largest value, or its smallest
        with `smallest=True`. Empty where epochs and settings were chosen elsewhere.
    epoch
        Which epoch of a run counts: `"last"`, for trainings whose learning rate is annealed, or `"best"`, the one that
        `select` chooses, for protocols that stop early. See `benchmarks/epochs.py` for why the last one is the default.
    primary
        The row whose comparison with the baseline is declared beforehand.
    seeds, trials
        Paired seeds, and learning rates that every method is tuned over, crossed with as many settings of its own
        hyper-parameters. From three on each trial is done on three seeds; two rates on one seed are a try, not a
        tuning, and one rate is none.
    smallest
        Whether less is better.
    as_written
        Whether tuning keeps the rows' hyper-parameters as they are written and tries learning rates only.
    controls
        Whether the scale controls run; False only where a factor on the loss cannot matter.
    overlap
        The rows that each seed tests on over the rows it trains on, where seeds are splits of *one* data set: their
        training rows overlap, and the intervals are corrected for it. 0 where seeds are independent.
    draws
        The setting that counts tuning trials, where the recipe draws hyper-parameters itself: 0 takes them as written,
        every other number is a random draw of its own. The learning rate is then the recipe's to draw as well.
    refit
        Settings that the comparison changes after tuning: with `{"validation": 0.0}` rows are chosen on held-out
        examples and then trained on all of them. Runs that record nothing to choose by are reported at their end;
        methods that correct outputs after training are left as they are, since held-out examples fit the correction.
    notes
        What departs from the paper, for the page.
    names
        What readers call rows whose label is not their name, by label.
    endpoint
        What the page concludes from, where that was declared; without it a page opens with its verdict.
    """

    title: str
    question: str
    columns: tuple[Column, ...]
    methods: tuple[str, ...]
    metric: str
    metric_name: str
    select: str
    epoch: Literal["last", "best"] = "last"
    primary: str = "rgd"
    seeds: int = 5
    trials: int = 5
    smallest: bool = False
    as_written: bool = False
    controls: bool = True
    overlap: float = 0.0
    draws: str = ""
    refit: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    rows: Mapping[str, Row] = field(default_factory=dict[str, Row])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    endpoint: Endpoint | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Table:
        """The inverse of `dataclasses.asdict`, also of what JSON made of it."""
        plain = with_tuples(values)
        columns = tuple(Column(**column) for column in plain.pop("columns"))
        rows = {label: Row(**row) for label, row in plain.pop("rows", {}).items()}
        declared = plain.pop("endpoint", None)
        endpoint = None if declared is None else Endpoint(**declared)
        return cls(**plain, columns=columns, rows=rows, endpoint=endpoint)

    def methods_of(self, column: Column) -> tuple[str, ...]:
        """The rows of one column."""
        return self.methods if column.methods is None else column.methods

    def row(self, label: str) -> Row:
        """What the row of this label stands for: itself, unless the table says otherwise."""
        return self.rows.get(label) or Row(method=label)

    def seeds_of(self, column: Column) -> int:
        """The paired seeds of one column."""
        return self.seeds if column.seeds is None else column.seeds

    def trials_of(self, column: Column) -> int:
        """The learning rates that every row of one column is tuned over."""
        return self.trials if column.trials is None else column.trials

    def tuning_seeds_of(self, column: Column) -> int:
        """The seeds of every tuning trial of one column, over which trials are averaged."""
        return 3 if self.trials_of(column) > 2 else 1

    def controls_of(self, column: Column) -> bool:
        """Whether the scale controls of one column run."""
        return self.controls if column.controls is None else column.controls

    def overlap_of(self, name: str) -> float:
        """The overlap of the splits of one column, by its name."""
        return next((column.overlap for column in self.columns if column.name == name), 0.0) or self.overlap

    @property
    def criterion(self) -> str:
        """What chooses hyper-parameters, in words; nothing where they were chosen elsewhere."""
        if not self.select:
            return ""
        own = [select for row in self.rows.values() if (select := row.select) and select != self.select]
        others = f" (of some rows, {' or '.join(dict.fromkeys(own))})" if own else ""
        return f"{'smallest' if self.smallest else 'largest'} {self.select}{others}"

    @property
    def rule(self) -> str:
        """Which epoch is reported, in words."""
        if not self.select:
            return "as the trainings were reported"
        last = self.epoch == "last"
        which = "at the last epoch" if last else f"at the epoch with the {self.criterion}, earliest epoch on ties"
        changes = ", ".join(f"{name} = {value:g}" for name, value in self.refit.items())
        return f"{which}, trained again with {changes} after tuning" if changes else which

    def select_of(self, label: str) -> str:
        """The validation number that chooses the hyper-parameters of a row."""
        return self.row(label).select or self.select

    def selecting(self, records: Sequence[Mapping[str, Any]], label: str = "") -> list[float]:
        """What the rule looks at, one number per record; NaN, which never wins, where a record has none."""
        return [float(record.get(self.select_of(label), float("nan"))) for record in records]

    def chosen(self, records: Sequence[Mapping[str, Any]]) -> int:
        """The index of the record that counts."""
        return len(records) - 1 if self.epoch == "last" else self.best(self.selecting(records))

    def best(self, values: list[float]) -> int:
        """The index the rule chooses; NaN never wins, and where there is nothing else the last one is taken."""
        if all(v != v for v in values):
            return len(values) - 1
        sign = -1.0 if self.smallest else 1.0
        ranked = [sign * v if v == v else float("-inf") for v in values]
        return max(range(len(ranked)), key=lambda i: ranked[i])


def with_tuples(value: Any) -> Any:
    """Plain values that were read from JSON, with the tuples that settings and tables have instead of its lists."""
    if isinstance(value, Mapping):
        return {name: with_tuples(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return tuple(with_tuples(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return value
