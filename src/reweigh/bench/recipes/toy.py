"""Rare features: linear regression in which half of the coordinates are seen once.

Question: covariates are the ten unit vectors, five of them fifty times each and five once; labels carry no noise. All
methods take the same full-batch steps on the loss d²/2. Do weights that grow with the loss learn the rare coordinates
sooner, at the same cost for the frequent ones? The paper shows three panels: the squared error, and the distance to
the truth on frequent and on rare coordinates.

    reweigh run toy            # seconds
    reweigh run toy --set lr=1

At this step size the clip also decides stability: the unclipped form, TERM and reverse KL at larger tau are rows too.
A statement about one large fixed step, not about tuned methods: nothing is tuned here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.bench.lab.table import Column, Table
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method
from reweigh.objectives._base import state_like

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

#: Rows of each covariate, in order: five frequent, five rare.
COUNTS = np.array([50] * 5 + [1] * 5)
ROWS = np.repeat(np.arange(10), COUNTS)
#: A parameter beyond this has diverged.
_FAR = 1e6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the recipe.

    Parameters
    ----------
    lr
        Step size.
    half
        Whether the loss is d²/2 or d².
    steps, every
        Steps, and how often one is recorded.
    """

    lr: float = 4.0
    half: bool = True
    steps: int = 200
    every: int = 10


PRESETS = {"smoke": Settings(steps=50), "cpu": Settings(), "paper": Settings(steps=400)}

METHODS = (
    "mean",
    "rgd",
    "rgd:tau=3",
    "rgd:tau=9",
    "rgd:divergence=revkl",
    "rgd:tau=3,divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "term:t=0.5",
    "term:t=1",
    "rgd:tau=none,gamma=0.5",
    "rgd:tau=none,gamma=1",
)


def table(preset: str) -> Table:
    """Rows and columns; the paper prints a figure and no numbers."""
    smoke = preset == "smoke"
    return Table(
        title="Rare features",
        question="Does re-weighting learn rare coordinates sooner?",
        columns=(Column(name="step size 4", settings={}),),
        methods=METHODS[:2] if smoke else METHODS,
        metric="rare",
        metric_name="distance to the truth on the rare coordinates",
        select="train/mse",
        seeds=3 if smoke else 50,
        trials=1,
        smallest=True,
        notes=(
            "Smaller is better. A run whose parameters pass a million counts as diverged, and its row has no mean.",
            "The chosen step is the one of smallest training error, which is the last one unless the run diverges.",
        ),
    )


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """Full-batch descent from zero, on the 255 rows themselves."""
    others = [slot for slot, _ in method.parts() if slot != "objective"]
    if others:
        raise ValueError(f"the toy descends a squared error with an objective alone, got {method} with a {others[0]}.")
    truth = np.random.default_rng(seed).standard_normal(10)
    theta, state = np.zeros(10), method.objective.init()
    mean_weights: list[float] = []
    writer.resume()
    yield _record(settings, 0, theta - truth, np.ones(len(ROWS)))
    for step in range(1, settings.steps + 1):
        distance = (theta - truth)[ROWS]
        losses = distance**2 * (0.5 if settings.half else 1.0)
        weighed = method.objective.weigh(losses, state_like(state, losses))
        state = weighed.state
        # A weight this large is a step beyond `_FAR`; without the cap sums of weights would overflow on the way.
        weights = np.minimum(weighed.weights, _FAR**2) * (1.0 if scale is None else scale[step - 1])
        mean_weights.append(float(np.mean(weights)))
        gradient = np.bincount(ROWS, weights * distance * (1.0 if settings.half else 2.0)) / len(ROWS)
        theta = np.clip(theta - settings.lr * gradient, -2 * _FAR, 2 * _FAR)
        if step % settings.every == 0:
            yield _record(settings, step, theta - truth, weights)
    writer.array("mean_weight", np.asarray(mean_weights, np.float32))


def _record(settings: Settings, step: int, distance: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> Record:
    diverged = bool(np.abs(distance).max() > _FAR)
    return {
        "epoch": step,
        "step": step,
        "progress": step / settings.steps,
        "train/mse": math.inf if diverged else float(distance[ROWS] @ distance[ROWS] / len(ROWS)),
        "frequent": math.inf if diverged else float(np.linalg.norm(distance[:5])),
        "rare": math.inf if diverged else float(np.linalg.norm(distance[5:])),
        "weights/mean": float(weights.mean()),
        "weights/rare": float(weights[-5:].mean()),
        "weights/min": float(weights.min()),
        "weights/max": float(weights.max()),
        "diverged": diverged,
    }


def figures(results: Results) -> Sequence[Figure]:
    """The paper's three panels, and which rows a step of this size throws off."""
    from reweigh.bench.lab.results import Figure
    from reweigh.bench.report.charts import over_epochs, series

    roles = {"mean": "baseline", "rgd": "primary", "rgd:tau=3": "other", "rgd:tau=9": "other"}
    names = {"train/mse": "squared error", "frequent": "distance, frequent", "rare": "distance, rare"}
    drawn: list[Figure] = []
    for column in results.columns:
        panels = ""
        for name, title in names.items():
            recorded = {label: s for label in roles if (s := series(column.rows.get(label), name)) is not None}
            if recorded:
                panel = over_epochs(recorded, f"{title}, {column.name}", roles, "{:g}".format)
                panels += f"<figure><figcaption>{title}</figcaption>{panel}</figure>"
        drawn.append(
            Figure(
                title="Frequent and rare coordinates",
                markup=f'<div class="panels">{panels}</div>',
                caption="Squared error over all rows; distance to the truth on the frequent coordinates, and on the "
                "rare ones. Mean over seeds. Frequent coordinates are learnt alike; on the rare ones re-weighting wins "
                "an early lead and keeps it, and the rates become the same as the weights go to one.",
            )
        )
        shares = {
            label: sum(bool(o.records[-1].get("diverged")) for o in row.outcomes.values()) / len(row.outcomes)
            for label, row in column.rows.items()
        }
        diverged = "; ".join(f"{escape(label)} {share:.0%}" for label, share in shares.items() if share)
        drawn.append(
            Figure(
                title="Stability at this step size",
                markup=f"<p>Runs that diverged: {diverged or 'none'}.</p>",
                caption="The clip bounds the weight and with it the step. A statement about one large fixed step, not "
                "about tuned methods: at smaller steps the others are stable too, except the unclipped exponential.",
            )
        )
    return drawn
