"""Meta-training: meta-batches of tasks, and the same frozen pools of tasks to look at the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.algorithms.meta._base import Algorithm, Episodes
from reweigh.bench.loop import Live
from reweigh.bench.optimizers import Training
from reweigh.bench.runs import Record, Writer
from reweigh.bench.seeds import Seeds
from reweigh.bench.tally import EpochTally
from reweigh.bench.worst import PERCENT, worst
from reweigh.method import Context, Method
from reweigh.objectives._base import Objective

Floats = np.ndarray[Any, Any]
Part = Literal["val", "test"]


class Keeper(Protocol):
    """Where larger results go."""

    def array(self, name: str, values: Floats) -> None:
        """Keep a larger result."""


class Tasks(ABC):
    """A distribution of tasks to learn from, and frozen pools of other tasks to choose by and to report."""

    #: What the score of a task is called in records.
    score: str = "accuracy"
    #: Whether less of it is better.
    smallest: bool = False
    #: Outputs of a classification; 1 for a regression.
    ways: int = 1

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Episodes:
        """New tasks to learn from."""

    @abstractmethod
    def pool(self, part: Part) -> Iterator[Episodes]:
        """The frozen tasks of a part, some at a time, always the same in the same order."""

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score of each task."""

    def facts(self) -> Record:
        """What identifies the pools, for the first record of a run."""
        return {}

    def keep(self, keeper: Keeper, scores: Floats, outputs: Tensor) -> None:
        """Keep what a report wants of the test pool; called whenever validation is at its best so far."""
        keeper.array("task_scores", scores.astype(np.float32))


class Watch:
    """How one training does on the frozen pools, and its best validation so far."""

    def __init__(self, tasks: Tasks, algorithm: Algorithm) -> None:
        self.tasks, self.algorithm = tasks, algorithm
        self.best: float | None = None

    def look(self, model: nn.Module, keeper: Keeper, *, last: bool) -> Record:
        """Validation scores; test scores too where validation is at its best so far, or at the end."""
        name = self.tasks.score
        scores, losses, _ = self._score(model, "val")
        record: Record = {f"val/{name}": float(scores.mean()), "val/loss": float(losses.mean())}
        best = self.is_best(float(scores.mean()))
        if best or last:
            scores, losses, outputs = self._score(model, "test")
            record |= {f"test/{name}": float(scores.mean()), "test/loss": float(losses.mean())}
            shares = {p: worst(scores, p, smallest=self.tasks.smallest) for p in PERCENT}
            record |= {f"test/worst{p}_{name}": share.mean for p, share in shares.items()}
            if best:
                self.tasks.keep(keeper, scores, outputs)
        return record

    def is_best(self, value: float) -> bool:
        """Whether validation is better than ever before; a tie is not, as the earliest epoch wins."""
        sign = -1.0 if self.tasks.smallest else 1.0
        if value == value and (self.best is None or sign * value > sign * self.best):
            self.best = value
            return True
        return False

    @torch.no_grad()
    def _score(self, model: nn.Module, part: Part) -> tuple[Floats, Floats, Tensor]:
        """Score and loss of every task of a frozen pool, and the outputs."""
        pairs = [(self.algorithm.outputs(model, e, self.tasks.ways), e.query_y) for e in self.tasks.pool(part)]
        scores = torch.cat([self.tasks.scores(outputs, targets) for outputs, targets in pairs])
        losses = torch.cat([self.algorithm.losses(outputs, targets) for outputs, targets in pairs])
        return scores.double().numpy(), losses.double().numpy(), torch.cat([outputs for outputs, _ in pairs])


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What is trained, and how long.

    Parameters
    ----------
    tasks, algorithm, model
        The tasks, how a task is learnt, and the model with its initial parameters.
    training
        Optimiser and schedule of the outer loop; its batch size is the number of tasks of a meta-batch.
    steps
        Meta-batches of an epoch, after each of which validation tasks are looked at.
    """

    tasks: Tasks
    algorithm: Algorithm
    model: nn.Module
    training: Training
    steps: int

    def __post_init__(self) -> None:
        validate.whole("steps", self.steps, 1)


def fit(meta: Meta, method: Method, seeds: Seeds, writer: Writer, *, scale: Floats | None = None) -> Iterator[Record]:
    """Train, yielding one record an epoch; resumes from the writer's checkpoint and leaves one after each epoch.

    The test pool is looked at only where validation is at its best so far, and at the end: no other record can be
    chosen.
    """
    fitting = MetaFitting(meta, method, seeds, writer)
    fitting.restore(writer.resume())
    while fitting.epoch < meta.training.epochs:
        yield fitting.run_epoch(scale)
        writer.checkpoint(fitting.state())
    writer.array("mean_weight", np.asarray(fitting.mean_weights, np.float32))


class MetaFitting:
    """The moving parts of one meta-training, which a checkpoint has to hold."""

    def __init__(self, meta: Meta, method: Method, seeds: Seeds, writer: Writer) -> None:
        self.meta, self.seeds, self.writer = meta, seeds, writer
        self.total = meta.steps * meta.training.epochs
        self.live = Live(objective_of(method, meta.algorithm, self.total))
        self.optimizer = meta.training.build(meta.model.parameters())
        self.tally = EpochTally(1, meta.steps * meta.training.batch_size)
        self.epoch = 0
        self.watch = Watch(meta.tasks, meta.algorithm)
        self.mean_weights: list[float] = []

    def run_epoch(self, scale: Floats | None) -> Record:
        """Learn from some meta-batches, and look at the result."""
        # A stream for each epoch: what is drawn does not depend on where a run was interrupted.
        rng, count = self.seeds.numpy(f"tasks of epoch {self.epoch}"), self.meta.training.batch_size
        for k in range(self.meta.steps):
            step = self.epoch * self.meta.steps + k
            rate = self.meta.training.lr * self.meta.training.rate_factor(step, self.total)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.live.factor = 1.0 if scale is None else float(scale[step])
            losses, weights = self.take(self.meta.tasks.draw(rng, count))
            self.tally.update(torch.arange(k * count, (k + 1) * count)[None], losses[None], weights[None])
        self.epoch += 1
        return self._record()

    def take(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """One step on these tasks; returns their plain losses and their weights."""
        self.optimizer.zero_grad()
        losses = self.meta.algorithm.descend(self.meta.model, episodes, self.meta.tasks.ways, self.live)
        self.optimizer.step()
        self.live.advance()
        return losses, torch.ones_like(losses) if self.live.weights is None else self.live.weights

    def _record(self) -> Record:
        tau = getattr(self.live.objective, "tau", None)
        (statistics,), mean_weights = self.tally.close(None if tau is None else torch.tensor([float(tau)]))
        self.mean_weights += mean_weights[:, 0].tolist()
        last = self.epoch == self.meta.training.epochs
        return {
            "epoch": self.epoch,
            "step": self.epoch * self.meta.steps,
            "progress": self.epoch / self.meta.training.epochs,
            **statistics,
            **(self.meta.tasks.facts() if self.epoch == 1 else {}),
            **self.watch.look(self.meta.model, self.writer, last=last),
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "epoch": self.epoch,
            "best": self.watch.best,
            "model": self.meta.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "objective": {name: torch.as_tensor(value) for name, value in (self.live.state or {}).items()},
            "mean_weights": self.mean_weights,
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint's state, if there is one."""
        if state is None:
            return
        self.epoch, self.watch.best, self.mean_weights = state["epoch"], state["best"], state["mean_weights"]
        self.meta.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.live.state = state["objective"] or ()


def objective_of(method: Method, algorithm: Algorithm, steps: int) -> Objective:
    """The method's objective, the one slot that has a meaning for tasks."""
    others = [slot for slot, _ in method.parts() if slot != "objective"]
    if others:
        raise ValueError(f"tasks are weighed by an objective alone, got {method} with a {others[0]} of its own.")
    if not algorithm.weighted and str(method) != "mean":
        name = type(algorithm).__module__.rpartition(".")[2]
        raise ValueError(f"{name!r} has no task losses to weigh, so it runs with 'mean' only, got {str(method)!r}.")
    return method.build(Context(steps=steps)).objective
