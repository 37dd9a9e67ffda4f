"""A training that takes milliseconds, as a recipe: three classes in six columns, a small network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task

TRAINING = OptimizerPlan(optimizer="adam", lr=0.01, batch_size=16, epochs=4)


@dataclass(frozen=True, kw_only=True)
class Settings:
    epochs: int = 4
    lr: float = 0.01


def task(seed: int, broken: tuple[int, ...] = ()) -> Task:
    """The data of a seed; the training rows in `broken` are NaN."""
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((120, 6))).float()
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.4).long() + (x[:, 2] > 1.2).long()
    x[list(broken)] = float("nan")
    return Task(
        x_train=x[:60], y_train=y[:60], x_val=x[60:90], y_val=y[60:90], x_test=x[90:], y_test=y[90:],
        classes=("a", "b", "c"), meta=(x[60:75], y[60:75]),
    )  # fmt: skip


def network(seed: int) -> nn.Module:
    with Seeds(seed).ambient("init"):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def train(settings: Settings, method: Any, seed: int, writer: Any, scale: Any) -> Any:
    training = dataclasses.replace(TRAINING, epochs=settings.epochs, lr=settings.lr)
    return fit(Supervised(task(seed), network(seed), method, training, Seeds(seed)), writer, scale=scale)


def run(root: Path, text: str = "rgd+ema", seed: int = 0) -> Run:
    settings = dataclasses.asdict(Settings())
    return Run(Spec(recipe="tiny", column="c", label=text, settings=settings, method=text, seed=seed), root)
