"""Sharpness-aware minimisation with and without re-weighting.

Question: the paper adds RGD to SAM on CIFAR-10 (96.80 plain SGD, 97.31 SAM, 97.41 SAM + RGD) and has no row for RGD
without SAM. Do the two add up?

    reweigh run sam
    reweigh run sam --preset smoke

The `cpu` preset trains WRN-10-1 on 4 000 images of Fashion-MNIST for 6 epochs, looks at 2 500 of the test images, and
has 12 paired seeds and three trials each: enough to see a difference of half a point, not a tenth of one. The `paper`
preset is the WRN-16-8 recipe whose plain accuracy equals the paper's, an identification that is a guess, since the
network is not named: 200 epochs, the rate times 0.2 after 30, 60 and 80 % of them, smoothed labels and cutout. There
RGD weighs by what is above the floor of the smoothed loss, as the recipe's own loss, a divergence, has it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from reweigh.bench.draws import sampled_split
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import EncodableSettings
from reweigh.bench.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(EncodableSettings):
    """Settings of the recipe: what every supervised recipe has, and how much of the test set to look at.

    Parameters
    ----------
    test_rows
        Test images, the same for all runs of a seed; 0 takes all.
    """

    test_rows: int = 0


PRESETS = {
    "smoke": Settings(data="digits", model="cnn", epochs=1, batch_size=128),
    "cpu": Settings(
        data="fashion_mnist",
        model="wrn:depth=10,width=1",
        rows=4000,
        test_rows=2500,
        epochs=6,
        batch_size=64,
        lr=0.1,
        weight_decay=5e-4,
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
        decay=0.2,
        augment=True,
        cutout=16,
    ),
}
#: Labels smoothed by 0.1 over the nine wrong classes, and the smallest loss that this leaves.
SMOOTHED = "label_smoothing:over=C-1"
FLOOR = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 9)
#: With the `paper` preset every row has smoothed labels.
_ROWS = {
    "mean": Row(method=SMOOTHED),
    "rgd": Row(method=f"{SMOOTHED}+rgd:offset={FLOOR:.6f}"),
    "sam": Row(method=f"{SMOOTHED}+sam"),
    "rgd+sam": Row(method=f"{SMOOTHED}+rgd:offset={FLOOR:.6f}+sam"),
}


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="SAM and re-weighting",
        question="Does re-weighting add to sharpness-aware minimisation?",
        columns=(
            Column(
                name="CIFAR-10, WRN-16-8" if preset == "paper" else "balanced",
                settings={},
                paper={"mean": 96.80, "sam": 97.31, "rgd+sam": 97.41},
                stand_in=None if preset == "paper" else "CIFAR-10 with WRN-16-8",
                trouble="none",
                model="WRN",
            ),
        ),
        methods=("mean", "rgd", "sam", "rgd+sam"),
        rows=_ROWS if preset == "paper" else {},
        metric="test/accuracy",
        metric_name="test accuracy",
        select="val/accuracy",
        seeds={"smoke": 2, "cpu": 12, "paper": 5}[preset],
        trials=1 if smoke else 3,
        as_written=not smoke,
        endpoint=Endpoint(ours="rgd+sam", theirs="sam"),
        notes=(
            "Only the learning rate is tuned; tau = 1 and rho = 0.05 as in the paper and its source.",
            "The scale controls are of rgd without SAM: of what it adds to SAM, part may be a larger step.",
        ),
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """A random part of the training images, split once more for validation."""
    dataset, draw = supervised.load(settings.data, settings.encoder), seeds.numpy("data")
    train, val = sampled_split(dataset.y_train, settings.validation, draw, rows=settings.rows)
    problem = supervised.to_task(dataset, train, val)
    if not settings.test_rows:
        return problem
    looked_at = torch.from_numpy(draw.permutation(len(dataset.y_test))[: settings.test_rows])
    return dataclasses.replace(problem, x_test=problem.x_test[looked_at], y_test=problem.y_test[looked_at])


train, group, train_group = supervised.recipe(task)
