"""Which method to try first for which trouble, read from the reports: `python docs/first.py` writes the table.

It stands in README.md and docs/when.md, between the marks `<!-- first -->` and `<!-- /first -->`. The rule is the same
for every trouble and is stated below the table; what comes out is decided by the tables in `reports/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

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
    knows_groups: bool = False


TROUBLES = (
    Trouble("some classes are rare", (("longtail", r"imbalance (?!1$)"),)),
    Trouble("some labels are wrong", (("noise", r"uniform|flip"),)),
    Trouble("one group goes worst, groups unknown", (("groups", r""),)),
    Trouble("one group goes worst, groups known", (("groups", r""),), knows_groups=True),
    Trouble("the data come from a domain not seen in training", (("domains", r""),)),
    Trouble("nothing: classes even, labels right", (("longtail", r"imbalance 1$"), ("noise", r"no noise"))),
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
        counts = f"▲ {self.better}" + (f" ▼ {self.worse}" if self.worse else "") + f" of {len(self.settings)}"
        return f"{f'{round(self.points, 1) + 0.0:+.1f}'.replace('-', '−')} ({counts})"


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


def table(reports: str) -> str:
    """The table; `reports` is where a page links to for a report, with braces for its name."""
    lines = ["| trouble | try first | RGD | evidence |", "|---|---|---|---|"]
    for trouble in TROUBLES:
        of_trouble = records(trouble)
        good = [record for record in of_trouble if record.better > record.worse and record.points > 0][:NAMED]
        first = ", ".join(f"`{record.name}` {record}" for record in good) or "plain training"
        own = next((record for record in of_trouble if record.name == "rgd"), None)
        evidence = ", ".join(f"[{report}]({reports.format(report)})" for report, _ in trouble.columns)
        lines.append(f"| {trouble.name} | {first} | {'–' if own is None else own} | {evidence} |")
    return "\n".join(lines)


SHORT = """Points of accuracy above plain training, all tuned alike: the mean over a report's settings, and in how many
it is decided, ▲ better or ▼ worse. Small models on two cores, ranked after the fact: [the rule](docs/when.md).
"""
RULE = """Points of accuracy above plain training, all tuned alike: the mean over a report's settings, and in how many
of them the difference is decided, ▲ better or ▼ worse. Named are, of the methods run in most settings, those that
gain and have the most ▲ less ▼. Small models on two cores, ranked after the fact:
[`reweigh compare`](compare.md) asks your own data.
"""


def written(page: str) -> str:
    """A page with the table of now."""
    path = ROOT / page
    inside = page.startswith("docs/")
    block = table("results.md" if inside else "reports/{}.md")
    text = path.read_text()
    if not MARKS.search(text):
        raise ValueError(f"{page} has no marks <!-- first --> and <!-- /first --> to write between.")
    return MARKS.sub(lambda marks: f"{marks[1]}{block}\n\n{RULE if inside else SHORT}{marks[2]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(page))
