"""What there is and what would be run, as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from reweigh.bench.runs import Spec

#: Columns of a terminal from which on there is room for everything about a method.
_WIDE = 110


def recipes() -> Table:
    """Every recipe and its question."""
    from reweigh.bench import recipes

    shown = _table("recipe", "question")
    for name in recipes.names():
        shown.add_row(name, (recipes.load(name).__doc__ or "").partition("\n")[0])
    return shown


def methods(width: int) -> Table:
    """Every method with its hyper-parameters and the values that are searched; all of it where there is room."""
    from reweigh.method import cards

    heads = ["slot", "name", "what it is", "hyper-parameters (searched)", "exact in parts", "cost"]
    heads = heads if width >= _WIDE else heads[:4]
    shown = _table(*heads)
    last = ""
    for card in cards():
        if card.slot != last and last:
            shown.add_section()
        row = [
            card.slot if card.slot != last else "",
            card.name,
            card.missing or card.summary,
            ", ".join(_parameter(name, default, card.search) for name, default in card.defaults.items()),
            "" if card.separable is None else ("yes" if card.separable else "no"),
            card.cost,
        ]
        shown.add_row(*row[: len(heads)])
        last = card.slot
    return shown


def data() -> Table:
    """Every data set, and whether it is here."""
    from reweigh.bench import catalogue

    shown = _table("data", "size", "licence", "here", "stands in for")
    for row in catalogue.describe():
        shown.add_row(row.name, row.size, row.licence, "yes" if row.present else "no", row.stand_in_for or "")
    return shown


def models() -> Table:
    """Every model and its options."""
    from reweigh.bench import models

    shown = _table("model", "what it is", "options")
    for row in models.describe():
        shown.add_row(row.name, row.summary, ", ".join(f"{k}={v}" for k, v in row.options.items()))
    return shown


def runs(tuning: Sequence[Spec], final: Sequence[Spec], controls: int) -> tuple[Table, str]:
    """Runs that are planned, those that differ in their seed alone as one line; and how many there are in words."""
    shown = _table("stage", "cell", "row", "method", "lr", "seeds")
    for stage, specs in (("tune", tuning), ("compare", final)):
        alike = Counter((spec.cell, spec.label, spec.method, f"{spec.settings['lr']:g}") for spec in specs)
        for words, count in alike.items():
            shown.add_row(stage, *words, str(count))
    return shown, (
        f"{len(tuning) + len(final) + controls} runs: {len(tuning)} to tune, {len(final)} to compare (hyper-parameters "
        f"then as tuned), {controls} scale controls."
    )


def _table(*heads: str) -> Table:
    return Table(*heads, box=None, pad_edge=False)


def _parameter(name: str, default: Any, search: Mapping[str, Sequence[Any]]) -> str:
    values = search.get(name)
    return f"{name}={default}" + (f" ({' '.join(_short(value) for value in values)})" if values else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
