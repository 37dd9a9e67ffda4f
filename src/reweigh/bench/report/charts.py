"""Charts: lines with bands, dots and names at their ends; the panels they are shown in; and series over epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reweigh.bench.lab.results import RowResults
from reweigh.bench.report import svg
from reweigh.bench.report.markup import element

#: Points of a line, columns of a heat map: more would only make the page heavier.
_MOST_EPOCHS = 80
#: Letters of a name at the end of a line.
_LETTERS = 14


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small picture and what it shows."""

    title: str
    markup: Markup


@dataclass(frozen=True, kw_only=True)
class Group:
    """The panels of one column."""

    name: str
    panels: Sequence[Panel]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart: its points, the role that gives its colour, and what is drawn with it.

    `band` is the lower and the upper edge of an area around it, `tips` are shown at a dot on each point, `key` is what
    the page's script finds it by, and only a `named` line has its name at its end.
    """

    name: str
    role: str
    xs: Sequence[float]
    ys: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    tip: str = ""
    tips: Sequence[str] = ()
    key: str | None = None
    named: bool = True


def lines(
    drawn: Sequence[Line],
    *,
    title: str,
    description: str,
    x_label: str,
    y_domain: tuple[float, float],
    tick: Callable[[float], str] = "{:g}".format,
    x_ticks: Sequence[float] | Callable[[svg.Frame], Sequence[float]] | None = None,
    x_domain: tuple[float, float] | None = None,
    size: tuple[float, float] = (360, 210),
    names: float = 14,
    letters: int = _LETTERS,
    log_x: bool = False,
    log_y: bool = False,
    zero: bool = False,
    y_label: str = "",
    over: Callable[[svg.Frame], str] = lambda frame: "",
) -> Markup:
    """Lines on common axes, each cut where the axes end.

    Parameters
    ----------
    drawn
        The lines; later ones are drawn over earlier ones.
    title, description
        For people who cannot see the chart.
    x_label, x_ticks, x_domain, log_x
        The horizontal axis; its domain is that of the points if not given.
    y_domain, tick, log_y, y_label
        The vertical axis, how its numbers are written, and what they are.
    size
        Width and height.
    names, letters
        Room for the names at the right, and how many letters of each are shown.
    zero
        Whether to mark zero.
    over
        Draws more marks over the lines.
    """
    xs = [x for line in drawn for x in line.xs]
    frame = svg.Frame(
        x_domain=x_domain or (min(xs), max(xs)),
        y_domain=y_domain,
        width=size[0],
        height=size[1],
        labels=names,
        log_x=log_x,
        log_y=log_y,
    )
    bands = [svg.band(frame, line.xs, *line.band, role=line.role) for line in drawn if line.band]
    marks: list[str] = []
    for line in drawn:
        marks.append(svg.line(frame, line.xs, line.ys, role=line.role, tip=line.tip, key=line.key))
        if line.tips:
            marks.append(svg.dots(frame, line.xs, line.ys, role=line.role, tips=line.tips, key=line.key, radius=3.5))
    low, high = y_domain
    ends = [
        (min(max(line.ys[-1], low), high), short(line.name, letters), line.role, line.key)
        for line in drawn
        if line.named
    ]
    return svg.chart(
        frame,
        *bands,
        svg.rule(frame, 0.0) if zero else "",
        svg.clipped(frame, *marks),
        over(frame),
        svg.end_labels(frame, ends),
        title=title,
        description=description,
        x_label=x_label,
        x_ticks=x_ticks(frame) if callable(x_ticks) else x_ticks,
        y_format=tick,
        y_label=y_label,
    )


def panels(drawn: Sequence[Panel], *, large: bool = False) -> Markup:
    """Pictures side by side, as far as there is room, each with its title."""
    figures = (element("figure", element("figcaption", panel.title), panel.markup) for panel in drawn)
    return element("div", element("div", *figures, class_="panels"), class_="large" if large else None)


def for_widths(draw: Callable[[float, float, int], Markup]) -> Markup:
    """A drawing for wide screens and paper, and one for narrow screens: letters keep their size only if it does.

    `draw` takes width, height, and how many letters a name may have.
    """
    wide, narrow = draw(540, 330, 25), draw(380, 300, 12)
    return element("div", wide, class_="when-wide") + element("div", narrow, class_="when-narrow")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A recorded number over epochs: its mean over seeds, and the sample deviation around it."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def series(row: RowResults | None, name: str) -> Series | None:
    """A recorded number of a row over the epochs that all its seeds have; None where none was recorded."""
    if row is None:
        return None
    runs = [outcome.records for outcome in row.outcomes.values()]
    if not all(isinstance(record.get(name), (int, float)) for records in runs for record in records):
        return None
    kept = shown_epochs(min(len(records) for records in runs))
    values = np.array([[float(records[i][name]) for i in kept] for records in runs])
    with np.errstate(invalid="ignore"):  # a diverged run: its numbers are left out of the drawing
        mean, deviation = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(kept))
    mean = np.where(np.isfinite(mean), mean, np.nan)
    if np.isnan(mean).all():
        return None
    return Series(
        epochs=[float(runs[0][i].get("epoch", i + 1)) for i in kept],
        mean=mean.tolist(),
        low=(mean - deviation).tolist(),
        high=(mean + deviation).tolist(),
    )


def over_epochs(
    recorded: Mapping[str, Series],
    title: str,
    roles: Mapping[str, str],
    tick: Callable[[float], str],
    *,
    within: tuple[float, float] | None = None,
) -> Markup:
    """Series with bands, each named at its end; numbers that have bounds are drawn on a linear axis `within` them."""
    means = [v for values in recorded.values() for v in values.mean if math.isfinite(v)]
    everything = means + [v for values in recorded.values() for v in (*values.low, *values.high)]
    # A loss that falls by orders of magnitude is a flat line on a linear axis.
    log = within is None and min(means) > 0 and max(means) > 40 * min(means)
    ends = {name: f"{name} ends at {tick(values.mean[-1])}" for name, values in recorded.items()}
    return lines(
        [
            Line(name=name, role=roles[name], xs=v.epochs, ys=v.mean, band=(v.low, v.high), tip=ends[name])
            for name, v in recorded.items()
        ],
        title=title,
        description=f"Mean over seeds by epoch: {'; '.join(ends.values())}.",
        x_label="epoch",
        y_domain=(min(means), max(means)) if log else svg.padded(everything, within=within),
        tick=tick,
        x_ticks=svg.whole_ticks,
        names=16 + 6.6 * min(max(map(len, recorded)), _LETTERS),
        log_y=log,
    )


def shown_epochs(count: int) -> list[int]:
    """Indices of at most a page's worth of epochs, first and last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, _MOST_EPOCHS))})


def short(name: str, letters: int) -> str:
    """A name of at most so many letters."""
    return name if len(name) <= letters else name[: letters - 1] + "…"
