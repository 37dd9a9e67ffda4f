"""Two numbers for each of many names, as two dots that are linked: a class or a group before and after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reweigh.bench.report.markup import element
from reweigh.bench.report.numbers import Unit, typeset
from reweigh.bench.report.svg import AxisScale, linear_ticks


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A name and its two numbers; `span` is the interval of the second, drawn behind the dots."""

    name: str
    before: float
    after: float
    span: tuple[float, float] | None = None


def scale_of(pairs: Iterable[Pair], unit: Unit) -> AxisScale:
    """A scale for all of them: whole tens of percent around the dots, or a little more than the numbers need."""
    values = [value for pair in pairs for value in (pair.before, pair.after) if math.isfinite(value)]
    if unit.sign:
        low = math.floor(10 * min(values, default=0.0) + 1e-9) / 10
        return AxisScale(low, max(math.ceil(10 * max(values, default=1.0) - 1e-9) / 10, low + 0.1), 2, 98)
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.5
    return AxisScale(low - room, high + room, 2, 98)


def dumbbells(
    pairs: Sequence[Pair],
    unit: Unit,
    *,
    scale: AxisScale | None = None,
    names: tuple[str, str] = ("baseline", "primary"),
    smallest: bool = False,
) -> Markup:
    """A line for each pair, and the axis below them; the link is dashed where the second number is the worse one."""
    scale = scale or scale_of(pairs, unit)
    items = [
        element(
            "li",
            element("span", pair.name, class_="label", title=pair.name),
            element("span", _mark(pair, unit, scale, names, smallest), class_="plot"),
            element("span", f"{_written(unit, pair.before)} → {_written(unit, pair.after)}", class_="number"),
        )
        for pair in pairs
    ]
    axis = element("li", element("span"), element("span", _axis(scale, unit), class_="plot"), class_="axis-line")
    return element("ol", *items, axis)


def _written(unit: Unit, value: float) -> str:
    return typeset(unit.value(value)) if math.isfinite(value) else "–"


def _mark(pair: Pair, unit: Unit, scale: AxisScale, names: tuple[str, str], smallest: bool) -> Markup:
    known = math.isfinite(pair.before + pair.after)  # what was never tested is a line without dots
    before, after = (f"{_written(unit, value)}{unit.sign}" for value in (pair.before, pair.after))
    tip = f"{pair.name}: {names[0]} {before}, {names[1]} {after}" if known else f"{pair.name}: not tested"
    if pair.span is not None:
        tip += f" [{unit.value(pair.span[0])}, {unit.value(pair.span[1])}]"
    return element(
        "svg",
        element("title", tip),
        element("line", class_="grid", x1="2%", x2="98%", y1=9, y2=9),
        *(_dots(pair, scale, smallest) if known else ()),
        class_="mark",
        height=18,
        role="img",
    )


def _dots(pair: Pair, scale: AxisScale, smallest: bool) -> list[Markup]:
    def place(value: float) -> str:
        return f"{min(max(scale(value), 0.0), 100.0):.2f}%"

    gains = (pair.after <= pair.before) if smallest else (pair.after >= pair.before)
    ends = {"x1": place(pair.before), "x2": place(pair.after), "y1": 9, "y2": 9}
    marks = [element("line", class_="link " + ("primary" if gains else "loss"), **ends)]
    if pair.span is not None:
        low, high = map(place, pair.span)
        marks.insert(0, element("line", class_="reach primary", x1=low, x2=high, y1=9, y2=9))
    return [
        *marks,
        element("circle", class_="dot hollow baseline", cx=place(pair.before), cy=9, r=4),
        element("circle", class_="dot primary", cx=place(pair.after), cy=9, r=4),
    ]


def _axis(scale: AxisScale, unit: Unit) -> Markup:
    ticks = [
        element("text", f"{unit.scale * value:g}", x=f"{scale(value):.2f}%", y=11, class_="tick", text_anchor="middle")
        for value in linear_ticks(scale.low, scale.high, 3)
    ]
    return element("svg", *ticks, class_="mark", height=16, aria_hidden="true")
