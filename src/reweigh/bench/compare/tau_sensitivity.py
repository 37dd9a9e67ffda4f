"""How much the declared row's main number matters: validation scores of its tuning trials over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from reweigh.bench.compare.answer import Answer
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Figure, Outcome, Results
from reweigh.bench.report.charts import Line, Panel, lines, panels
from reweigh.bench.report.svg import padded
from reweigh.method import hyper_parameters, method


def tau_sensitivity(answer: Answer, results: Results) -> list[Figure]:
    """A panel per model: the best validation score at each tau; nothing where tuning tried fewer than two."""
    drawn = [panel for column in results.columns if (panel := _panel(answer, results, column)) is not None]
    if not drawn:
        return []
    return [
        Figure(
            title=f"How much does tau matter for {results.table.primary}?",
            markup=panels(drawn),
            caption=f"Validation score ({answer.metric.name}) of tuning, mean over its splits, at the best learning "
            "rate for each tau; the level line is plain training at its own best rate. A flat curve means that tau "
            "hardly matters on this data.",
        )
    ]


def _panel(answer: Answer, results: Results, column: ColumnResults) -> Panel | None:
    select, sign = results.table.select, -1.0 if results.table.smallest else 1.0
    by_tau: dict[float, dict[tuple[str, float], list[float]]] = {}
    for outcome in column.tuning:
        tau = _tau(outcome)
        if outcome.run.spec.label == results.table.primary and tau is not None:
            key = outcome.run.spec.method, round(float(outcome.lr or 0.0), 10)
            by_tau.setdefault(tau, {}).setdefault(key, []).append(float(outcome.records[outcome.chosen][select]))
    plain: dict[float, list[float]] = {}
    for outcome in column.tuning:
        if outcome.run.spec.label == plan.BASELINE:
            rate = round(float(outcome.lr or 0.0), 10)
            plain.setdefault(rate, []).append(float(outcome.records[outcome.chosen][select]))
    if len(by_tau) < 2 or not plain:
        return None
    taus = sorted(by_tau)
    best = [_best(by_tau[tau].values(), sign) for tau in taus]
    level = _best(plain.values(), sign)
    if not all(map(math.isfinite, [*best, level])):
        return None
    unit = answer.unit
    return Panel(
        title=column.name,
        markup=lines(
            [
                Line(name="plain", role="baseline", xs=[taus[0], taus[-1]], ys=[level, level]),
                Line(
                    name=results.table.primary,
                    role="primary",
                    xs=taus,
                    ys=best,
                    tips=[f"tau {tau:g}: {unit.value(value)}" for tau, value in zip(taus, best, strict=True)],
                ),
            ],
            title=f"Validation score over tau, {column.name}",
            description="; ".join(f"tau {t:g}: {unit.value(v)}" for t, v in zip(taus, best, strict=True))
            + f"; plain training {unit.value(level)}.",
            x_label="tau",
            x_ticks=taus,
            y_domain=padded([*best, level], share=0.3),
            tick=unit.tick,
            names=56,
            log_x=taus[0] > 0,
        ),
    )


def _tau(outcome: Outcome) -> float | None:
    value = hyper_parameters(method(outcome.run.spec.method).objective).get("tau")
    return float(value) if isinstance(value, (int, float)) else None


def _best(trials: Iterable[Sequence[float]], sign: float) -> float:
    return sign * max(sign * sum(values) / len(values) for values in trials)
