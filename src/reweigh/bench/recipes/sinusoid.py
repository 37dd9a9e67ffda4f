"""Sinusoids: regression from ten points, with weights on whole tasks.

Question: each task is a sine wave of its own amplitude and phase, shown by ten points. After one gradient step on those
the rest of the wave is predicted. Waves of large amplitude are the hard ones. Does weighing tasks by their loss help on
the worst of them, and what does it cost on the others? Not in the paper: the cheapest problem of MAML's own.

    reweigh run sinusoid
    reweigh run sinusoid --preset smoke           # seconds
    reweigh run sinusoid --set shots=5 --set first_order=true

All tasks of a meta-batch, and all trainings of a stage, run as one program. The `cpu` preset: an MLP of 40-40, 25
tasks, 2500 meta-batches at a rate of 5e-3 that falls to zero, 10 seeds, three trials each. The `paper` preset has the
70 000 meta-batches and the rate of MAML's authors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench import models
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.files import sha256_of_arrays
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.recipes.algorithms.meta import MAML, squared_error
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.episodes import Episodes, MetaLearning, StackedMetaLearning, TaskPool, Tasks
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Peer
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the recipe.

    Parameters
    ----------
    shots, queries
        Points to learn from and points to predict.
    inner_lr, inner_steps, first_order
        The inner loop of MAML.
    hidden
        Widths of the network's hidden layers.
    lr, epochs, steps, batch_size
        Adam's rate; epochs of so many meta-batches of so many tasks.
    val_tasks, test_tasks
        Sizes of the frozen pools.
    """

    shots: int = 10
    queries: int = 10
    inner_lr: float = 0.01
    inner_steps: int = 1
    first_order: bool = False
    hidden: tuple[int, ...] = (40, 40)
    lr: float = 5e-3
    epochs: int = 5
    steps: int = 500
    batch_size: int = 25
    val_tasks: int = 512
    test_tasks: int = 1024


PRESETS = {
    "smoke": Settings(epochs=2, steps=20, batch_size=8, val_tasks=32, test_tasks=64),
    "cpu": Settings(),
    "paper": Settings(epochs=70, steps=1000, lr=1e-3),
}
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "term:t=0.5",
    "cvar:alpha=0.5",
)
#: The one seed of the frozen pools, and their points: dense enough to be the wave itself.
_POOL_SEED, _POOL_QUERIES = 2024, 50


def table(preset: str) -> Table:
    """Rows and columns; the paper has no such experiment."""
    smoke = preset == "smoke"
    return Table(
        title="Sinusoids from a few points",
        question="Do weights on tasks help with the hardest waves?",
        columns=(Column(name="10 points, one step", settings={}),),
        methods=("mean", "rgd") if smoke else METHODS,
        metric="test/worst10_loss",
        metric_name="squared error on the worst 10 % of test tasks",
        select="val/loss",
        seeds=2 if smoke else 10,
        trials=2 if smoke else 3,
        smallest=True,
        notes=(
            "A pool of 1024 test tasks, the same for every run; the worst tenth of it is each run's own.",
            "Epochs and hyper-parameters are chosen by the mean squared error over all validation tasks.",
        ),
    )


def train(settings: Settings, method: Method, seed: int, writer: Writer, scale: Floats | None) -> Iterator[Record]:
    """Meta-train an MLP with MAML."""
    seeds = Seeds(seed)
    with seeds.ambient("init"):
        model = _model(settings)
    tasks, algorithm, training = Waves(settings), _algorithm(settings), _training(settings)
    program = MetaLearning(tasks, algorithm, model, method, training, seeds, writer, every=settings.steps)
    return fit(program, writer, scale=scale)


def group(settings: Settings, method: Method) -> str | None:
    """Everything but rate, method and seed: trainings that share it run as one program."""
    del method
    return repr(dataclasses.replace(settings, lr=1.0))


def train_group(members: Sequence[tuple[Settings, Method, int, Floats | None]]) -> Iterator[list[Record]]:
    """Meta-train many at once."""
    settings = members[0][0]
    trainings = [
        Peer(method=method, training=_training(own), seeds=Seeds(seed), scale=scale)
        for own, method, seed, scale in members
    ]
    tasks, algorithm = Waves(settings), _algorithm(settings)
    return StackedMetaLearning(trainings, tasks, algorithm, lambda: _model(settings), settings.steps).fit()


def _model(settings: Settings) -> nn.Module:
    return models.build("mlp", (1,), 1, hidden=settings.hidden)


def _algorithm(settings: Settings) -> MAML:
    return MAML(
        loss=squared_error,
        inner_lr=settings.inner_lr,
        inner_steps=settings.inner_steps,
        first_order=settings.first_order,
    )


def _training(settings: Settings) -> OptimizerPlan:
    return OptimizerPlan(
        optimizer="adam", lr=settings.lr, batch_size=settings.batch_size, epochs=settings.epochs, schedule="cosine"
    )


class Waves(Tasks):
    """Sine waves of amplitude 0.1 to 5 and phase 0 to pi, on points from -5 to 5."""

    score, smallest, ways = "loss", True, 1

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        sizes: dict[TaskPool, int] = {"val": settings.val_tasks, "test": settings.test_tasks}
        self.pools = {
            part: _waves(Seeds(_POOL_SEED).numpy(f"{part} pool"), count, settings.shots, _POOL_QUERIES)
            for part, count in sizes.items()
        }

    def draw(self, rng: np.random.Generator, count: int) -> Episodes:
        """New waves."""
        return _waves(rng, count, self.settings.shots, self.settings.queries)

    def pool(self, part: TaskPool) -> Iterator[Episodes]:
        """All frozen waves at once."""
        yield self.pools[part]

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error of each task."""
        return (outputs - targets).square().mean((1, 2))

    def facts(self) -> Record:
        """The hash of the test pool."""
        return {"test_tasks_sha256": sha256_of_arrays([part.numpy() for part in self.pools["test"].tensors])}


def _waves(rng: np.random.Generator, count: int, shots: int, queries: int) -> Episodes:
    amplitude, phase = rng.uniform(0.1, 5.0, (count, 1, 1)), rng.uniform(0.0, np.pi, (count, 1, 1))
    x = rng.uniform(-5.0, 5.0, (count, shots + queries, 1))
    points = [torch.from_numpy(values.astype(np.float32)) for values in (x, amplitude * np.sin(x - phase))]
    return Episodes(
        support_x=points[0][:, :shots],
        support_y=points[1][:, :shots],
        query_x=points[0][:, shots:],
        query_y=points[1][:, shots:],
    )


def figures(results: Results) -> Sequence[Figure]:
    """The worst shares of the pool, and all tasks in the order of their errors."""
    from reweigh.bench.recipes._figures import tasks

    return tasks.figures(results)
