"""Drawing: scales, axes and marks as small functions that return markup.

Colours are classes, not values: the page's style sheet knows what `primary` or `baseline` looks like in light, in
dark and on paper. `charts` puts them together; a recipe uses them for what it alone draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from reweigh.bench.report.markup import element

#: Steps of a heat map's shade.
_SHADES = 10


@dataclass(frozen=True)
class AxisScale:
    """From numbers to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a number."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def ticks(self, count: int = 4) -> list[float]:
        """Round numbers inside the scale."""
        return _log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high, count)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A chart's two scales and its outer size; `labels` is the room at the right for the names of lines."""

    x_domain: tuple[float, float]
    y_domain: tuple[float, float]
    width: float = 360
    height: float = 210
    labels: float = 14
    log_x: bool = False
    log_y: bool = False
    x: AxisScale = field(init=False)
    y: AxisScale = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", AxisScale(*self.x_domain, 44, self.width - self.labels, self.log_x))
        object.__setattr__(self, "y", AxisScale(*self.y_domain, self.height - 36, 14, self.log_y))


def chart(
    frame: Frame,
    *marks: str,
    title: str,
    description: str,
    x_label: str,
    y_format: Callable[[float], str] = "{:g}".format,
    x_format: Callable[[float], str] = "{:g}".format,
    x_ticks: Sequence[float] | None = None,
    y_ticks: Sequence[float] | None = None,
    y_label: str = "",
) -> Markup:
    """Marks with their axes, named for people who cannot see them."""
    x, y = frame.x, frame.y
    axes: list[str] = [text(x.start, y.end - 6, y_label, class_="axis-label")] if y_label else []
    for value in y.ticks() if y_ticks is None else y_ticks:
        axes.append(element("line", class_="grid", x1=x.start, x2=x.end, y1=y(value), y2=y(value)))
        axes.append(text(x.start - 6, y(value) + 4, y_format(value), class_="tick", anchor="end"))
    for value in x.ticks(5) if x_ticks is None else x_ticks:
        axes.append(text(x(value), y.start + 15, x_format(value), class_="tick", anchor="middle"))
    axes.append(element("line", class_="axis", x1=x.start, x2=x.end, y1=y.start, y2=y.start))
    axes.append(text((x.start + x.end) / 2, y.start + 31, x_label, class_="axis-label", anchor="middle"))
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *axes,
        *marks,
        viewBox=f"0 0 {frame.width:g} {frame.height:g}",
        role="img",
        class_="chart",
    )


def text(x: float, y: float, words: str, *, class_: str = "", anchor: str = "start") -> Markup:
    """Words at a place."""
    return element("text", words, x=x, y=y, class_=class_ or None, text_anchor=anchor if anchor != "start" else None)


def line(
    frame: Frame, xs: Sequence[float], ys: Sequence[float], *, role: str, tip: str = "", key: str | None = None
) -> Markup:
    """A line through points; what is not finite breaks it."""
    path = "".join(_path(frame, part) for part in _finite_parts(xs, ys))
    title = [element("title", tip)] if tip else []
    return element("path", *title, d=path, class_=f"line {role}", data_m=key)


def band(
    frame: Frame,
    xs: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    *,
    role: str,
    key: str | None = None,
) -> Markup:
    """The area between two lines, cut at the frame."""
    low, high = frame.y_domain
    inside = [
        (x, min(max(a, low), high), min(max(b, low), high))
        for x, a, b in zip(xs, lows, highs, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if not inside:
        return Markup("")
    around = [(x, b) for x, _, b in inside] + [(x, a) for x, a, _ in reversed(inside)]
    return element("path", d=_path(frame, around) + "Z", class_=f"band {role}", data_m=key)


def dots(
    frame: Frame,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    role: str,
    tips: Sequence[str] = (),
    key: str | None = None,
    radius: float = 3,
) -> Markup:
    """A dot at each point, with a tip each if given."""
    drawn = [
        element(
            "circle",
            *([element("title", tips[i])] if tips else []),
            cx=frame.x(x),
            cy=frame.y(y),
            r=radius,
            class_=f"dot {role}",
            data_m=key,
        )
        for i, (x, y) in enumerate(zip(xs, ys, strict=True))
        if math.isfinite(y)
    ]
    return Markup("").join(drawn)


def points(frame: Frame, xs: Sequence[float], ys: Sequence[float], *, role: str) -> Markup:
    """Many dots as one path, which takes a tenth of the room; they have no tips."""
    path = "".join(f"M{frame.x(x):.1f} {frame.y(y):.1f}h0" for x, y in zip(xs, ys, strict=True))
    return element("path", d=path, class_=f"points {role}")


def cross(
    frame: Frame, x: tuple[float, float], y: tuple[float, float], at: tuple[float, float], *, role: str
) -> Markup:
    """The interval of a point in both directions, cut at the frame."""
    (left, right), (bottom, top) = (
        [min(max(end, domain[0]), domain[1]) for end in ends]
        for ends, domain in ((x, frame.x_domain), (y, frame.y_domain))
    )
    arms = f"M{frame.x(left):.1f} {frame.y(at[1]):.1f}H{frame.x(right):.1f}"
    arms += f"M{frame.x(at[0]):.1f} {frame.y(bottom):.1f}V{frame.y(top):.1f}"
    return element("path", d=arms, class_=f"cross {role}")


def end_labels(frame: Frame, labels: Iterable[tuple[float, str, str, str | None]], *, gap: float = 13) -> Markup:
    """Names at the right end of lines, `(y, words, role, key)`, moved apart where they would touch."""
    placed = sorted(((frame.y(y), words, role, key) for y, words, role, key in labels if math.isfinite(y)))
    heights: list[float] = []
    for y, *_ in placed:
        heights.append(max(y, heights[-1] + gap) if heights else y)
    lowest = frame.y.start - 5
    for i in reversed(range(len(heights))):  # push back up what fell onto the axis
        heights[i] = min(heights[i], lowest)
        lowest = heights[i] - gap
    return Markup("").join(
        element("text", words, x=frame.x.end + 5, y=height + 4, class_=f"name {role}", data_m=key)
        for height, (_, words, role, key) in zip(heights, placed, strict=True)
    )


def clipped(frame: Frame, *marks: str) -> Markup:
    """Marks that end where the axes do."""
    x, y, width, height = (
        frame.x.start - 4,
        frame.y.end - 4,
        frame.x.end - frame.x.start + 8,
        frame.y.start - frame.y.end + 4,
    )
    box = f"{x:g} {y:g} {width:g} {height:g}"
    return element("svg", *marks, x=x, y=y, width=width, height=height, viewBox=box)


def rule(frame: Frame, y: float) -> Markup:
    """A horizontal reference line."""
    return element("line", class_="rule", x1=frame.x.start, x2=frame.x.end, y1=frame.y(y), y2=frame.y(y))


def shades(frame: Frame, x_edges: Sequence[float], y_edges: Sequence[float], shares: np.ndarray) -> Markup:
    """A heat map of `shares` in [0, 1], `(columns, rows)`: one path for each shade keeps it small."""
    paths = [""] * (_SHADES + 1)
    for i, column in enumerate(shares):
        left, right = frame.x(x_edges[i]), frame.x(x_edges[i + 1])
        for j, share in enumerate(column):
            shade = round(float(share) * _SHADES)
            bottom, top = frame.y(y_edges[j]), frame.y(y_edges[j + 1])
            if shade:
                paths[shade] += f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z"
    return Markup("").join(
        element("path", d=path, class_="shade", fill_opacity=round(shade / _SHADES, 2))
        for shade, path in enumerate(paths)
        if path
    )


def tile(
    frame: Frame, x: tuple[float, float], y: tuple[float, float], share: float | None, words: str, tip: str
) -> Markup:
    """One square of a labelled heat map; no share is an empty one."""
    left, right, bottom, top = frame.x(x[0]) + 1, frame.x(x[1]) - 1, frame.y(y[0]) - 1, frame.y(y[1]) + 1
    square = element(
        "rect",
        element("title", tip),
        x=left,
        y=top,
        width=right - left,
        height=bottom - top,
        class_="tile empty" if share is None else "tile",
        fill_opacity=None if share is None else round(0.06 + 0.7 * share, 2),
    )
    strong = "tile-text strong" if share is not None and share > 0.999 else "tile-text"
    return square + text((left + right) / 2, (bottom + top) / 2 + 4, words, class_=strong, anchor="middle")


def padded(
    values: Iterable[float], *, share: float = 0.06, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """A domain around the finite values, a little wider than they are, but not wider than `within`."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = (high - low) * share or abs(high) * share or 0.5
    low, high = low - room, high + room
    return (low, high) if within is None else (max(low, within[0]), min(high, within[1]))


def linear_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers between two ends."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def whole_ticks(frame: Frame) -> list[float]:
    """The whole numbers among the ticks of the x axis: there is no half epoch."""
    return [tick for tick in frame.x.ticks(5) if tick == round(tick)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten and, where they are few, twice and five times them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(ticks) >= 3:
            return ticks if len(ticks) <= 6 else ticks[:: -(-len(ticks) // 6)]
    return ticks or [low, high]


def _path(frame: Frame, points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in points)


def _finite_parts(xs: Sequence[float], ys: Sequence[float]) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if math.isfinite(y):
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
