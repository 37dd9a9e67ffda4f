"""The table as values, and as Markdown, LaTeX and CSV text."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reweigh.bench.lab import stats
from reweigh.bench.lab.results import ColumnResults, Results, RowResults
from reweigh.bench.lab.stats import Difference, Finding
from reweigh.bench.report.numbers import MarkStyle, Unit, looks, stand_ins, unit_of
from reweigh.bench.spreadsheet import harmless
from reweigh.method import method

TableFormat = Literal["markdown", "latex", "csv"]
#: Beside a number: better or worse than the baseline after correction. Nothing means no evidence.
MARKS: dict[Finding, str] = {"better": "▲", "worse": "▼", "no evidence": "", "undecided": "", "too few pairs": ""}
_LATEX_MARKS = {"▲": r"$^{\uparrow}$", "▼": r"$^{\downarrow}$", "": ""}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method in one column, summed up."""

    row: RowResults
    n: int
    diverged: int
    mean: float
    sd: float
    last_mean: float
    last_sd: float
    difference: Difference | None
    conclusion: Finding | None
    paper: float | None

    @property
    def mark(self) -> str:
        """Better or worse than the baseline, as a symbol."""
        return MARKS[self.conclusion] if self.conclusion else ""

    @property
    def tuned(self) -> str:
        """The method as it was run, where that is more than its label says."""
        try:
            written = str(method(self.row.label))
        except ValueError:  # a scale control, or a method that no longer exists
            written = self.row.label
        return "" if self.row.method == written else self.row.method


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All entries of an experiment: rows by label, and under each one entry per column (None where it was not run)."""

    title: str
    unit: Unit
    columns: Sequence[ColumnResults]
    rows: Sequence[tuple[MarkStyle, Sequence[Entry | None]]]

    @property
    def seeds(self) -> list[int]:
        """The number of seeds that most entries of each column have; 0 where only tuning has finished."""
        columns = ([entries[i] for _, entries in self.rows] for i in range(len(self.columns)))
        return [statistics.mode([entry.n for entry in column if entry] or [0]) for column in columns]


def grid(results: Results) -> Grid:
    """The table of an experiment."""
    return Grid(
        title=title(results),
        unit=unit_of(results),
        columns=results.columns,
        rows=[
            (look, [_entry(results, column, label) for column in results.columns])
            for label, look in looks(results).items()
        ],
    )


def title(results: Results) -> str:
    """The experiment's name, with what sets it apart from others in the same folder."""
    return f"{results.table.title} · {results.variant}" if results.variant else results.table.title


def tables(results: Sequence[Results], fmt: TableFormat) -> str:
    """The tables of several experiments as text.

    Parameters
    ----------
    results
        The results to write.
    fmt
        `"markdown"` and `"latex"` have one column per setting; `"csv"` has one line for each method in each column,
        with all numbers unrounded in the metric's recorded unit.

    Returns
    -------
    str
        The text, with a newline at its end.
    """
    writers = {"markdown": _markdown, "latex": _latex, "csv": _csv}
    if fmt not in writers:
        raise ValueError(f"`fmt` must be one of {', '.join(map(repr, writers))}, got {fmt!r}.")
    return writers[fmt](results)


def _entry(results: Results, column: ColumnResults, label: str) -> Entry | None:
    row = column.rows.get(label)
    if row is None:
        return None
    values, last = row.values, row.last_values
    difference = column.differences.get(label)
    return Entry(
        row=row,
        n=len(values),
        diverged=sum(not math.isfinite(v) for v in values),
        **dict(zip(("mean", "sd"), _mean_and_sd(values), strict=True)),
        **dict(zip(("last_mean", "last_sd"), _mean_and_sd(last), strict=True)),
        difference=difference,
        conclusion=difference and difference.conclusion(smallest=results.table.smallest),
        paper=row.paper,
    )


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """NaN for both where a run diverged: a mean over the survivors would flatter the method."""
    return stats.mean_and_sd(values) if all(map(math.isfinite, values)) else (math.nan, math.nan)


def mean_text(mean: float, sd: float, unit: Unit) -> str:
    """`85.32 ± 1.20`, or the mean alone of a single seed."""
    if math.isnan(mean):
        return "diverged"
    return unit.value(mean) if math.isnan(sd) else f"{unit.value(mean)} ± {unit.value(sd)}"


def _entry_text(entry: Entry | None, unit: Unit, symbol: str) -> str:
    """An entry in one line: mean, deviation, mark, difference, interval, the last epoch's mean, the paper's figure."""
    if entry is None:
        return ""
    text = mean_text(entry.mean, entry.sd, unit) + (f" {entry.mark}" if entry.mark else "")
    if entry.difference is not None:
        text += f" ({unit.signed(entry.difference.mean)} {unit.interval(entry.difference)})"
    if math.isfinite(entry.last_mean) and entry.last_mean != entry.mean:
        text += f"; last {unit.value(entry.last_mean)}"
    return text if entry.paper is None else f"{text}; paper {entry.paper:.{unit.digits}f}{symbol}"


def _texts(results: Results, grid: Grid, entries: Sequence[Entry | None]) -> list[str]:
    symbols = stand_ins(results)
    marks = (symbols.get(column.column.stand_in or "", "") for column in grid.columns)
    return [_entry_text(entry, grid.unit, mark) for entry, mark in zip(entries, marks, strict=True)]


def _legend(results: Results, grid: Grid) -> list[str]:
    table = results.table
    seeds = ", ".join(dict.fromkeys(str(n) for n in grid.seeds if n)) or "no"
    chosen = f"; hyper-parameters by the {table.criterion}" if table.criterion else ""
    controls = "; scale controls are not corrected" if table.controls else ""
    lines = [
        f"{table.metric_name}{' in percent' if grid.unit.sign else ''}: mean ± sample standard deviation over {seeds} "
        f"seeds; in brackets the paired difference to the baseline with its 95 % interval; then the last epoch's mean.",
        f"Scores {table.rule}{chosen}. ▲ better, ▼ worse than the baseline: paired t-test, corrected (Holm) over the "
        f"{_comparisons(results)} declared beforehand ({table.primary}), and apart from these over all other "
        f"rows{controls}.",
    ]
    return lines + [
        f"{symbol} Our data stand in for the paper's: its figures are for {what}."
        for what, symbol in stand_ins(results).items()
    ]


def _comparisons(results: Results) -> str:
    return "one comparison" if results.declared == 1 else f"{results.declared} comparisons"


def _markdown(results: Sequence[Results]) -> str:
    parts: list[str] = []
    for one in results:
        shown = grid(one)
        head = ["method", *(column.name for column in shown.columns)]
        lines = [head, ["---"] * len(head)]
        lines += [[look.label, *_texts(one, shown, entries)] for look, entries in shown.rows]
        body = "\n".join("| " + " | ".join(_escape_markdown(text) for text in line) + " |" for line in lines)
        legend = "\n".join(_escape_markdown(line) + "  " for line in _legend(one, shown)).rstrip()
        parts.append(f"## {_escape_markdown(shown.title)}\n\n{body}\n\n{legend}\n")
    return "\n".join(parts)


def _latex(results: Sequence[Results]) -> str:
    parts: list[str] = []
    for one in results:
        shown = grid(one)
        lines = [
            f"% {shown.title}".replace("\n", " "),
            rf"\begin{{tabular}}{{l{'l' * len(shown.columns)}}}",
            r"\toprule",
            " & ".join(["method", *(_escape_latex(column.name) for column in shown.columns)]) + r" \\",
            r"\midrule",
        ]
        for look, entries in shown.rows:
            texts = (_escape_latex(text) for text in _texts(one, shown, entries))
            lines.append(" & ".join([rf"\texttt{{{_escape_latex(look.label)}}}", *texts]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [f"% {line}" for line in _legend(one, shown)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


_COLUMNS = (
    *("recipe", "variant", "column", "label", "method", "lr", "metric", "n", "diverged"),
    *("mean", "sd", "last_mean", "last_sd", "difference", "low", "high", "effect", "p", "p_permutation", "p_holm"),
    *("conclusion", "paper", "stand_in"),
)


def _csv(results: Sequence[Results]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for one in results:
        shown = grid(one)
        for i, column in enumerate(shown.columns):
            writer.writerows(
                _csv_line(one, column, look, entries[i]) for look, entries in shown.rows if entries[i] is not None
            )
    return text.getvalue()


def _csv_line(results: Results, column: ColumnResults, look: MarkStyle, entry: Entry | None) -> list[object]:
    assert entry is not None
    d = entry.difference
    compared = [""] * 7 if d is None else [d.mean, d.low, d.high, d.effect, d.p, d.p_permutation, d.p_holm]
    line = [
        *(results.recipe, results.variant, column.name, look.label, entry.row.method, entry.row.lr),
        *(results.table.metric, entry.n, entry.diverged, entry.mean, entry.sd, entry.last_mean, entry.last_sd),
        *compared,
        *(entry.conclusion, entry.paper, column.column.stand_in),
    ]
    return ["" if v is None else harmless(v) if isinstance(v, str) else v for v in line]


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_<>|" else c for c in text)


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_"} | {"±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$"}
    special |= {"†": r"$^{\dagger}$", "‡": r"$^{\ddagger}$"}
    return "".join(special.get(c) or _LATEX_MARKS.get(c, c) for c in text)
