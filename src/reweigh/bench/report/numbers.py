"""How numbers are written: the unit of the metric, and how each method looks."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Results, row_order
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table, is_share


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A metric's unit: recorded numbers times `scale`, with so many digits."""

    scale: float
    digits: int
    points: str = ""
    sign: str = ""

    def value(self, number: float) -> str:
        """A number of the metric."""
        return f"{number * self.scale:.{self.digits}f}"

    def signed(self, number: float) -> str:
        """A difference of the metric."""
        return f"{number * self.scale:+.{self.digits}f}"

    def interval(self, difference: Difference) -> str:
        """The 95 % interval of a difference."""
        if not math.isfinite(difference.low):
            return "[?]"
        return f"[{self.signed(difference.low)}, {self.signed(difference.high)}]"

    def tick(self, number: float) -> str:
        """A number on an axis."""
        return f"{short(number * self.scale)}{self.sign}"


def unit(metric: str, values: Iterable[float]) -> Unit:
    """The unit for a metric's recorded values."""
    finite = [v for v in values if math.isfinite(v)]
    if is_share(metric, finite):
        return Unit(scale=100.0, digits=2, points=" points", sign=" %")
    typical = statistics.median([abs(v) for v in finite if v]) if any(finite) else 1.0
    return Unit(scale=1.0, digits=min(max(3 - math.floor(math.log10(typical)), 0), 6))


def unit_of(results: Results) -> Unit:
    """The unit of an experiment's metric."""
    return unit(
        results.table.metric, (v for column in results.columns for row in column.rows.values() for v in row.values)
    )


@dataclass(frozen=True, kw_only=True)
class MarkStyle:
    """How a method appears in every figure: the role that gives its colour, and a key that scripts can find."""

    label: str
    role: str
    key: str

    @property
    def main(self) -> bool:
        """Whether it is one of the rows that the question is about."""
        return self.role != "other"


def looks(results: Results) -> dict[str, MarkStyle]:
    """Every row that occurs in some column, in the table's order."""
    order = row_order(results.table)
    present = {label for column in results.columns for label in column.rows}
    labels = [label for label in order if label in present] + sorted(present - set(order))
    roles = {
        plan.BASELINE: "baseline",
        results.table.primary: "primary",
        plan.NORMALISED: "normalised",
        plan.SCALED_BASELINE: "scaled",
    }
    return {
        label: MarkStyle(label=shown(results.table, label), role=roles.get(label, "other"), key=f"m{i}")
        for i, label in enumerate(labels)
    }


def shown(table: Table, label: str) -> str:
    """The name of a row for readers: the scale controls are named after the row whose scale they control."""
    controls = {
        plan.NORMALISED: f"{table.primary}, mean weight one",
        plan.SCALED_BASELINE: f"{plan.BASELINE} × mean weight of {table.primary}",
        plan.AT_PLAIN_RATE: f"{table.primary}, plain training's rate",
    }
    return table.names.get(label) or controls.get(label, label)


def stand_ins(results: Results) -> dict[str, str]:
    """What the data stands in for, and the symbol that marks it."""
    names = dict.fromkeys(column.column.stand_in for column in results.columns if column.column.stand_in)
    symbols = "†‡§¶"
    return {what: symbols[i % 4] * (1 + i // 4) for i, what in enumerate(names)}


def signed(number: float) -> str:
    """A difference on an axis."""
    return "0" if abs(number) < 1e-12 else f"{number:+.4g}".replace("-", "−")


def short(number: float) -> str:
    """A number on an axis: four digits, thousands set apart, and a real minus."""
    grouped = 1e4 <= abs(number) < 1e7 and number == round(number)
    return (f"{number:,.0f}".replace(",", "\u2009") if grouped else f"{number:.4g}").replace("-", "−")


def typeset(text: str) -> str:
    """A real minus in front of numbers, for pages."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def breakable(text: str) -> Markup:
    """A name that may be broken after its punctuation, so that it is not broken elsewhere."""
    return Markup("<wbr>").join(re.split(r"(?<=[:,+=_])(?=\w)", text))
