"""Runs that were never trained: directories as the engine writes them, with numbers that tests know."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from reweigh.bench.lab import experiment, plan, questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.results import Results, collect
from reweigh.bench.lab.runs import Run, Spec, load_runs
from reweigh.bench.lab.table import Column, Table

#: Points of accuracy that each method gains over the baseline.
GAINS = {"mean": 0.0, "rgd": 0.02, "focal": 0.004, "term:t=0.5": -0.03}
CONTROL_GAINS = {plan.NORMALISED: 0.014, plan.SCALED_BASELINE: 0.001}


def make_table(**changes: Any) -> Table:
    """Two columns, four methods."""
    values: dict[str, Any] = {
        "title": "Made-up images",
        "question": "Does re-weighting help when nothing was trained?",
        "columns": (
            Column(
                name="imbalance 100",
                settings={"imbalance": 100.0},
                paper={"mean": 70.36, "rgd": 73.75},
                stand_in="CIFAR-10 with ResNet-32",
            ),
            Column(name="imbalance 10", settings={"imbalance": 10.0}),
        ),
        "methods": tuple(GAINS),
        "metric": "test/accuracy",
        "metric_name": "accuracy on the test set",
        "select": "val/accuracy",
        "epoch": "best",
        "trials": 2,
        "notes": ("Nothing here was measured.",),
    }
    return Table(**{**values, **changes})


def make_recipe(table: Table, **more: Any) -> Any:
    """What `recipes.load` would return."""
    return recipes.complete(SimpleNamespace(table=lambda preset: table, **more))


def value(label: str, column: int, seed: int) -> float:
    """The reported number of a run: a base, the method's gain, and noise partly shared by the methods of a seed."""
    shared = np.random.default_rng([7, column, seed]).normal(0, 0.01)
    own = np.random.default_rng([8, column, seed, sum(map(ord, label))]).normal(0, 0.004)
    gain = {**GAINS, **CONTROL_GAINS}.get(label, 0.0) * (1.0 if column == 0 else 0.1)
    return 0.75 + 0.02 * column + gain + shared + own


def make_runs(root: Path, table: Table, *, seeds: int = 5, epochs: int = 6, classes: int = 10, **extra: Any) -> None:
    """Tuning, comparison and scale controls of a table, all finished.

    `extra` goes into the first record of every run (class names, for one).
    """
    question = Question(
        recipe="made_up", table=replace(table, seeds=seeds), settings={"lr": 0.1, "epochs": epochs, "imbalance": 0.0}
    )
    names = [column.name for column in table.columns]
    tuning = plan.tuning(question)
    for spec in tuning:
        rate = math.log(spec.settings["lr"] / 0.1)
        write_run(root, spec, 0.7 - 0.05 * rate**2 + 0.001 * (sum(map(ord, spec.method)) % 17), epochs, classes, extra)
    comparison = plan.comparison(question, plan.choose(question, tuning, root))
    final = comparison + plan.scale_controls(question, comparison)
    for spec in final:
        write_run(root, spec, value(spec.label, names.index(spec.column), spec.seed), epochs, classes, extra)
    questions.store(root, question, tuning + final)


def store_question(root: Path, table: Table, **settings: Any) -> None:
    """Store the question that all made-up runs in a folder answer."""
    question = Question(recipe="made_up", table=table, settings=settings)
    questions.store(root, question, [run.spec for run in load_runs(root)])


def write_run(root: Path, spec: Spec, final: float, epochs: int, classes: int, extra: dict[str, Any]) -> None:
    """One finished run whose best validation epoch is the last but one, and whose number there is `final`."""
    run = Run(spec, root)
    draw = np.random.default_rng([spec.seed, len(spec.method)])
    with run.open() as writer:
        for epoch in range(1, epochs + 1):
            reached = 1 - 0.5 * math.exp(-5 * epoch / epochs)
            accuracy = final if epoch == epochs - 1 else final * reached - 0.01
            weighs = "rgd" in spec.method
            high = 1.0 + weighs * (0.6 + 0.3 * math.exp(-epoch / epochs))
            wobble = float(draw.normal(0, 0.004))
            counts = (400 * np.exp(-np.arange(24) / (2 + 6 * weighs * (1 - reached)))).astype(int)
            writer.record(
                {
                    "epoch": epoch,
                    "step": 10 * epoch,
                    "progress": epoch / epochs,
                    "train/loss": 2.0 * math.exp(-3 * epoch / epochs) + 0.05 + wobble,
                    "weights/mean": 1.0 + weighs * (0.3 * (1 - reached) + 0.05 + wobble),
                    "weights/min": 1.0,
                    "weights/max": high,
                    "weights/ess_share": 1.0 - 0.1 * weighs,
                    "weights/clip_share": 0.3 * (1 - reached),
                    "weights/noisy": 1.0 + weighs * 0.4,
                    "weights/clean": 1.0 + weighs * 0.1 * (1 - reached),
                    "weights/histogram": counts.tolist(),
                    "val/accuracy": accuracy + 0.005,
                    "test/accuracy": accuracy,
                    "test/class_accuracy": [
                        min(max(accuracy + 0.2 - 0.04 * k + 0.01 * k * weighs, 0), 1) for k in range(classes)
                    ],
                    **(extra if epoch == 1 else {}),
                },
                synced=False,
            )
        writer.array("mean_weight", np.ones(10 * epochs, np.float32))
        writer.finish({"seconds": 1.5, "finished": 1_700_000_000.0 + spec.seed})


def results_of(root: Path, recipe: str) -> list[Results]:
    """The results of all runs in a folder, as those of a recipe's smallest preset."""
    question = experiment.question(recipe, experiment.Options(preset="smoke"))
    questions.store(root, question, [run.spec for run in load_runs(root)])
    return collect(root)
