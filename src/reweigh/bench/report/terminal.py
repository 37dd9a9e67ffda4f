"""The answer in a terminal: a table that fits, then the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reweigh.bench.report.tabulate import Grid, grid, mean_text
from reweigh.bench.report.verdict import verdict
from reweigh.bench.results import Results

#: Columns of text that a method's name and one cell take.
_NAME, _CELL = 26, 17
_COLOURS = {"better": "green", "worse": "red", "no evidence": "", "too few pairs": ""}


def terminal(results: Sequence[Results], console: Console) -> None:
    """Print each experiment's table and verdicts, in blocks of as many cells as the console is wide."""
    for one in results:
        found = grid(one)
        at_once = max(1, (console.width - _NAME - 2) // (_CELL + 2))
        for start in range(0, len(found.cells), at_once):
            console.print(_block(found, range(start, min(start + at_once, len(found.cells)))))
        console.print(
            f"{escape(one.table.metric_name)}, mean ± sd over seeds. ▲ better, ▼ worse than mean (paired, corrected). "
            f"Chosen by {escape(one.table.rule)}.",
            style="dim",
            highlight=False,
        )
        said = verdict(one)
        console.print(f"\n[bold]{escape(one.headline or said.headline)}[/bold]", highlight=False)
        for line in one.details if one.headline else said.scale:
            console.print(escape(line), highlight=False)
        for sentence in said.sentences:
            colour = _COLOURS[sentence.conclusion]
            text = escape(f"{sentence.cell}: {sentence.text}")
            console.print(f"[{colour}]{text}[/{colour}]" if colour else text, highlight=False)
        if one.unfinished:
            console.print(f"{len(one.unfinished)} runs are not finished and are not counted.", style="yellow")
        console.print()


def _block(found: Grid, columns: range) -> Table:
    table = Table(title=escape(found.title), title_justify="left", box=None, padding=(0, 1), header_style="bold")
    table.add_column("method", max_width=_NAME, overflow="fold")
    for i in columns:
        table.add_column(escape(found.cells[i].cell.name), justify="right", max_width=_CELL, overflow="fold")
    for look, entries in found.rows:
        style = "bold" if look.role == "primary" else ""
        shown = (entries[i] for i in columns)
        texts = ("–" if e is None else f"{mean_text(e.mean, e.sd, found.unit)} {e.mark or ' '}" for e in shown)
        table.add_row(escape(look.label), *texts, style=style)
    return table
