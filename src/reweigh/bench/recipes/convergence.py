"""Convergence: how fast projected stochastic RGD approaches the optimum of a convex problem.

Question: for convex losses on a compact convex set and step sizes C/sqrt(t), or C/sqrt(T) throughout, the paper bounds
the last iterate's gap by log T / sqrt(T). Is the measured slope of log gap against log T about -0.5 or steeper?

    reweigh run convergence
    reweigh run convergence --preset smoke

Logistic regression on scikit-learn's breast-cancer data, parameters in a Euclidean ball. The gap is that of the
objective re-weighting really descends, the mean of Phi(loss), whose optimum is found by deterministic descent; for
`mean` it is the mean loss itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import special

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method
from reweigh.objectives.rgd import RGD

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the recipe.

    Parameters
    ----------
    lr
        The constant C of the step sizes.
    schedule
        `"decaying"`: C/sqrt(t); `"constant"`: C/sqrt(T) throughout a run of T steps.
    steps
        The longest run T; runs of T/2, T/4 … are made too.
    shortest
        The shortest run.
    batch_size, radius
        Examples per step, and radius of the ball.
    """

    lr: float = 10.0
    schedule: Literal["decaying", "constant"] = "decaying"
    steps: int = 65536
    shortest: int = 1024
    batch_size: int = 1
    radius: float = 5.0


PRESETS = {
    "smoke": Settings(steps=4096),
    "cpu": Settings(),
    "paper": Settings(steps=2**20),
}


def table(preset: str) -> Table:
    """Rows and columns; the paper states a rate and no numbers."""
    smoke = preset == "smoke"
    return Table(
        title="Convergence",
        question="Does the gap fall like log T / sqrt(T)?",
        columns=(
            Column(name="C/sqrt(t)", settings={"schedule": "decaying"}),
            Column(name="C/sqrt(T)", settings={"schedule": "constant"}),
        ),
        methods=("mean", "rgd") if smoke else ("mean", "rgd", "rgd:tau=3", "rgd:divergence=revkl"),
        metric="slope",
        metric_name="slope of log gap against log T",
        select="remaining",
        smallest=True,
        seeds=2 if smoke else 10,
        trials=1,
        controls=False,
        notes=(
            "The slope is fitted over all lengths up to the one of the record; theory allows -0.5 up to a logarithm.",
            "Differences between rows say nothing about accuracy: every row has its own objective and optimum.",
        ),
    )


def train(settings: Settings, method: Method, seed: int, writer: Writer, scale: Floats | None) -> Iterator[Record]:
    """Runs of growing length; one record each, with the gap and the slope so far."""
    del scale  # a factor on the loss changes the constant, not the rate
    x, y = _problem()
    objective = _checked(method)
    optimum = _optimum(objective, settings.radius)
    lengths = [settings.steps >> k for k in range(32) if settings.steps >> k >= settings.shortest][::-1]
    gaps: list[float] = []
    writer.resume()
    writer.array("mean_weight", np.ones(1, np.float32))
    for length in lengths:
        theta = _descend(settings, objective, x, y, length, Seeds(seed).numpy(f"order {length}"))
        gaps.append(max(_value(objective, x, y, theta) - optimum, 1e-300))
        slope = float(np.polyfit(np.log(lengths[: len(gaps)]), np.log(gaps), 1)[0]) if len(gaps) > 1 else 0.0
        yield {
            "epoch": len(gaps),
            "step": length,
            "progress": len(gaps) / len(lengths),
            "remaining": len(lengths) - len(gaps),
            "gap": gaps[-1],
            "slope": slope,
        }


@functools.cache
def _problem() -> tuple[Floats, Floats]:
    """Standardised features with a constant, scaled so that a row has length about one, and labels of ±1."""
    from sklearn.datasets import load_breast_cancer  # pyright: ignore[reportUnknownVariableType]

    bunch: Any = load_breast_cancer()
    features = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    x = np.hstack([features, np.ones((len(features), 1))]) / np.sqrt(features.shape[1] + 1)
    return x, np.where(bunch.target > 0, 1.0, -1.0)


def _checked(method: Method) -> RGD | None:
    """The objective, if it descends a fixed function of the losses; None for the plain mean."""
    if str(method) == "mean":
        return None
    if isinstance(method.objective, RGD) and method.objective.separable and not method.objective.stateful:
        return method.objective
    raise ValueError(f"the rate is stated for mean and rgd without normalisation, got {method}.")


def _losses(x: Floats, y: Floats, theta: Floats) -> Floats:
    return np.logaddexp(0.0, -y * (x @ theta))


def _value(objective: RGD | None, x: Floats, y: Floats, theta: Floats) -> float:
    losses = _losses(x, y, theta)
    return float(np.mean(losses if objective is None else objective.weight.phi(losses)))


def _gradient(objective: RGD | None, x: Floats, y: Floats, theta: Floats) -> Floats:
    slope = -y * special.expit(-y * (x @ theta))
    if objective is not None:
        slope = slope * objective.weight(_losses(x, y, theta))
    return x.T @ slope / len(x)


def _project(theta: Floats, radius: float) -> Floats:
    return theta * min(1.0, radius / max(float(np.linalg.norm(theta)), 1e-300))


@functools.cache
def _optimum(objective: RGD | None, radius: float) -> float:
    """The smallest value in the ball, by accelerated projected descent with a safe step."""
    x, y = _problem()
    step = 1.0  # the loss is 1/4-smooth in margins of length one, and the weights are below three
    theta = ahead = np.zeros(x.shape[1])
    momentum = 1.0
    for _ in range(20_000):
        following = _project(ahead - step * _gradient(objective, x, y, ahead), radius)
        grown = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = following + (momentum - 1.0) / grown * (following - theta)
        theta, momentum = following, grown
    return _value(objective, x, y, theta)


def _descend(
    settings: Settings, objective: RGD | None, x: Floats, y: Floats, length: int, draw: np.random.Generator
) -> Floats:
    """Projected stochastic descent; returns the last iterate."""
    theta = np.zeros(x.shape[1])
    batches = draw.integers(len(x), size=(length, settings.batch_size))
    for t, rows in enumerate(batches, 1):
        size = settings.lr / np.sqrt(t if settings.schedule == "decaying" else length)
        theta = _project(theta - size * _gradient(objective, x[rows], y[rows], theta), settings.radius)
    return theta


def answer(results: Results) -> Sequence[str]:
    """The slope of the declared row, with its interval over seeds, and the bound of the theory."""
    from reweigh.bench.report.verdict import estimate

    primary = results.table.primary
    slopes = [
        f"{estimate(column.rows[primary].values, 2)} with steps of {column.name}"
        for column in results.columns
        if primary in column.rows and len(column.rows[primary].values) > 1
    ]
    if not slopes:
        return ("",)
    return (
        f"The gap of {primary} falls like T to the power {', and '.join(slopes)}.",
        "Theory bounds it by log T / sqrt(T): a power of -0.5, up to the logarithm. Steeper is faster.",
    )


def figures(results: Results) -> Sequence[Figure]:
    """The gap against the number of steps, both on logarithmic axes."""
    from reweigh.bench.lab.results import Figure
    from reweigh.bench.report import charts
    from reweigh.bench.report.markup import element

    drawn: list[Figure] = []
    for column in results.columns:
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for label, row in column.rows.items():
            records = [outcome.records for outcome in row.outcomes.values()]
            steps = [float(record["step"]) for record in records[0]]
            gaps = [float(np.mean([r[i]["gap"] for r in records])) for i in range(len(steps))]
            lines[label] = (steps, gaps)
        everything = [gap for _, gaps in lines.values() for gap in gaps]
        roles = {"mean": "baseline", "rgd": "primary"}
        chart = charts.lines(
            [
                charts.Line(name=label, role=roles.get(label, "other"), xs=steps, ys=gaps, tip=label)
                for label, (steps, gaps) in lines.items()
            ],
            title=f"Gap against steps, {column.name}",
            description="The mean gap of the last iterate falls with the number of steps on logarithmic axes.",
            x_label="steps",
            y_domain=(0.8 * min(everything), 1.2 * max(everything)),
            size=(460, 280),
            names=150,
            letters=30,
            log_x=True,
            log_y=True,
        )
        drawn.append(
            Figure(
                title=f"Gap to the optimum, steps of {column.name}",
                markup=element("div", chart, style="max-width: 30em"),
                caption="Mean over seeds of the last iterate's gap. Theory bounds it by log T / sqrt(T): a slope of "
                "about -0.5 here.",
            )
        )
    return drawn
