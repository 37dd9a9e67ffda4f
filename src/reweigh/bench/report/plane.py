"""Two metrics against each other: every method as a point with its intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reweigh.bench.report import svg
from reweigh.bench.report.charts import for_widths, short
from reweigh.bench.report.numbers import Unit

#: Between a point and its name, the width of a bold letter, and the height of a line of text.
_GAP, _LETTER, _LINE = 9.0, 7.4, 14.0


@dataclass(frozen=True, kw_only=True)
class PlanePoint:
    """A method: its numbers in both metrics, their intervals if it has some, and whether its name is shown."""

    name: str
    role: str
    at: tuple[float, float]
    x_span: tuple[float, float] | None = None
    y_span: tuple[float, float] | None = None
    named: bool = False


def plane(points: Sequence[PlanePoint], *, names: tuple[str, str], units: tuple[Unit, Unit]) -> Markup:
    """All points on two axes; the named ones are drawn last, on top.

    Parameters
    ----------
    points
        The methods.
    names, units
        What the axes are, and how their numbers are written.
    """
    finite = [point for point in points if all(map(math.isfinite, point.at))]
    ordered = sorted(finite, key=lambda point: point.named)
    described = "; ".join(f"{p.name} {_place(p, units)}" for p in finite if p.named)

    def draw(width: float, height: float, letters: int) -> Markup:
        del letters  # names have the room between their point and the edge
        frame = svg.Frame(
            x_domain=_domain([p.at[0] for p in finite], [p.x_span for p in finite if p.named]),
            y_domain=_domain([p.at[1] for p in finite], [p.y_span for p in finite if p.named]),
            width=width,
            height=height,
        )
        marks: list[str] = []
        for point in ordered:
            if point.x_span is not None and point.y_span is not None:
                marks.append(svg.cross(frame, point.x_span, point.y_span, point.at, role=point.role))
            tip = f"{point.name}: {_place(point, units)}"
            marks.append(
                svg.dots(
                    frame, [point.at[0]], [point.at[1]], role=point.role, tips=[tip], radius=5 if point.named else 3.5
                )
            )
        marks += _names(frame, ordered)
        return svg.chart(
            frame,
            *marks,
            title=f"{names[1]} against {names[0]}",
            description=f"{len(finite)} methods. {described}.",
            x_label=names[0],
            y_label=names[1],
            x_format=units[0].tick,
            y_format=units[1].tick,
        )

    return for_widths(draw)


def _place(point: PlanePoint, units: tuple[Unit, Unit]) -> str:
    return ", ".join(f"{unit.value(value)}{unit.sign}" for unit, value in zip(units, point.at, strict=True))


def _domain(values: Sequence[float], spans: Sequence[tuple[float, float] | None]) -> tuple[float, float]:
    """Room for every point, and for the intervals of the named ones as far as they do not dwarf the points."""
    low, high = min(values), max(values)
    reach = 0.6 * (high - low) or math.inf
    ends = [end for span in spans if span is not None for end in span if math.isfinite(end)]
    return svg.padded([*values, *np.clip(ends, low - reach, high + reach).tolist()])


def _names(frame: svg.Frame, points: Sequence[PlanePoint]) -> list[Markup]:
    """Names of the named points next to them, on the side that has more room.

    They stand above or below, so that none covers another, and where they cover the fewest points.
    """
    taken: list[tuple[float, float, float]] = []
    marks: list[Markup] = []
    dots = [(frame.x(point.at[0]), frame.y(point.at[1])) for point in points]
    for point in (point for point in points if point.named):
        x, y = frame.x(point.at[0]), frame.y(point.at[1])
        right = x < (frame.x.start + frame.x.end) / 2
        room = (frame.x.end - x if right else x - frame.x.start) - _GAP
        name = short(point.name, max(int(room / _LETTER), 1))
        left = x + _GAP if right else x - _GAP - _LETTER * len(name)
        end = left + _LETTER * len(name)
        heights = [y - 7 - k * _LINE for k in range(3)] + [y + 17 + k * _LINE for k in range(3)]
        inside = [height for height in heights if frame.y.end + _LINE <= height <= frame.y.start - 4]
        free = [h for h in inside or heights if not any(_covers((left, end, h), box) for box in taken)]
        # The nearest of those that hide the fewest dots; a line of text reaches from its height up.
        height = min(
            free or [y - 7],
            key=lambda h: (sum(left - 4 < a < end + 4 and h - _LINE < b < h + 4 for a, b in dots), abs(h - y)),
        )
        taken.append((left, end, height))
        anchor = "start" if right else "end"
        marks.append(svg.text(x + (_GAP if right else -_GAP), height, name, class_=f"name {point.role}", anchor=anchor))
    return marks


def _covers(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Whether two lines of text, as left end, right end and height, overlap."""
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < _LINE
