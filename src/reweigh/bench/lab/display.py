"""Progress for people: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from reweigh.bench.lab.executors.local import Failure
from reweigh.bench.lab.runs import Record, Run, Spec

#: Seconds between two plain lines when output is not a terminal.
_LINE_EVERY = 30.0


class RunDisplay:
    """Shows the stages of an experiment as they go."""

    def __init__(self, console: Console, metric: str) -> None:
        self.console = console
        self.metric = metric
        self._live: Live | None = None
        self._title = ""
        self._total = self._before = 0
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> RunDisplay:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def stage(self, title: str, groups: Sequence[Sequence[Spec]], finished: int) -> None:
        """Announce a stage."""
        to_do = sum(len(group) for group in groups)
        self._title, self._total, self._before = title, to_do + finished, finished
        self._started = self._last_line = time.monotonic()
        done = f", {finished} already done" if finished else ""
        self.console.print(f"{title}: {to_do} run{'s' * (to_do != 1)}{done}", markup=False)

    def update(self, running: Sequence[tuple[Sequence[Spec], Record | None]], finished: int) -> None:
        """Draw the live table, or print a line now and then."""
        share = finished + sum(
            len(group) * float(record["progress"]) for group, record in running if record and "progress" in record
        )
        left = self._remaining(share)
        if self._live is not None:
            self._live.update(self._draw(running, finished, left))
        elif time.monotonic() - self._last_line > _LINE_EVERY:
            self._last_line = time.monotonic()
            self.console.print(f"{self._title}: {finished} of {self._total} runs done{left}", markup=False)

    def failed(self, failure: Failure) -> None:
        """Say which run failed, and the last line of why."""
        last = failure.reason.strip().splitlines()[-1]
        spec = failure.spec
        line = escape(f"{spec.column} · {spec.label} · seed {spec.seed}: {last}")
        self.console.print(f"[red]failed[/red] {line}", highlight=False, markup=True)

    def damaged(self, run: Run, reason: str) -> None:
        """Name a finished run whose results were changed since, and that is done again."""
        spec = run.spec
        self.console.print(
            f"run {spec.id} ({spec.column} · {spec.label} · seed {spec.seed}) is done again: {reason}", markup=False
        )

    def _remaining(self, share: float) -> str:
        gained = share - self._before
        if gained <= 0.02 * max(self._total - self._before, 1):
            return ""
        seconds = (time.monotonic() - self._started) * (self._total - share) / gained
        minutes = round(seconds / 60)
        return f", about {minutes} min left" if minutes else ", less than a minute left"

    def _draw(self, running: Sequence[tuple[Sequence[Spec], Record | None]], finished: int, left: str) -> Group:
        table = Table.grid(padding=(0, 2))
        for group, record in running:
            first = group[0]
            name = first.label if len(group) == 1 else f"{first.label} and {len(group) - 1} more at once"
            progress = float(record["progress"]) if record and "progress" in record else 0.0
            value = record.get(self.metric) if record else None
            shown = f"{self.metric} {value:.4f}" if isinstance(value, float) else ""
            table.add_row(
                escape(first.column), escape(name), ProgressBar(total=1.0, completed=progress, width=24), shown
            )
        head = Table.grid(padding=(0, 2))
        head.add_row(
            self._title,
            ProgressBar(total=max(self._total, 1), completed=finished, width=40),
            f"{finished} of {self._total}{left}",
        )
        return Group(head, table)
