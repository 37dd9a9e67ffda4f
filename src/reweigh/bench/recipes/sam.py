"""Sharpness-aware minimisation with and without re-weighting.

Question: the paper adds RGD to SAM on CIFAR-10 (96.80 plain SGD, 97.31 SAM, 97.41 SAM + RGD) and has no row for RGD
without SAM. Do the two add up?

    reweigh run sam
    reweigh run sam --preset smoke

The `cpu` preset trains WRN-10-1 for a few epochs; the `paper` preset is the WRN-16-8 recipe whose plain accuracy equals
the paper's, an identification that is a guess, since the network is not named.
"""

from __future__ import annotations

from dataclasses import dataclass

from reweigh.bench.data import split
from reweigh.bench.recipes import _supervised as supervised
from reweigh.bench.recipes._supervised import Supervised
from reweigh.bench.recipes._table import Cell, Table
from reweigh.bench.seeds import Seeds
from reweigh.bench.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(Supervised):
    """Settings of the recipe: what every supervised recipe has."""


PRESETS = {
    "smoke": Settings(data="digits", model="cnn", epochs=1, batch_size=128),
    "cpu": Settings(
        data="fashion_mnist",
        model="wrn:depth=10,width=1",
        rows=6000,
        epochs=6,
        batch_size=128,
        lr=0.1,
        weight_decay=5e-4,
        augment=True,
    ),
    "paper": Settings(
        data="cifar10",
        model="wrn:depth=16,width=8",
        epochs=200,
        batch_size=128,
        lr=0.1,
        weight_decay=5e-4,
        schedule="steps",
        milestones=(0.3, 0.6, 0.8),
        augment=True,
    ),
}


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="SAM and re-weighting",
        question="Does re-weighting add to sharpness-aware minimisation?",
        cells=(
            Cell(
                name="balanced",
                settings={},
                paper={"mean": 96.80, "sam": 97.31, "rgd+sam": 97.41},
                stand_in="CIFAR-10 with WRN-16-8",
            ),
        ),
        methods=("mean", "rgd", "sam", "rgd+sam"),
        metric="test/accuracy",
        metric_name="test accuracy",
        select="val/accuracy",
        seeds=2 if smoke else 5,
        trials=1 if smoke else 3,
        as_written=not smoke,
        notes=("Only the learning rate is tuned; tau = 1 and rho = 0.05 as in the paper and its source.",),
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """A random part of the training images, split once more for validation."""
    dataset, draw = supervised.load(settings.data), seeds.numpy("data")
    chosen = draw.permutation(len(dataset.y_train))[: settings.rows or None]
    train, val = split(dataset.y_train[chosen], settings.validation, draw)
    return supervised.to_task(dataset, chosen[train], chosen[val])


train, group, train_group = supervised.recipe(task)
