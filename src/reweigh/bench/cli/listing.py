"""What there is and what would be run, as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from reweigh.bench.lab.runs import Spec

#: Columns of a terminal from which on there is room for everything about a method side by side.
_WIDE = 110
#: Columns where the output is not a terminal: a file or the next program takes lines of any length.
_BOUNDLESS = 100_000


def show(table: Table, console: Console) -> None:
    """Print a table: within the width of a terminal, and elsewhere with nothing cut and one line per row."""
    target = console if console.is_terminal else Console(file=console.file, width=_BOUNDLESS)
    target.print(table)


def recipes() -> Table:
    """Every recipe and its question."""
    from reweigh.bench.lab import recipe as recipes

    shown = _table("recipe", "question")
    for name, question in recipes.summaries().items():
        _add(shown, name, question)
    return shown


def methods(width: int | None) -> Table:
    """Every method with its hyper-parameters, the values that are searched, and its cost.

    Parameters
    ----------
    width
        Columns of the terminal; where they are few, cost and exactness stand below what a method is. None for no limit.
    """
    from reweigh.method import cards

    wide = width is None or width >= _WIDE
    heads = ["what it is", "hyper-parameters (searched)", "exact in parts", "cost"]
    shown = _table("slot", "name", *(heads if wide else ["what it is, exact in parts, cost", heads[1]]), whole=2)
    last = ""
    for card in cards():
        if card.slot != last and last:
            shown.add_section()
        what, exact = card.missing or card.summary, "" if card.separable is None else "yes" if card.separable else "no"
        parameters = ", ".join(_parameter(name, default, card.search) for name, default in card.defaults.items())
        more = [f"exact in parts: {exact}"] * bool(exact) + [f"cost: {card.cost}"] * bool(card.cost)
        row = [what, parameters, exact, card.cost] if wide else ["\n".join([what, *more]), parameters]
        _add(shown, card.slot if card.slot != last else "", card.name, *row)
        last = card.slot
    return shown


def data() -> Table:
    """Every data set, and whether it is here."""
    from reweigh.bench import catalogue

    shown = _table("data", "kind", "size", "licence", "here", "stands in for")
    for entry in catalogue.describe():
        card, here = entry.card, "yes" if entry.present else "no"
        _add(shown, entry.name, entry.kind, card.size, card.licence, here, card.stand_in_for or "")
    return shown


def models() -> Table:
    """Every model and its options."""
    from reweigh.bench import models

    shown = _table("model", "what it is", "options")
    for row in models.describe():
        _add(shown, row.name, row.summary, ", ".join(f"{k}={v}" for k, v in row.options.items()))
    return shown


def runs(tuning: Sequence[Spec], final: Sequence[Spec], controls: int) -> tuple[Table, str]:
    """Runs that are planned, those that differ in their seed alone as one line; and how many there are in words."""
    shown = _table("stage", "column", "row", "method", "lr", "seeds", whole=0)
    for stage, specs in (("tune", tuning), ("compare", final)):
        alike = Counter((spec.column, spec.label, spec.method, f"{spec.settings['lr']:g}") for spec in specs)
        for words, count in alike.items():
            _add(shown, stage, *words, str(count))
    return shown, (
        f"{len(tuning) + len(final) + controls} runs: {len(tuning)} to tune, {len(final)} to compare (hyper-parameters "
        f"then as tuned), {controls} scale controls."
    )


def _table(*heads: str, whole: int = 1) -> Table:
    """A table whose first columns, `whole` of them, hold names that stay in one piece; what is longer is never cut."""
    columns = (Column(head, overflow="fold", no_wrap=k < whole) for k, head in enumerate(heads))
    return Table(*columns, box=None, pad_edge=False)


def _add(shown: Table, *texts: str) -> None:
    """A row of texts as they are: brackets in them are no markup."""
    shown.add_row(*map(escape, texts))


def _parameter(name: str, default: Any, search: Mapping[str, Sequence[Any]]) -> str:
    values = search.get(name)
    return f"{name}={default}" + (f" ({' '.join(_short(value) for value in values)})" if values else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
