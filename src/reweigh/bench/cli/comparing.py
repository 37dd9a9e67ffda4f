"""`reweigh compare` and `reweigh predict` in a terminal: what was read, progress, the answer, and where files are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table as Shown

from reweigh.bench.cli.stops import INTERRUPTED
from reweigh.bench.compare import answering, model_card
from reweigh.bench.compare.answer import Answer
from reweigh.bench.compare.files import Files
from reweigh.bench.compare.model import STANDARD_OUTPUT, write_predictions
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.request import Request
from reweigh.bench.compare.search import SearchOutcome
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.lab.table import Table
from reweigh.bench.report.tabulate import MARKS
from reweigh.bench.tables import Schema
from reweigh.bench.train import device as devices
from reweigh.bench.train.precision import Precision

#: Columns that are shown one by one before a comparison starts.
_COLUMNS = 15
_COLOURS = {"decided": "green", "leading": "cyan", "undecided": "yellow"}


def compare(given: Request, console: Console) -> int:
    """Answer the question, write the report, the hardest rows and the model; returns the exit code."""
    with Progress(console=console, transient=True) as progress:
        looking = progress.add_task("reading the data", total=None)
        prepared = answering.prepare(
            given,
            lambda share: progress.update(
                looking, description="a frozen network looks at every row, once", total=1.0, completed=share
            ),
        )
    _describe(console, prepared.problem, prepared.table)
    told: set[str] = set()

    def tell(answer: Answer, problem: Problem) -> None:
        line = f"[bold]so far{_rows_of(problem)}:[/bold] {escape(answer.headline)}"
        if line not in told:
            console.print(line, highlight=False)
        told.add(line)

    with RunDisplay(console, prepared.table.metric) as display:
        searched = answering.run(prepared, display, tell)
    outcome, answer = searched.outcome, searched.answer
    for (column, label), reason in outcome.failed.items():
        console.print(f"[red]{escape(column)} · {escape(label)} failed:[/red] {escape(reason)}", highlight=False)
    if answer is None:
        console.print(
            "No answer yet: no split has been finished by all methods. Run the same command again to resume, with a "
            "larger --budget.",
            style="yellow",
        )
        return INTERRUPTED if outcome.ended == "interrupted" else 1
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("writing the report and the model", total=1.0)
        written = answering.write(searched, progress=lambda share: progress.update(bar, completed=share))
    _print(console, answer, searched.warnings, outcome)
    _print_files(console, written)
    return INTERRUPTED if outcome.ended == "interrupted" else 0


def _rows_of(problem: Problem) -> str:
    """Which rows an answer on the way is about, where they are not all."""
    return f" ({problem.rows:,} of {problem.sampled_from:,} rows)" if problem.sampled_from else ""


def predict(
    model: Path, rows: Path, out: Path, console: Console, *, device: str = "cpu", precision: Precision = "float32"
) -> int:
    """Write predictions for a file of rows."""
    devices.use(device)
    count, notes = write_predictions(model, rows, out, precision=precision)
    if card := model_card.first_line(model):
        console.print(escape(card), highlight=False)
    for note in notes:
        console.print(escape(note), highlight=False)
    where = "standard output" if out == STANDARD_OUTPUT else escape(str(out))
    console.print(f"{count} rows predicted: {where}", highlight=False)
    return 0


def _describe(console: Console, problem: Problem, table: Table) -> None:
    """Print what was read and what will be done, before doing it."""
    what = f"{problem.rows} rows, {problem.kind}"
    if problem.classes:
        pairs = sorted(zip(problem.class_counts, problem.classes, strict=True), reverse=True)
        few = [f"{name}: {count}" for count, name in pairs]
        few = few if len(few) <= 6 else [*few[:3], "…", *few[-2:]]
        what += f" of {len(problem.classes)} classes ({', '.join(few)})"
    console.print(f"[bold]{escape(problem.name)}[/bold]: {escape(what)}.", highlight=False)
    if problem.schema is not None and problem.imbalance == 1.0:
        console.print(_columns_table(problem.schema))
    for note in table.notes:
        console.print(f"  · {escape(note)}", highlight=False)
    console.print(
        f"Comparing {len(table.methods)} methods with {', '.join(column.name for column in table.columns)} by "
        f"{table.metric_name}; declared beforehand: {escape(table.primary)} against mean (plain training).",
        highlight=False,
    )


def _columns_table(schema: Schema) -> Shown:
    """What each column was taken for; of many, the first."""
    shown = Shown(box=None, padding=(0, 1), header_style="bold")
    for head in ("column", "taken for", "different", "missing"):
        shown.add_column(head, justify="left" if head in ("column", "taken for") else "right")
    for column in schema.columns[:_COLUMNS]:
        missing = f"{column.missing:.0%}" if column.missing else ""
        shown.add_row(escape(column.name[:40]), column.kind, str(column.distinct), missing)
    if len(schema.columns) > _COLUMNS:
        kinds = Counter(column.kind for column in schema.columns[_COLUMNS:])
        rest = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        shown.add_row(f"… {len(schema.columns) - _COLUMNS} more", rest, "", "")
    return shown


def _print(console: Console, answer: Answer, warnings: Sequence[str], outcome: SearchOutcome) -> None:
    console.print()
    console.print(f"[bold {_COLOURS[answer.strength]}]{escape(answer.headline)}[/]", highlight=False)
    for line in (*answer.details, *warnings):
        console.print(escape(line), highlight=False)
    console.print()
    console.print(_actions_table(answer, console.width, set(outcome.dropped)))
    dim = " Dim: dropped." if outcome.dropped else ""
    console.print(
        f"{answer.metric.name.capitalize()}, mean over splits, against {answer.names[answer.decision.reference.key]} "
        f"with 95 % intervals. ▲ better, ▼ worse, after correction for the number of comparisons.{dim}",
        style="dim",
        highlight=False,
    )


def _print_files(console: Console, written: Files) -> None:
    places = {
        "report": written.report,
        "hardest rows": written.hardest,
        "model": written.model,
    }
    for what, path in places.items():
        if path is not None:
            console.print(f"{what}: {escape(str(path))}", highlight=False, soft_wrap=True)


def _actions_table(answer: Answer, width: int, dropped: Container[tuple[str, str]]) -> Shown:
    """Every action, the best first, with as many other metrics as there is room for; what was dropped is dim."""
    decision, unit = answer.decision, answer.unit
    shown = Shown(box=None, padding=(0, 1), header_style="bold")
    shown.add_column("action", max_width=34, overflow="fold")
    shown.add_column(answer.metric.name + (" ↓" if answer.metric.smallest else ""), justify="right", max_width=11)
    shown.add_column("difference", justify="right", no_wrap=True)
    scores = {(m.model, label): row for m in answer.models for label, row in m.scores.items()}
    others = [s.metric for s in scores[decision.reference.key] if s.metric.key != answer.metric.key]
    others = others[: max(0, (width - 72) // 12)]
    for metric in others:
        shown.add_column(metric.name + (" ↓" if metric.smallest else ""), justify="right", max_width=11)
    for action in decision.ranked:
        d = action.difference
        difference = "–"
        if d is not None:
            interval = "" if d.constant else f" {unit.interval(d)}"
            difference = f"{unit.signed(d.mean)}{interval} {MARKS[d.conclusion(smallest=decision.smallest)]:1}"
        own = {score.metric.key: score for score in scores[action.key]}
        more = (own[m.key].unit.value(own[m.key].mean) if m.key in own else "–" for m in others)
        style = "bold" if action.key == decision.use.key else "dim" if action.key in dropped else ""
        shown.add_row(escape(answer.names[action.key]), unit.value(action.mean), difference, *more, style=style)
    return shown
