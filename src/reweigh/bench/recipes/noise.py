"""Mislabelled images: does emphasising hard examples survive wrong labels?

Question: a share of the training labels is wrong (uniformly, or each class towards one other). Weights that grow with
the loss look at exactly those labels. Does RGD lose, hold or gain against plain training, and what do the methods
that turn away from large losses do? The paper's table: ResNet-32 on CIFAR-10 and CIFAR-100, 0, 20 and 40 % noise.

    reweigh run noise                         # digits, every method, 20 paired seeds
    reweigh run noise --preset smoke          # seconds

Departures from the paper: its noise type is unclear (its plain row is another paper's flip-noise row), so both kinds
run; epochs are chosen on a clean validation set, and the last epoch is shown beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reweigh.bench.data import noisy_labels, split
from reweigh.bench.recipes import _supervised as supervised
from reweigh.bench.recipes._supervised import Supervised
from reweigh.bench.recipes._table import Cell, Table
from reweigh.bench.seeds import Seeds
from reweigh.bench.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(Supervised):
    """Settings of the recipe: what every supervised recipe has, and the noise."""

    noise: Literal["uniform", "flip", "flip2"] = "uniform"
    rate: float = 0.4


PRESETS = {
    "smoke": Settings(epochs=3),
    "cpu": Settings(epochs=40, lr=0.05),
    "paper": Settings(
        data="cifar10",
        model="resnet32",
        lr=0.1,
        weight_decay=5e-4,
        batch_size=100,
        epochs=120,
        schedule="steps",
        milestones=(80 / 120, 100 / 120),
        augment=True,
    ),
}

#: The paper's accuracies, CIFAR-10 with ResNet-32, at 0, 20 and 40 %.
PAPER = {"mean": (92.89, 76.83, 70.77), "term:t=1": (92.90, 58.7, 73.17), "rgd": (93.04, 90.69, 88.90)}
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "redescending",
    "rgd:gamma=-0.5",
    "dft",
    "term:t=1",
    "term:t=-1",
    "absgd",
    "cvar",
    "doro",
    "superloss",
    "self_paced",
)
KINDS = (("uniform", 0.0), ("uniform", 0.2), ("uniform", 0.4), ("flip", 0.2), ("flip", 0.4))


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="Mislabelled images",
        question="Does emphasising hard examples survive wrong labels?",
        cells=tuple(_cell(kind, rate) for kind, rate in KINDS if not smoke or (kind, rate) == ("uniform", 0.4)),
        methods=("mean", "rgd", "redescending") if smoke else METHODS,
        metric="test/accuracy",
        metric_name="accuracy on clean test labels",
        select="val/accuracy",
        seeds=2 if smoke else 20,
        trials=2 if smoke else 5,
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """Noisy training labels; clean validation and test labels."""
    dataset, draw = supervised.load(settings.data), seeds.numpy("data")
    train, val = split(dataset.y_train, settings.validation, draw)
    noisy = noisy_labels(
        dataset.y_train[train], settings.noise, settings.rate, len(dataset.classes), seeds.numpy("noise")
    )
    changed = noisy.changed if settings.rate else None
    return supervised.to_task(dataset, train, val, train_labels=noisy.labels, noisy=changed)


train, group, train_group = supervised.recipe(task)


def _cell(kind: str, rate: float) -> Cell:
    name = f"{kind} {rate:.0%}" if rate else "no noise"
    which = {0.0: 0, 0.2: 1, 0.4: 2}[rate]
    return Cell(
        name=name,
        settings={"noise": kind, "rate": rate},
        paper={label: figures[which] for label, figures in PAPER.items()},
        stand_in="CIFAR-10 with ResNet-32, noise type unknown",
    )
