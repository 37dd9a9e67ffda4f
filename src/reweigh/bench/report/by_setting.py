"""The metric against a numeric setting that differs from cell to cell, one line a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reweigh.bench import plan
from reweigh.bench.report import svg
from reweigh.bench.report.numbers import Look, looks, signed, unit_of
from reweigh.bench.report.panels import Group, Panel
from reweigh.bench.results import CellResults, Results


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One method over the values of the setting."""

    look: Look
    xs: Sequence[float]
    ys: Sequence[float]


def by_setting(results: Results) -> list[Group]:
    """Two panels for each numeric setting with three values or more, and each combination of the other settings."""
    cells = [cell for cell in results.cells if cell.cell.settings]
    names = sorted({name for cell in cells for name in cell.cell.settings})
    groups: list[Group] = []
    for name in names:
        for others, members in _alike(cells, name).items():
            places = dict(sorted((float(cell.cell.settings[name]), cell) for cell in members))
            if len(places) >= 3:
                groups.append(Group(name=_shared(members) or others, panels=_panels(results, name, places)))
    return groups


def _shared(cells: Sequence[CellResults]) -> str:
    """What the names of cells have in common, between their commas."""
    first, *rest = (cell.cell.name.split(", ") for cell in cells)
    return ", ".join(part for part in first if all(part in other for other in rest))


def _alike(cells: Sequence[CellResults], name: str) -> dict[str, list[CellResults]]:
    """Cells that have the setting as a number, by what else they set."""
    groups: dict[str, list[CellResults]] = {}
    for cell in cells:
        settings: Mapping[str, Any] = cell.cell.settings
        value = settings.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            others = ", ".join(f"{k} {v}" for k, v in sorted(settings.items()) if k != name)
            groups.setdefault(others, []).append(cell)
    return groups


def _panels(results: Results, name: str, places: Mapping[float, CellResults]) -> list[Panel]:
    def lines(number: Callable[[CellResults, str], float | None]) -> list[_Line]:
        found: list[_Line] = []
        for label, look in looks(results).items():
            points = [(x, y) for x, cell in places.items() if (y := number(cell, label)) is not None]
            if len(points) > 1:
                found.append(_Line(look=look, xs=[x for x, _ in points], ys=[y for _, y in points]))
        return sorted(found, key=lambda line: line.look.main)  # the main rows are drawn last, on top

    unit = unit_of(results)
    metric = results.table.metric_name
    panels = [_panel(results, name, f"{metric} against {name}", lines(_mean), unit.tick)]
    differences = lines(_difference)
    if differences:
        title = f"difference to the baseline against {name}{', points' if unit.points else ''}"
        panels.append(_panel(results, name, title, differences, lambda v: signed(v * unit.scale)))
    return panels


def _mean(cell: CellResults, label: str) -> float | None:
    row = cell.rows.get(label)
    return None if row is None else sum(row.values) / len(row.values)


def _difference(cell: CellResults, label: str) -> float | None:
    difference = cell.differences.get(label)
    return None if difference is None else difference.mean


def _panel(results: Results, name: str, title: str, lines: Sequence[_Line], tick: Callable[[float], str]) -> Panel:
    xs = sorted({x for line in lines for x in line.xs})
    log = xs[0] > 0 and xs[-1] / xs[0] >= 20

    def draw(width: float, height: float, letters: int) -> svg.Markup:
        frame = svg.Frame(
            x_domain=(xs[0], xs[-1]),
            y_domain=_domain(lines),
            log_x=log,
            width=width,
            height=height,
            labels=12 + 6.3 * letters,
        )
        return svg.chart(
            frame,
            svg.rule(frame, 0.0) if _compares(lines) else "",
            svg.clipped(frame, *(_draw(frame, line, tick) for line in lines)),
            svg.end_labels(frame, _names(results, lines, frame, letters)),
            title=title,
            description=f"Mean over seeds of {len(lines)} methods at {name} {', '.join(f'{x:g}' for x in xs)}.",
            x_label=name + (" (logarithmic)" if log else ""),
            x_ticks=xs,
            y_format=tick,
        )

    # Letters keep their size only if the drawing does: one for wide screens and paper, one for narrow screens.
    wide = svg.element("div", draw(540, 330, 25), class_="when-wide")
    return Panel(title=title, markup=wide + svg.element("div", draw(380, 300, 12), class_="when-narrow"))


def _compares(lines: Sequence[_Line]) -> bool:
    """Whether the lines are differences: then the baseline is not one of them, but their zero."""
    return all(line.look.label != plan.BASELINE for line in lines)


def _domain(lines: Sequence[_Line]) -> tuple[float, float]:
    """Room for the main rows and for others near them: one method that fails should not flatten all the rest."""
    main = [y for line in lines if line.look.main for y in line.ys] or [y for line in lines for y in line.ys]
    low, high = svg.padded(main, share=1.2)
    return svg.padded([y for line in lines for y in line.ys if low <= y <= high])


def _draw(frame: svg.Frame, line: _Line, tick: Callable[[float], str]) -> svg.Markup:
    look = line.look
    drawn = svg.line(frame, line.xs, line.ys, role=look.role, tip=look.label, key=look.key)
    if look.main:
        tips = [f"{look.label} at {x:g}: {tick(y)}" for x, y in zip(line.xs, line.ys, strict=True)]
        drawn += svg.dots(frame, line.xs, line.ys, role=look.role, tips=tips, key=look.key, radius=3.5)
    return drawn


def _names(
    results: Results, lines: Sequence[_Line], frame: svg.Frame, letters: int
) -> list[tuple[float, str, str, str | None]]:
    """Names for the main rows, and for the best of the others."""
    named = [line for line in lines if line.look.main]
    rest = [line for line in lines if not line.look.main]
    if rest:
        named.append(rest[results.table.best([line.ys[-1] for line in rest])])
    low, high = frame.y_domain
    return [
        (min(max(line.ys[-1], low), high), _short(line.look.label, letters), line.look.role, line.look.key)
        for line in named
    ]


def _short(label: str, most: int) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
