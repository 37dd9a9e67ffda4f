"""Which method to try first for which trouble, read from the reports: `python docs/first.py` writes the table.

It stands in README.md and docs/when.md, between the marks `<!-- first -->` and `<!-- /first -->`. The rules are stated
below the table; what comes out is decided by what is in `reports/`: the summaries in JSON, ranked as
`reports/index.py` does, and the tables in Markdown for what has no summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from reweigh.bench.lab import plan
from reweigh.bench.report import read_summary
from reweigh.bench.report.overview import OverviewPart, Ranked, overview

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/when.md")
MARKS = re.compile(r"(<!-- first -->\n).*?(<!-- /first -->)", re.DOTALL)
#: How many methods a cell names.
NAMED = 3
KNOWS = " (knows the groups)"
#: The baseline, controls of scale and choice, and methods that are given a clean, balanced set besides.
LEFT_OUT = re.compile(
    r"mean|mean ×.*|rgd, .*(weight one|rate)|.*, chosen by worst group|fine_tune|l2rw|meta_weight_net"
)
CELL = re.compile(r"(?P<mark>[▲▼]?) ?\((?P<difference>[-+][\d.]+) \[(?P<low>[-+][\d.]+), (?P<high>[-+][\d.]+)\]\)")


@dataclass(frozen=True)
class Trouble:
    """What goes wrong, and the columns of the reports that are about it."""

    name: str
    columns: tuple[tuple[str, str], ...]  # report, and which of its columns
    part: str = ""  # what the overview of all summaries calls it
    knows_groups: bool = False


TROUBLES = (
    Trouble("some classes are rare", (("longtail", r"imbalance (?!1$)"),), "rare classes"),
    Trouble("some labels are wrong", (("noise", r"uniform|flip"),), "wrong labels"),
    Trouble("one group goes worst, groups unknown", (("groups", r""),), "hidden groups"),
    Trouble("one group goes worst, groups known", (("groups", r""),), knows_groups=True),
    Trouble("the data come from a domain not seen in training", (("domains", r""),)),
    Trouble("nothing: classes even, labels right", (("longtail", r"imbalance 1$"), ("noise", r"no noise")), "none"),
)


@dataclass(frozen=True)
class Difference:
    """A method against plain training in one column, in points."""

    points: float
    better: bool
    worse: bool


def differences(report: str, columns: str) -> dict[str, list[Difference]]:
    """By method, its differences in those columns of a report that match; cells that were not run are left out."""
    text = (ROOT / "reports" / f"{report}.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, *rows = [[cell.strip().replace("\\_", "_") for cell in line.strip("|").split("|")] for line in lines]
    per_point = 1.0 if "in percent" in text else 100.0
    found: dict[str, list[Difference]] = {}
    for name, *cells in rows[1:]:
        for column, cell in zip(head[1:], cells, strict=True):
            read = CELL.search(cell)
            if read and re.search(columns, column):
                mark = read["mark"]
                points = per_point * float(read["difference"])
                found.setdefault(name, []).append(Difference(points, mark == "▲", mark == "▼"))
    return found


@dataclass(frozen=True)
class Record:
    """What a method did in all settings of a trouble in which it was run."""

    name: str
    settings: tuple[Difference, ...]

    @property
    def better(self) -> int:
        """In how many settings it was decided better."""
        return sum(one.better for one in self.settings)

    @property
    def worse(self) -> int:
        """In how many settings it was decided worse."""
        return sum(one.worse for one in self.settings)

    @property
    def points(self) -> float:
        """The mean difference."""
        return fmean(one.points for one in self.settings)

    def __str__(self) -> str:
        return told(self.points, self.better, self.worse, len(self.settings))


def told(points: float, better: int, worse: int, settings: int) -> str:
    """A mean difference, and in how many settings it was decided."""
    counts = f"▲ {better}" + (f" ▼ {worse}" if worse else "") + f" of {settings}"
    return f"{f'{round(points, 1) + 0.0:+.1f}'.replace('-', '−')} ({counts})"


def records(trouble: Trouble) -> list[Record]:
    """All methods that were run in most settings of a trouble, best first."""
    of_method: dict[str, list[Difference]] = {}
    for report, columns in trouble.columns:
        for name, values in differences(report, columns).items():
            of_method.setdefault(name, []).extend(values)
    most = max(map(len, of_method.values()))
    made = [
        Record(name.removesuffix(KNOWS), tuple(values))
        for name, values in of_method.items()
        if not LEFT_OUT.fullmatch(name) and name.endswith(KNOWS) == trouble.knows_groups and 2 * len(values) > most
    ]
    return sorted(made, key=lambda record: (record.better - record.worse, record.points), reverse=True)


def parts() -> list[OverviewPart]:
    """The overview of all summaries; nothing before the first is there."""
    pages: list[dict[str, Any]] = []
    for path in sorted((ROOT / "reports").glob("*.json")):
        pages += read_summary(path) if path.stem != "cost" else []
    return overview(pages)


def ranked(part: OverviewPart) -> tuple[str, str]:
    """What to try first by the overview's own rule, then the largest gains that are seen; and RGD.

    Where no gain is certain over the settings, decisions are counted as for reports without a summary.
    """

    def text(row: Ranked) -> str:
        return told(row.gain.mean, row.better, row.worse, len(part.settings))

    seen = [
        row
        for row in part.rows
        if part.certain(row) and row.label not in (plan.NORMALISED, part.first and part.first.label)
    ]
    seen = sorted(seen, key=lambda row: row.gain.mean, reverse=True)
    named = (part.promising if part.first is None else [part.first, *seen])[:NAMED]
    own = part.row("rgd")
    return _first(f"`{row.label}` {text(row)}" for row in named), "–" if own is None else text(own)


def counted(trouble: Trouble) -> tuple[str, str]:
    """The methods with the most decisions for them, of those that gain; and RGD."""
    of_trouble = records(trouble)
    good = [record for record in of_trouble if record.better > record.worse and record.points > 0][:NAMED]
    own = next((record for record in of_trouble if record.name == "rgd"), None)
    return _first(f"`{record.name}` {record}" for record in good), "–" if own is None else str(own)


def _first(named: Iterable[str]) -> str:
    return ", ".join(named) or "plain training"


def table(reports: str, *, short: bool = False) -> str:
    """The table; `reports` is where a page links to for a report, with braces for its name.

    A trouble has a line for each kind of model that was trained, or only the one with the most settings if `short`.
    """
    lines = ["| trouble | try first | RGD | evidence |", "|---|---|---|---|"]
    generated = parts()
    for trouble in TROUBLES:
        evidence = ", ".join(f"[{report}]({reports.format(report)})" for report, _ in trouble.columns)
        of_trouble = [part for part in generated if part.trouble == trouble.part]
        cells = [(f"{trouble.name} ({part.model})", *ranked(part)) for part in of_trouble[: 1 if short else None]]
        for name, first, own in cells or [(trouble.name, *counted(trouble))]:
            lines.append(f"| {name} | {first} | {own} | {evidence} |")
    return "\n".join(lines)


SHORT = """Points of accuracy above plain training, all tuned alike: the mean over a report's settings, and in how many
it is decided, ▲ better or ▼ worse. Small models on two cores, ranked after the fact: [the rule](docs/when.md).
"""
RULE = """Points of accuracy above plain training, all tuned alike: the mean over a report's settings, and in how many
of them the difference is decided, ▲ better or ▼ worse. Where a kind of model is named, the first method is the one
with the largest mean among those that no other outranks, if its interval is above zero or it is better in every
setting, and the others have the next largest of such means. Elsewhere, and where there is no such method, they are
those that gain and have the most ▲ less ▼, of the methods run in most settings.
Small models on two cores, ranked after the fact: [`reweigh compare`](compare.md) asks your own data.
"""


def written(page: str) -> str:
    """A page with the table of now."""
    path = ROOT / page
    inside = page.startswith("docs/")
    block = table("results.md" if inside else "reports/{}.md", short=not inside)
    text = path.read_text()
    if not MARKS.search(text):
        raise ValueError(f"{page} has no marks <!-- first --> and <!-- /first --> to write between.")
    return MARKS.sub(lambda marks: f"{marks[1]}{block}\n\n{RULE if inside else SHORT}{marks[2]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(page))
