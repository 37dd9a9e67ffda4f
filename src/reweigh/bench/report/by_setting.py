"""The metric against a numeric setting that differs from column to column, one line per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.report import svg
from reweigh.bench.report.charts import Group, Line, Panel, for_widths, lines
from reweigh.bench.report.numbers import MarkStyle, looks, signed, unit_of


def by_setting(results: Results) -> list[Group]:
    """Two panels for each numeric setting with three values or more, and each combination of the other settings."""
    columns = [column for column in results.columns if column.column.settings]
    names = sorted({name for column in columns for name in column.column.settings})
    groups: list[Group] = []
    for name in names:
        for others, members in _alike(columns, name).items():
            places = dict(sorted((float(column.column.settings[name]), column) for column in members))
            if len(places) >= 3:
                groups.append(Group(name=_shared(members) or others, panels=_panels(results, name, places)))
    return groups


def _shared(columns: Sequence[ColumnResults]) -> str:
    """What the names of columns have in common, between their commas."""
    first, *rest = (column.name.split(", ") for column in columns)
    return ", ".join(part for part in first if all(part in other for other in rest))


def _alike(columns: Sequence[ColumnResults], name: str) -> dict[str, list[ColumnResults]]:
    """Columns that have the setting as a number, by what else they set."""
    groups: dict[str, list[ColumnResults]] = {}
    for column in columns:
        settings: Mapping[str, Any] = column.column.settings
        value = settings.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            others = ", ".join(f"{k} {v}" for k, v in sorted(settings.items()) if k != name)
            groups.setdefault(others, []).append(column)
    return groups


def _panels(results: Results, name: str, places: Mapping[float, ColumnResults]) -> list[Panel]:
    unit, metric = unit_of(results), results.table.metric_name
    panels = [_panel(results, name, places, f"{metric} against {name}", _mean, unit.tick)]
    differences = f"difference to the baseline against {name}{', points' if unit.points else ''}"
    panels.append(_panel(results, name, places, differences, _difference, lambda v: signed(v * unit.scale)))
    return [panel for panel in panels if panel is not None]


def _mean(column: ColumnResults, label: str) -> float | None:
    row = column.rows.get(label)
    return None if row is None else sum(row.values) / len(row.values)


def _difference(column: ColumnResults, label: str) -> float | None:
    difference = column.differences.get(label)
    return None if difference is None else difference.mean


def _panel(
    results: Results,
    name: str,
    places: Mapping[float, ColumnResults],
    title: str,
    number: Callable[[ColumnResults, str], float | None],
    tick: Callable[[float], str],
) -> Panel | None:
    drawn: list[tuple[MarkStyle, Line]] = []
    for label, look in looks(results).items():
        points = [(x, y) for x, column in places.items() if (y := number(column, label)) is not None]
        if len(points) > 1:
            tips = [f"{look.label} at {x:g}: {tick(y)}" for x, y in points] if look.main else []
            xs, ys = zip(*points, strict=True)
            line = Line(name=look.label, role=look.role, xs=xs, ys=ys, tip=look.label, tips=tips, key=look.key)
            drawn.append((look, line))
    if not drawn:
        return None
    drawn.sort(key=lambda pair: pair[0].main)  # the main rows are drawn last, on top
    rest = [line for look, line in drawn if not look.main]
    # Of the other rows only the best has a name.
    best = rest[results.table.best([line.ys[-1] for line in rest])] if rest else None
    chart = [replace(line, named=look.main or line is best) for look, line in drawn]
    xs = sorted({x for line in chart for x in line.xs})
    log = xs[0] > 0 and xs[-1] / xs[0] >= 20

    def draw(width: float, height: float, letters: int) -> Markup:
        return lines(
            chart,
            title=title,
            description=f"Mean over seeds of {len(chart)} methods at {name} {', '.join(f'{x:g}' for x in xs)}.",
            x_label=name + (" (logarithmic)" if log else ""),
            y_domain=_domain([line for look, line in drawn if look.main], chart),
            tick=tick,
            x_ticks=xs,
            size=(width, height),
            names=12 + 6.3 * letters,
            letters=letters,
            log_x=log,
            # Where the baseline is not a line, lines are differences to it, and it is their zero.
            zero=all(look.label != plan.BASELINE for look, _ in drawn),
        )

    return Panel(title=title, markup=for_widths(draw))


def _domain(main: Sequence[Line], everything: Sequence[Line]) -> tuple[float, float]:
    """Room for the main rows and for others near them: one method that fails should not flatten all the rest."""
    low, high = svg.padded([y for line in main or everything for y in line.ys], share=1.2)
    return svg.padded([y for line in everything for y in line.ys if low <= y <= high])
