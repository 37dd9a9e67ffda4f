"""What a comparison came to, as a value for scripts and notebooks."""

from __future__ import annotations

import html
import math
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.local import Failure
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.lab.stats import Difference, mean_and_sd
from reweigh.bench.report.numbers import Unit, shown, unit_of
from reweigh.bench.report.page import write
from reweigh.bench.report.verdict import verdict

if TYPE_CHECKING:
    import polars

_ENDED = {
    "finished": "",
    "decided": "Stopped early: the comparison was decided at its first look, at the level which that look may use.",
    "time": "The budget ran out first; the same call resumes.",
    "interrupted": "Interrupted; the same call resumes.",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer of `reweigh.compare`: a verdict, a table, and the page that shows why.

    Parameters
    ----------
    results
        The finished runs as values.
    root
        The folder of the runs.
    ended
        How the search ended: finished, decided, out of time, or interrupted.
    failures
        Trainings that raised, with the reason.
    findings
        What stands out about the weights of the primary method.
    report, recommended, model
        Of a comparison on data: its page, the row to use, and the folder of the trained model that was kept.
    """

    results: Results
    root: Path
    ended: str = "finished"
    failures: Sequence[Failure] = ()
    findings: Sequence[str] = field(default=())
    report: Path | None = None
    recommended: str = ""
    model: Path | None = None

    @property
    def verdict(self) -> str:
        """The verdict in plain sentences."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The verdict, and below it the scale controls, what could have been seen, and what stands out."""
        if not any(column.differences for column in self.results.columns):
            return [f"No verdict: too few trainings have finished. {_ENDED[self.ended]}".strip()]
        words = verdict(self.results)
        lines = [self.results.headline or words.headline]
        lines += self.results.details if self.results.headline else words.scale
        lines += [self._smallest_effect(), *self.findings, _ENDED[self.ended]]
        if self.failures:
            lines.append(f"{len(self.failures)} trainings failed; `result.failures` has the reasons.")
        return [line for line in lines if line]

    @property
    def best(self) -> str:
        """The text of the method to use: the best of those shown to be better than plain training, or `mean`.

        On data it is the row that the verdict recommends.
        """
        if self.recommended:
            return self.recommended
        column = self.results.columns[0] if self.results.columns else None
        smallest = self.results.table.smallest
        better = [
            (difference.mean, label)
            for label, difference in (column.differences.items() if column else ())
            if label in self.results.table.methods and difference.conclusion(smallest=smallest) == "better"
        ]
        if column is None or not better:
            return plan.BASELINE
        label = (min if smallest else max)(better)[1]
        return column.rows[label].method

    @property
    def page(self) -> Path:
        """The report page."""
        return self.report or write([self.results], self.root / "report.html")

    def table(self) -> polars.DataFrame:
        """One row per method: mean and standard deviation over seeds, and the difference to plain training."""
        import polars

        return polars.DataFrame([row for column in self.results.columns for row in self._rows(column)])

    def open(self) -> None:
        """Show the report page in a browser."""
        webbrowser.open(self.page.resolve().as_uri())

    def __str__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        """The card that a notebook shows."""
        rows = [row for column in self.results.columns for row in self._rows(column)]
        head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
            for row in rows
        )
        return (
            f"<div><p><b>{html.escape(self.verdict)}</b></p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _rows(self, column: ColumnResults) -> list[dict[str, Any]]:
        return [
            {
                "setting": column.name,
                "method": shown(self.results.table, label),
                **dict(zip(("mean", "sd"), mean_and_sd(row.values), strict=True)),
                "seeds": len(row.values),
                **_difference(column.differences.get(label)),
            }
            for label, row in column.rows.items()
        ]

    def _smallest_effect(self) -> str:
        """Which effect these seeds could have shown, where none was."""
        unit: Unit = unit_of(self.results)
        table = self.results.table
        watched = (table.primary,) if table.primary else table.methods[1:]
        open_ones = [
            difference
            for column in self.results.columns
            for label, difference in column.differences.items()
            if label in watched and difference.conclusion(smallest=table.smallest) == "no evidence"
        ]
        if not open_ones or any(d.constant or not math.isfinite(d.low) for d in open_ones):
            return ""
        width = max((d.high - d.low) / 2 for d in open_ones)
        return (
            f"Differences below about {unit.value(width)}{unit.points} could not have been seen with "
            f"{min(d.n for d in open_ones)} seeds."
        )


def _difference(difference: Difference | None) -> dict[str, Any]:
    if difference is None:
        return {"difference": None, "low": None, "high": None, "p": None}
    return {"difference": difference.mean, "low": difference.low, "high": difference.high, "p": difference.decisive_p}


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
