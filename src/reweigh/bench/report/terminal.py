"""The answer in a terminal: a table that fits, then the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reweigh.bench.lab.results import Results
from reweigh.bench.report.opening import opening
from reweigh.bench.report.tabulate import Grid, grid, mean_text
from reweigh.bench.report.verdict import verdict

#: Columns of text that a method's name and one column take.
_NAME, _CELL = 26, 17
_COLOURS = {"better": "green", "worse": "red", "no evidence": "", "undecided": "", "too few pairs": ""}


def terminal(results: Sequence[Results], console: Console) -> None:
    """Print each experiment's table and verdicts, in blocks of as many columns as the console is wide."""
    for one in results:
        shown = grid(one)
        at_once = max(1, (console.width - _NAME - 2) // (_CELL + 2))
        for start in range(0, len(shown.columns), at_once):
            console.print(_block(shown, range(start, min(start + at_once, len(shown.columns)))))
        console.print(
            f"{escape(one.table.metric_name)}, mean ± sd over seeds. ▲ better, ▼ worse than mean (paired, corrected). "
            f"Scores {escape(one.table.rule)}.",
            style="dim",
            highlight=False,
        )
        conclusion, first = verdict(one), opening(one)
        headline = one.headline or (conclusion.headline if first is None else first.sentence)
        console.print(f"\n[bold]{escape(headline)}[/bold]", highlight=False)
        for line in one.details if one.headline else conclusion.scale:
            console.print(escape(line), highlight=False)
        for sentence in () if one.headline else conclusion.sentences:
            colour = _COLOURS[sentence.conclusion]
            paper = "" if sentence.paper is None else f" The paper: {sentence.paper:+.2f}."
            text = escape(f"{sentence.column}: {sentence.text}{paper} {sentence.remark}".rstrip())
            console.print(f"[{colour}]{text}[/{colour}]" if colour else text, highlight=False)
        if one.unfinished:
            console.print(f"{len(one.unfinished)} runs are not finished and are not counted.", style="yellow")
        for line in one.damaged:
            console.print(f"Left out, {escape(line)}", style="red", highlight=False)
        if one.damaged:
            console.print("The command that made these runs does them again.", style="red")
        console.print()


def _block(grid: Grid, columns: range) -> Table:
    table = Table(title=escape(grid.title), title_justify="left", box=None, padding=(0, 1), header_style="bold")
    table.add_column("method", max_width=_NAME, overflow="fold")
    for i in columns:
        table.add_column(escape(grid.columns[i].column.name), justify="right", max_width=_CELL, overflow="fold")
    for look, entries in grid.rows:
        style = "bold" if look.role == "primary" else ""
        chosen = (entries[i] for i in columns)
        texts = ("–" if e is None else f"{mean_text(e.mean, e.sd, grid.unit)} {e.mark or ' '}" for e in chosen)
        table.add_row(escape(look.label), *texts, style=style)
    return table
