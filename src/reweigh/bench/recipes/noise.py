"""Mislabelled images: does emphasising hard examples survive wrong labels?

Question: a share of the training labels is wrong (uniformly, or each class towards one other). Weights that grow with
the loss look at exactly those labels. Does RGD lose, hold or gain against plain training, and what do the methods
that turn away from large losses do? The paper's table: ResNet-32 on CIFAR-10 and CIFAR-100, 0, 20 and 40 % noise.

    reweigh run noise                         # digits, features of CIFAR-10 and Fashion-MNIST
    reweigh run noise --only digits           # the columns with this in their names
    reweigh run noise --preset smoke          # seconds, digits

The `cpu` preset: digits with an MLP, every method, 20 paired seeds, three rates each; the same on 10 000 images of
CIFAR-10 as the frozen features of an EfficientNet-Lite0 that was trained on ImageNet, under a head of two layers; and
Fashion-MNIST with a CNN of half the usual width, on 4 000 images for 6 epochs, with six methods and 20 paired seeds.
Departures from the paper: its noise type is unclear (its plain row is another paper's flip-noise row), so both kinds
run; hyper-parameters are chosen on a clean validation set, and the last epoch counts. With the `paper` preset, on
CIFAR-10 and CIFAR-100, hyper-parameters are chosen so, and all rows then trained on all images, to the last epoch; only
the rows that learn from clean images give 1 000 away for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from reweigh.bench.draws import noisy_labels, rank_within_class
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.errors import UserError
from reweigh.bench.lab.recipe import LATER
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import EncodableSettings
from reweigh.bench.train.task import Task


@dataclass(frozen=True, kw_only=True)
class Settings(EncodableSettings):
    """Settings of the recipe: what every supervised recipe has, and the noise.

    Parameters
    ----------
    noise, rate
        The kind of wrong labels, and the share of training images that get one.
    meta
        Images set aside with their true labels, as many of each class, for the methods that learn from clean data.
    """

    noise: Literal["uniform", "flip", "flip2"] = "uniform"
    rate: float = 0.4
    meta: int = field(default=0, metadata=LATER)


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
#: The same for CIFAR-100.
PAPER_100 = {"mean": (70.50, 50.86, 43.01), "term:t=1": (70.42, 63.85, 46.59), "rgd": (71.06, 64.61, 57.17)}
_UNKNOWN = "noise type unknown"
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
    "small_loss",
    "coteaching",
    "elr",
    "gce",
    "sce",
)
#: What learns from clean images: 1 000 of them with the `paper` preset, as in the source of its plain row.
META_METHODS = ("fine_tune", "l2rw", "meta_weight_net")
#: Short trainings have few steps: raised every 100 of them, the threshold of self-paced learning stays too low.
SHORT = {"self_paced": "self_paced:every=20"}
_DFT = (
    "dft is meant for fine-tuning and cannot be used like this: its weight is the model's own probability, so from "
    "random initial parameters a class that falls behind gets almost no gradient, with or without wrong labels."
)
KINDS = (("uniform", 0.0), ("uniform", 0.2), ("uniform", 0.4), ("flip", 0.2), ("flip", 0.4))
#: Columns other than the digits, with fewer rows, so that two cores have them in half an hour.
FASHION = {"data": "fashion_mnist", "model": "cnn:width=8", "rows": 4000, "epochs": 6}
FEATURES: dict[str, Any] = {
    "data": "cifar10", "encoder": "efficientnet_lite0:weights=imagenet", "hidden": (64,), "rows": 10_000,
    "batch_size": 128,
}  # fmt: skip
#: The kind of model, by the data that a column's name begins with.
_KINDS = {
    "digits": "MLP",
    "CIFAR-10 features": "head on frozen features",
    "Fashion-MNIST": "CNN",
    "CIFAR-10": "ResNet-32",
    "CIFAR-100": "ResNet-32",
}
FASHION_KINDS = tuple(kind for kind in KINDS if kind != ("flip", 0.2))
FASHION_METHODS = ("mean", "rgd", "redescending", "term:t=-1", "gce", "small_loss")


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    return Table(
        title="Mislabelled images",
        question="Does emphasising hard examples survive wrong labels?",
        columns=_columns(preset),
        methods=_methods(preset),
        metric="test/accuracy",
        metric_name="accuracy on clean test labels",
        select="val/accuracy",
        seeds=2 if smoke else 20,
        trials={"smoke": 2, "cpu": 3, "paper": 5}[preset],
        rows={label: Row(method=label, settings={"meta": 1000}) for label in META_METHODS} if preset == "paper" else {},
        refit={"validation": 0.0} if preset == "paper" else {},
        endpoint=Endpoint(columns=("digits", "CIFAR-10 features") if preset == "cpu" else ()),
        notes=() if smoke else (_DFT,),
    )


def _methods(preset: str) -> tuple[str, ...]:
    if preset == "smoke":
        return ("mean", "rgd", "redescending", "gce", "small_loss", "elr")
    return (*METHODS, *META_METHODS) if preset == "paper" else tuple(SHORT.get(text, text) for text in METHODS)


def task(settings: Settings, seeds: Seeds) -> Task:
    """Noisy training labels; clean validation and test labels."""
    dataset, draw = supervised.load(settings.data, settings.encoder), seeds.numpy("data")
    everything = np.arange(len(dataset.y_train))
    chosen = draw.permutation(everything)[: settings.rows] if settings.rows else everything
    meta = None
    if settings.meta:
        if settings.meta < len(dataset.classes):
            raise UserError(
                f"`meta` must be at least one image per class, {len(dataset.classes)}, got {settings.meta}."
            )
        order = draw.permutation(chosen)
        clean = rank_within_class(dataset.y_train[order]) < settings.meta // len(dataset.classes)
        meta, chosen = order[clean], order[~clean]
    train, val = supervised.held_out(dataset.y_train[chosen], settings.validation, draw)
    noisy = noisy_labels(
        dataset.y_train[chosen[train]], settings.noise, settings.rate, len(dataset.classes), seeds.numpy("noise")
    )
    changed = noisy.changed if settings.rate else None
    return supervised.to_task(dataset, chosen[train], chosen[val], train_labels=noisy.labels, noisy=changed, meta=meta)


train, group, train_group = supervised.recipe(task)


def _columns(preset: str) -> tuple[Column, ...]:
    if preset == "smoke":
        return (_column("uniform", 0.4),)
    if preset == "paper":
        same = f"the same data, {_UNKNOWN}"
        return (
            *(_column(kind, rate, "CIFAR-10, ", stand_in=same) for kind, rate in KINDS),
            *(_column(kind, rate, "CIFAR-100, ", {"data": "cifar100"}, PAPER_100, stand_in=same)
              for kind, rate in KINDS),
        )  # fmt: skip
    digits = tuple(_column(kind, rate, "digits, ") for kind, rate in KINDS)
    features = tuple(_column(kind, rate, "CIFAR-10 features, ", FEATURES) for kind, rate in KINDS)
    fashion = (_column(kind, rate, "Fashion-MNIST, ", FASHION, methods=FASHION_METHODS) for kind, rate in FASHION_KINDS)
    return (*digits, *features, *fashion)


def _column(
    kind: str,
    rate: float,
    data: str = "",
    settings: Mapping[str, Any] | None = None,
    printed: Mapping[str, tuple[float, ...]] = PAPER,
    stand_in: str = f"CIFAR-10 with ResNet-32, {_UNKNOWN}",
    **fewer: Any,
) -> Column:
    which = {0.0: 0, 0.2: 1, 0.4: 2}[rate]
    return Column(
        name=data + (f"{kind} {rate:.0%}" if rate else "no noise"),
        settings={**(settings or {}), "noise": kind, "rate": rate},
        paper={label: figures[which] for label, figures in printed.items()},
        stand_in=stand_in,
        trouble="wrong labels" if rate else "none",
        model=_KINDS[data.partition(",")[0] or "digits"],
        **fewer,
    )
