"""The tuning surface: validation score by hyper-parameter and learning rate, as far as trials were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Outcome, Results
from reweigh.bench.report import svg
from reweigh.bench.report.charts import Group, Panel
from reweigh.bench.report.numbers import Unit, shown, unit
from reweigh.method import hyper_parameters, method

Hyperparameters = Mapping[str, object]


def tuning(results: Results) -> list[Group]:
    """One panel per column: the trials of the primary row, and of the baseline beneath them."""
    groups = [(column.name, _panel(results, column)) for column in results.columns]
    return [Group(name=name, panels=[panel]) for name, panel in groups if panel]


def _panel(results: Results, column: ColumnResults) -> Panel | None:
    trials = [o for o in column.tuning if o.run.spec.label == results.table.primary]
    plain = [o for o in column.tuning if o.run.spec.label == plan.BASELINE]
    if len(trials) < 2:
        return None
    name = _moving(trials)
    by_tile: dict[tuple[str, float], dict[str, list[float]]] = {}
    for outcome in trials + plain:
        value = _parameters(outcome).get(name, "") if name else ""
        row = plan.BASELINE if outcome in plain else _row_name(name, value, results.table.primary)
        score = float(outcome.records[outcome.chosen][results.table.select])
        by_tile.setdefault((row, _rate(outcome)), {}).setdefault(outcome.run.spec.method, []).append(score)
    scores = {tile: best for tile, own in by_tile.items() if (best := _best_mean(results, own)) is not None}
    if len(scores) < 2:
        return None
    rates = sorted({rate for _, rate in scores})
    names = sorted({row for row, _ in scores if row != plan.BASELINE}, key=_by_number, reverse=True)
    rows = ([plan.BASELINE] if plain else []) + names
    title = f"{results.table.select} of each trial"
    return Panel(title=title, markup=_surface(results, column, scores, rows, rates, title))


def _surface(
    results: Results,
    column: ColumnResults,
    scores: Mapping[tuple[str, float], float],
    rows: Sequence[str],
    rates: Sequence[float],
    title: str,
) -> svg.Markup:
    written: Unit = unit(results.table.select, scores.values())
    low, high = min(scores.values()), max(scores.values())
    frame = svg.Frame(
        x_domain=(-0.5 if max(map(len, rows)) > 6 else 0, len(rates)),
        y_domain=(0, len(rows)),
        height=56 + 30 * len(rows),
    )
    tiles: list[str] = []
    for j, row in enumerate(rows):
        tiles.append(svg.text(frame.x(0) - 6, frame.y(j + 0.5) + 4, row, class_="tick", anchor="end"))
        for i, rate in enumerate(rates):
            score = scores.get((row, rate))
            share = None if score is None else (score - low) / ((high - low) or 1.0)
            if share is not None and results.table.smallest:
                share = 1.0 - share
            words = "" if score is None else f"{score * written.scale:.4g}"
            tip = f"{row}, lr {rate:g}: {'not tried' if score is None else words + written.sign}"
            tiles.append(svg.tile(frame, (i, i + 1), (j, j + 1), share, words, tip))
    return svg.chart(
        frame,
        *tiles,
        title=f"{title}, {column.name}",
        description=f"{len(scores)} trials, scores from {written.value(low)} to {written.value(high)}.",
        x_label="learning rate",
        x_ticks=[i + 0.5 for i in range(len(rates))],
        x_format=lambda at: f"{rates[int(at)]:g}",
        y_ticks=[],
    )


def edges(results: Results) -> list[str]:
    """For each column, which rows were tuned to the smallest or largest value that was tried: more may lie beyond."""
    lines: list[str] = []
    for column in results.columns if not results.table.draws else ():
        at_edge = [text for label in column.rows if (text := _at_edge(results, column, label))]
        if at_edge:
            lines.append(f"{column.name}: {'; '.join(at_edge)}.")
    return lines


def _at_edge(results: Results, column: ColumnResults, label: str) -> str:
    """The hyper-parameters of a row whose chosen value is the smallest or the largest of three and more."""
    trials = [o for o in column.tuning if o.run.spec.label == label]
    if not trials:
        return ""
    chosen = next(iter(column.rows[label].outcomes.values()))
    tried: dict[str, tuple[list[object], object]] = {"rate": ([_rate(o) for o in trials], _rate(chosen))}
    for name, value in _parameters(chosen).items():
        tried[name] = ([_parameters(o).get(name) for o in trials], value)
    parts: list[str] = []
    for name, (values, value) in tried.items():
        numbers = sorted({v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)})
        if len(numbers) > 2 and value in (numbers[0], numbers[-1]):
            parts.append(f"{'smallest' if value == numbers[0] else 'largest'} {name} ({value:g})")
    return f"{shown(results.table, label)} with the {' and the '.join(parts)}" if parts else ""


def _best_mean(results: Results, scores: Mapping[str, Sequence[float]]) -> float | None:
    """The best of the means over seeds, where several settings of other hyper-parameters share a tile."""
    means = [sum(values) / len(values) for values in scores.values()]
    means = [mean for mean in means if math.isfinite(mean)]
    return means[results.table.best(means)] if means else None


def _moving(trials: Sequence[Outcome]) -> str | None:
    """The hyper-parameter that was searched: tau if it moves, else the first that does."""
    seen = [_parameters(outcome) for outcome in trials]
    names = [name for name in seen[0] if len({repr(values.get(name)) for values in seen}) > 1]
    return "tau" if "tau" in names else names[0] if names else None


def _parameters(outcome: Outcome) -> Hyperparameters:
    """The hyper-parameters of a run's method; none if its text no longer means anything."""
    try:
        parts = method(outcome.run.spec.method).parts()
    except ValueError:
        return {}
    return {name: value for _, part in parts for name, value in hyper_parameters(part).items()}


def _rate(outcome: Outcome) -> float:
    return round(float(outcome.lr or 0.0), 10)


def _row_name(name: str | None, value: object, label: str) -> str:
    if name is None:
        return label
    return f"{name} {value:g}" if isinstance(value, (int, float)) else f"{name} {value}"


def _by_number(name: str) -> tuple[float, str]:
    try:
        return float(name.rpartition(" ")[2]), name
    except ValueError:
        return 0.0, name
