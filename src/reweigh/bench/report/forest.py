"""Differences to the baseline with their intervals, one line per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reweigh.bench.lab.conclusions import Conclusion
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.report.markup import element
from reweigh.bench.report.numbers import MarkStyle, Unit, breakable, looks, signed, typeset, unit_of
from reweigh.bench.report.svg import linear_ticks

#: Letters of the axis that fit under the narrowest plot.
_LETTERS = 22


@dataclass(frozen=True, kw_only=True)
class ForestLine:
    """One method: its mark on the shared axis, and the numbers next to it."""

    look: MarkStyle
    mark: Markup
    mean: str
    interval: str
    tip: str
    #: What is concluded, where the page says so of each line.
    word: str = ""


@dataclass(frozen=True, kw_only=True)
class Forest:
    """One column: its lines and its axis. Marks are placed in percent, so that they fit any width."""

    name: str
    lines: Sequence[ForestLine]
    axis: Markup

    @property
    def letters(self) -> int:
        """How wide the numbers next to the plot are."""
        return max((len(line.mean + line.interval) + 1 for line in self.lines), default=0)

    @property
    def name_letters(self) -> int:
        """How wide the names are."""
        return max((len(line.look.label) for line in self.lines), default=0)

    @property
    def markup(self) -> Markup:
        """The lines, each with its name, its mark and its numbers, and the axis below them."""
        items = [
            element(
                "li",
                element("span", breakable(line.look.label), class_="label", title=line.look.label),
                element("span", line.mark, class_="plot"),
                element(
                    "span",
                    element("b", typeset(line.mean)),
                    " ",
                    typeset(line.interval),
                    class_="number",
                    title=line.tip,
                ),
                *([element("span", line.word, class_="word")] if line.word else []),
                data_m=line.look.key,
                class_=line.look.role,
            )
            for line in self.lines
        ]
        spacers = (
            element("span", class_="label"),
            element("span", self.axis, class_="plot"),
            element("span", class_="number"),
            *([element("span", class_="word")] if any(line.word for line in self.lines) else []),
        )
        return element("ol", *items, element("li", *spacers, class_="axis-line", aria_hidden="true"))


def forest(results: Results) -> list[Forest]:
    """The forest plot of every column that has a difference, all on one scale."""
    columns = [column for column in results.columns if column.differences]
    if not columns:
        return []
    styles, unit = looks(results), unit_of(results)
    rows = [[(styles[label], d) for label, d in column.differences.items()] for column in columns]
    domain = _domain([pair for own in rows for pair in own])
    return [_forest(column.name, own, unit, domain) for column, own in zip(columns, rows, strict=True)]


def ranking(name: str, rows: Sequence[tuple[MarkStyle, Difference]], unit: Unit) -> Forest:
    """One forest plot of rows that are in order already."""
    return _forest(name, rows, unit, _domain(rows))


def settings_forest(concluded: Sequence[Conclusion], unit: Unit, *, worth: float) -> Forest:
    """One line per setting: the difference, the paper's gain as a diamond, and a band of what would not matter."""
    rows = [
        (MarkStyle(label=one.setting, role="primary", key=f"s{i}"), one.difference) for i, one in enumerate(concluded)
    ]
    domain = _widened(_domain(rows), [*(one.gain for one in concluded if one.gain is not None), -worth, worth])
    lines = [
        _line(look, d, unit, domain, concluded=one, worth=worth) for (look, d), one in zip(rows, concluded, strict=True)
    ]
    return Forest(name="", lines=lines, axis=_axis(domain, unit))


def _widened(domain: tuple[float, float], values: Sequence[float]) -> tuple[float, float]:
    low, high = min(domain[0], *values), max(domain[1], *values)
    room = 0.02 * (high - low)
    return low - room, high + room


def _forest(name: str, rows: Sequence[tuple[MarkStyle, Difference]], unit: Unit, domain: tuple[float, float]) -> Forest:
    return Forest(name=name, lines=[_line(look, d, unit, domain) for look, d in rows], axis=_axis(domain, unit))


def _domain(everything: Sequence[tuple[MarkStyle, Difference]]) -> tuple[float, float]:
    """Wide enough for zero, the main rows and most others; what lies beyond is drawn as an arrow."""
    ends = [abs(e) for _, d in everything for e in (d.low, d.high, d.mean) if math.isfinite(e)]
    if not ends:  # nothing to compare with yet
        return -1.0, 1.0
    main = [e for look, d in everything if look.role == "primary" for e in (d.low, d.high)]
    limit = max(3 * float(np.quantile(ends, 0.9)), *(abs(e) for e in main if math.isfinite(e)), 1e-9)
    inside = [e for _, d in everything for e in (d.low, d.high, d.mean) if abs(e) <= limit]
    low, high = min(0.0, *inside), max(0.0, *inside)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def _percent(value: float, domain: tuple[float, float]) -> float:
    return 100 * (value - domain[0]) / (domain[1] - domain[0])


def _line(
    look: MarkStyle,
    d: Difference,
    unit: Unit,
    domain: tuple[float, float],
    *,
    concluded: Conclusion | None = None,
    worth: float = 0.0,
) -> ForestLine:
    def place(value: float) -> str:
        return f"{min(max(_percent(value, domain), 0.5), 99.5):.2f}%"

    mean, interval = unit.signed(d.mean), unit.interval(d)
    tip = f"{look.label}: {mean} {interval}, n = {d.n}, p = {d.p:.3g}"
    tip += f", sign-flip p = {d.p_permutation:.3g}" if d.p_permutation is not None else ""
    tip += f", Holm p = {d.p_holm:.3g}" if d.p_holm is not None else ""
    tip += ", declared beforehand" if d.primary else ""
    tip += f", effect size {d.effect:.2f}" if math.isfinite(d.effect) else ""
    marks = [element("line", class_="zero", x1=place(0), x2=place(0), y1="0", y2="100%")]
    if worth:
        start, end = (_percent(edge, domain) for edge in (-worth, worth))
        band = element("rect", class_="worth", x=f"{start:.2f}%", width=f"{end - start:.2f}%", y="0", height="22")
        marks.insert(0, band)
    if concluded is not None and concluded.gain is not None:
        tip += f"; the paper: {unit.signed(concluded.gain)}"
        diamond = element("path", d="M0 5L5 11L0 17L-5 11Z", class_="aim")
        marks.append(element("svg", diamond, x=place(concluded.gain), overflow="visible"))
    if math.isfinite(d.low):
        marks.append(element("line", class_=f"span {look.role}", x1=place(d.low), x2=place(d.high), y1=11, y2=11))
    marks += [_beyond(end, look.role) for end in ("left", "right") if _outside(d, domain, end)]
    if domain[0] <= d.mean <= domain[1]:
        marks.append(element("circle", class_=f"dot {look.role}", cx=place(d.mean), cy=11, r=4.5))
    mark = element("svg", element("title", tip), *marks, class_="mark", height=22, role="img")
    word = "" if concluded is None else concluded.word
    return ForestLine(look=look, mark=mark, mean=mean, interval=interval, tip=tip, word=word)


def _outside(d: Difference, domain: tuple[float, float], end: str) -> bool:
    return d.low < domain[0] if end == "left" else d.high > domain[1]


def _beyond(end: str, role: str) -> Markup:
    """An arrow at the edge: the interval continues beyond it."""
    points = "M7 6L1 11L7 16Z" if end == "left" else "M-7 6L-1 11L-7 16Z"
    return element(
        "svg", element("path", d=points, class_=f"dot {role}"), x="0%" if end == "left" else "100%", overflow="visible"
    )


def _ticks(domain: tuple[float, float], unit: Unit) -> list[float]:
    """As many round numbers as have room side by side in the narrowest plot."""
    for count in (4, 3, 2):
        ticks = linear_ticks(*domain, count)
        if sum(len(signed(value * unit.scale)) + 1.5 for value in ticks) <= _LETTERS:
            return ticks
    return [0.0]


def _axis(domain: tuple[float, float], unit: Unit) -> Markup:
    marks: list[Markup] = []
    for value in _ticks(domain, unit):
        at = f"{_percent(value, domain):.2f}%"
        marks.append(element("line", class_="axis", x1=at, x2=at, y1=0, y2=5))
        marks.append(element("text", signed(value * unit.scale), x=at, y=18, class_="tick", text_anchor="middle"))
    return element(
        "svg",
        element("line", class_="axis", x1="0%", x2="100%", y1=0.5, y2=0.5),
        *marks,
        class_="mark",
        height=22,
        aria_hidden="true",
    )
