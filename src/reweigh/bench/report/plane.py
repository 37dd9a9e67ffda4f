"""Two metrics against each other: every method as a point with its intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reweigh.bench.report import svg
from reweigh.bench.report.charts import for_widths
from reweigh.bench.report.numbers import Unit


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
        marks += [_name(frame, point, letters) for point in ordered if point.named]
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


def _name(frame: svg.Frame, point: PlanePoint, letters: int) -> Markup:
    """The name next to a point, on the side that has more room."""
    x, y = frame.x(point.at[0]), frame.y(point.at[1])
    right = x < (frame.x.start + frame.x.end) / 2
    name = point.name if len(point.name) <= letters else point.name[: letters - 1] + "…"
    return svg.text(
        x + (9 if right else -9), y - 7, name, class_=f"name {point.role}", anchor="start" if right else "end"
    )
