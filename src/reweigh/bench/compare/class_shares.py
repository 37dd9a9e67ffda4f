"""Where the gradient's weight went: the share of each class in it, over the course of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.lab.results import Figure
from reweigh.bench.lab.runs import Run
from reweigh.bench.report.charts import Line, Panel, lines, panels
from reweigh.method import Method, method

Array = np.ndarray[Any, Any]

#: Runs that are averaged, moments that are drawn, and the classes that have a line each: the rarest.
_RUNS, _MOMENTS, _CLASSES = 5, 30, 5
#: Losses whose gradient at a row's outputs is one minus exp(-loss), times the weight of its class: cross-entropies.
_WEIGHTED = ("class_weights", "class_balanced")
_CROSS_ENTROPIES = ("", *_WEIGHTED, "logit_adjusted")
_ROLES = ("primary", "scaled", "normalised", "second", "baseline")


def class_shares(problem: Problem, rows: Sequence[tuple[str, Sequence[Run]]]) -> list[Figure]:
    """A panel per row, `(name, its runs)`; nothing for regressions and for losses that are not cross-entropies."""
    if problem.regression:
        return []
    drawn = [panel for name, runs in rows if (panel := _panel(problem, name, runs)) is not None]
    if not drawn:
        return []
    counts = np.asarray(problem.class_counts)
    least = f"the {_CLASSES} rarest classes" if len(counts) > _CLASSES else "each class"
    return [
        Figure(
            title="Where the gradient's weight went",
            markup=panels(drawn),
            caption=f"The share of {least} in the weight of the gradient over training: the weight of a training row "
            "times how wrong its predicted probability is, summed over the class, mean over splits. A class that is "
            "learnt pulls less; the number behind a name is its share of the rows.",
        )
    ]


def shares_of(losses: Array, classes: Array, count: int, own: Method) -> Array:
    """The share of each class in the gradient at the outputs, `(moments, classes)`, from losses `(moments, rows)`."""
    weights = np.ones_like(losses, dtype=np.float64)
    counts = np.bincount(classes, minlength=count)
    factor = np.ones(count)
    if own.loss is not None and _loss_name(own) in _WEIGHTED:
        factor = np.asarray(own.loss.class_factors(np.maximum(counts, 1).tolist()), np.float64)
    shares = np.zeros((len(losses), count))
    for k, row in enumerate(losses.astype(np.float64)):
        seen = np.isfinite(row)
        if seen.any():
            weights[k, seen] = own.objective.weigh(row[seen], own.objective.init()).weights
        pull = np.where(seen, weights[k] * factor[classes] * -np.expm1(-np.where(seen, row, 0.0)), 0.0)
        total = np.bincount(classes, pull, minlength=count)
        shares[k] = total / max(total.sum(), 1e-12)
    return shares


def _loss_name(own: Method) -> str:
    return "" if own.loss is None else type(own.loss).__module__.rpartition(".")[2]


def _panel(problem: Problem, name: str, runs: Sequence[Run]) -> Panel | None:
    runs = [run for run in runs if run.has_array("loss_trajectory")][:_RUNS]
    if not runs:
        return None
    own = method(runs[0].spec.method)
    if _loss_name(own) not in _CROSS_ENTROPIES or getattr(own.objective, "needs", ()):
        return None
    labels = problem.labels
    assert labels is not None
    count = len(problem.classes)
    trajectories = [run.array("loss_trajectory") for run in runs]
    epochs = min(map(len, trajectories))
    moments = np.unique(np.linspace(0, epochs - 1, min(_MOMENTS, epochs)).round().astype(int))
    if len(moments) < 2:
        return None
    estimates = [
        shares_of(losses[moments], labels[_trained(problem, run, losses.shape[1])], count, own)
        for run, losses in zip(runs, trajectories, strict=True)
    ]
    shares = np.mean(estimates, axis=0)
    rarest = np.argsort(problem.class_counts, kind="stable")[:_CLASSES]
    total = sum(problem.class_counts)
    at = (100 * (moments + 1) / epochs).tolist()
    drawn = [
        Line(
            name=f"{problem.classes[c]} ({problem.class_counts[c] / total:.0%})",
            role=_ROLES[i],
            xs=at,
            ys=shares[:, c].tolist(),
        )
        for i, c in enumerate(rarest)
    ]
    ends = "; ".join(f"{problem.classes[c]} {shares[0, c]:.0%} to {shares[-1, c]:.0%}" for c in rarest)
    return Panel(
        title=name,
        markup=lines(
            drawn,
            title=f"Share of each class in the gradient, {name}",
            description=f"From the first epoch to the last: {ends}.",
            x_label="percent of training",
            x_domain=(0.0, 100.0),
            y_domain=(0.0, max(0.1, 1.05 * float(shares[:, rarest].max()))),
            tick=lambda share: f"{100 * share:.3g} %",
            names=110,
            letters=16,
        ),
    )


def _trained(problem: Problem, run: Run, rows: int) -> Array:
    trained = parts_of(problem, run.spec.seed).train
    assert len(trained) == rows
    return trained
