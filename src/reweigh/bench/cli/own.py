"""`reweigh compare train.py:train`, `reweigh compare --script` and `reweigh judge` in a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Shown

from reweigh.bench.own.compare import compare
from reweigh.bench.own.judge import judge
from reweigh.bench.own.result import Comparison


def compare_training(
    subject: str, console: Console, *, methods: tuple[str, ...], budget: str, **options: object
) -> int:
    """Compare methods in the user's own training; returns the exit code."""
    given: dict[str, object] = {"budget": budget} if budget else {}
    result = compare(subject, methods=methods or ("rgd",), **given, **options)  # pyright: ignore[reportArgumentType]
    show(result, console)
    for failure in result.failures:
        reason = failure.reason.strip().rpartition("\n")[2]
        console.print(
            f"[red]{escape(failure.spec.label)}, seed {failure.spec.seed} failed:[/red] {escape(reason)}",
            highlight=False,
        )
    if result.ended == "interrupted":
        return 130
    return 1 if result.failures else 0


def judge_scores(scores: Path, console: Console, **options: object) -> int:
    """Judge a file of scores; returns the exit code."""
    show(judge(scores, out=scores.parent, **options), console)  # pyright: ignore[reportArgumentType]
    return 0


def show(result: Comparison, console: Console) -> None:
    """Print the table, the verdict, and where the page is."""
    rows = result.table().to_dicts()
    if rows:
        several = len({row["setting"] for row in rows}) > 1
        shown = Shown(box=None, padding=(0, 1), header_style="bold")
        for name in ("setting",) * several + ("method", "mean", "sd", "seeds", "difference", "95 % interval"):
            shown.add_column(name, justify="left" if name in ("setting", "method") else "right", overflow="fold")
        for row in rows:
            interval = "" if row["low"] is None else f"[{row['low']:+.4g}, {row['high']:+.4g}]"
            difference = "" if row["difference"] is None else f"{row['difference']:+.4g}"
            numbers = (f"{row['mean']:.4g}", f"{row['sd']:.2g}", str(row["seeds"]), difference, interval)
            lead = (row["setting"],) * several + (row["method"],)
            shown.add_row(*(escape(text) for text in (*lead, *numbers)))
        console.print(shown)
    console.print()
    headline, *others = result.sentences
    console.print(f"[bold]{escape(headline)}[/bold]", highlight=False)
    for sentence in others:
        console.print(escape(sentence), highlight=False)
    if rows:
        console.print(f"Use: {escape(result.best)}", highlight=False)
        console.print(f"Report: {result.page}", markup=False, highlight=False, soft_wrap=True)
