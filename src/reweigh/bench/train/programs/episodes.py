"""Learning to learn: meta-batches of tasks, and the same frozen pools of tasks to look at the result.

One meta-training is a program of the one driver; many of a small model run stacked, as one program.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.driver import Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import ArrayWriter, Record
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.scores import PERCENT, worst_share
from reweigh.bench.train.stacked import Peer, StackedDriver, initial_models
from reweigh.method import Context, Method
from reweigh.objectives import Objective
from reweigh.objectives._base import state_like, weigh

Floats = np.ndarray[Any, Any]
TaskPool = Literal["val", "test"]


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Some tasks: what each shows (support) and what it asks (query).

    Parameters
    ----------
    support_x, support_y
        Examples to learn from, `(tasks, examples, ...)`, and their labels `0 … ways - 1` or numbers.
    query_x, query_y
        Examples to predict.
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor

    def __len__(self) -> int:
        return len(self.support_x)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Support and queries, inputs before labels."""
        return self.support_x, self.support_y, self.query_x, self.query_y

    def to(self, device: torch.device) -> Episodes:
        """The same tasks on a device."""
        fields = dataclasses.fields(self)
        return Episodes(**{field.name: devices.moved(getattr(self, field.name), device) for field in fields})


class TaskLearner(Protocol):
    """How a model that has seen a task's support set answers its queries."""

    @property
    def weighted(self) -> bool:
        """Whether there is a loss for each task that an objective can weigh."""
        ...

    def outputs(self, model: nn.Module, episodes: Episodes, ways: int) -> Tensor:
        """The outputs for all queries of all tasks, `(tasks, queries, outputs)`."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean query loss of each task, `(tasks,)`: what an objective weighs."""
        ...

    def descend(self, model: nn.Module, episodes: Episodes, ways: int, objective: Callable[[Tensor], Tensor]) -> Tensor:
        """Leave the meta-gradient in the parameters' `grad`; returns the plain task losses, without gradient."""
        ...


class FunctionalLearner(TaskLearner, Protocol):
    """One whose task loss is a function of the parameters, so that many trainings can be stacked."""

    def query_loss(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        support_x: Tensor,
        support_y: Tensor,
        query_x: Tensor,
        query_y: Tensor,
    ) -> Tensor:
        """The mean query loss of one task."""
        ...


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
    def pool(self, part: TaskPool) -> Iterator[Episodes]:
        """The frozen tasks of a part, some at a time, always the same in the same order."""

    @abstractmethod
    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score of each task."""

    def facts(self) -> Record:
        """What identifies the pools, for the first record of a run."""
        return {}

    def keep(self, keeper: ArrayWriter, scores: Floats, outputs: Tensor) -> None:
        """Keep what a report wants of the test pool; called when an epoch is the one to report, as far as is known."""
        keeper.array("task_scores", scores.astype(np.float32))


class TaskEvaluation:
    """How one training does on the frozen pools, and its best validation so far.

    With `final_only` no epoch is chosen, and the test pool is looked at in the end alone.
    """

    def __init__(self, tasks: Tasks, algorithm: TaskLearner, device: torch.device, *, final_only: bool = False) -> None:
        self.tasks, self.algorithm, self.device, self.final_only = tasks, algorithm, device, final_only
        self.best: float | None = None

    def look(self, model: nn.Module, keeper: ArrayWriter, *, last: bool) -> Record:
        """Validation scores; test scores too at the end, and where an epoch is chosen, if it is the best so far.

        The test pool is looked at nowhere else, since no other record can be chosen.
        """
        name = self.tasks.score
        scores, losses, _ = self._score(model, "val")
        record: Record = {f"val/{name}": float(scores.mean()), "val/loss": float(losses.mean())}
        best = last if self.final_only else self.is_best(float(scores.mean()))
        if best or last:
            scores, losses, outputs = self._score(model, "test")
            record |= {f"test/{name}": float(scores.mean()), "test/loss": float(losses.mean())}
            shares = {p: worst_share(scores, p, smallest=self.tasks.smallest) for p in PERCENT}
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
    def _score(self, model: nn.Module, part: TaskPool) -> tuple[Floats, Floats, Tensor]:
        """Score and loss of every task of a frozen pool, and the outputs, in the processor's memory."""
        was = model.training
        model.eval()
        pairs = [
            (widen(self.algorithm.outputs(model, episodes.to(self.device), self.tasks.ways)).cpu(), episodes.query_y)
            for episodes in self.tasks.pool(part)
        ]
        model.train(was)
        scores = torch.cat([self.tasks.scores(outputs, targets) for outputs, targets in pairs])
        losses = torch.cat([self.algorithm.losses(outputs, targets) for outputs, targets in pairs])
        return scores.double().numpy(), losses.double().numpy(), torch.cat([outputs for outputs, _ in pairs])


class MetaLearning(Program):
    """One model that learns to learn tasks.

    Parameters
    ----------
    tasks, algorithm, model
        The tasks, how a task is learnt, and the model with its initial parameters.
    method, training, seeds
        The objective over tasks; optimiser and schedule of the outer loop, whose batch size is the number of tasks of a
        meta-batch.
    keeper
        Where results on the test pool go when an epoch is the one to report, as far as is known.
    every
        Meta-batches of an epoch, after each of which validation tasks are looked at.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        tasks: Tasks,
        algorithm: TaskLearner,
        model: nn.Module,
        method: Method,
        training: OptimizerPlan,
        seeds: Seeds,
        keeper: ArrayWriter,
        *,
        every: int,
        device: torch.device | None = None,
    ) -> None:
        validate.whole("steps", every, 1)
        # The inner loop takes gradients too, so there is no one place for the factor that float16 needs.
        validate.one_of("precision", training.precision, ("float32", "bfloat16"))
        self.tasks, self.algorithm, self.training, self.seeds, self.keeper = tasks, algorithm, training, seeds, keeper
        self.device = devices.current() if device is None else device
        self.module = model.to(self.device)
        self.every, self.steps = every, every * training.epochs
        self.objectives = (LiveObjective(objective_of(method, algorithm, self.steps)),)
        self.optimizer = training.build(self.module)
        self.watch = TaskEvaluation(tasks, algorithm, self.device, final_only=training.final_only)

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """A stream for each epoch: what is drawn does not depend on where a run was interrupted."""
        self._rng = self.seeds.numpy(f"tasks of epoch {number}")
        return nullcontext()

    def set_rate(self, step: int) -> None:
        """The schedule's rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.training.lr * self.training.rate_factor(step, self.steps)

    def step(self, step: int) -> StepOutput:
        """One step on new tasks."""
        (live,) = self.objectives
        episodes = self.tasks.draw(self._rng, self.training.batch_size).to(self.device)
        self.optimizer.zero_grad()
        with devices.autocast(self.device, self.training.precision):
            losses = self.algorithm.descend(self.module, episodes, self.tasks.ways, live)
        self.optimizer.step()
        return StepOutput(losses, torch.ones_like(losses) if live.weights is None else live.weights)

    def evaluate(self, *, last: bool) -> Record:
        """Scores on the frozen pools."""
        with devices.autocast(self.device, self.training.precision):
            return self.watch.look(self.module, self.keeper, last=last)

    def facts(self) -> Record:
        """What identifies the pools."""
        return self.tasks.facts()

    def state(self) -> dict[str, Any]:
        """Model, optimiser and the best validation so far."""
        return {
            "best": self.watch.best,
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.watch.best = state["best"]
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class StackedMetaLearning(StackedDriver[Peer]):
    """Many meta-trainings of a small model at once; objectives, rates and seeds are each one's own.

    Parameters
    ----------
    members
        Trainings with the same optimiser, epochs and number of tasks; methods, learning rates and seeds may differ.
    tasks, algorithm
        The same for all of them.
    build
        Makes one model; it is called once per member, with that member's initialisation stream.
    every
        Meta-batches of an epoch.
    """

    def __init__(
        self,
        members: Sequence[Peer],
        tasks: Tasks,
        algorithm: FunctionalLearner,
        build: Callable[[], nn.Module],
        every: int,
    ) -> None:
        self.tasks, self.algorithm = tasks, algorithm
        models = initial_models(members, build)
        self.model = models[0].to(devices.current())
        stacked, _ = stack_module_state([model.to(devices.current()) for model in models])
        self.names = list(stacked)
        steps = every * members[0].training.epochs
        self.task_objectives = [objective_of(member.method, algorithm, steps) for member in members]
        self.states = [objective.init() for objective in self.task_objectives]
        super().__init__(members, self.task_objectives, [p.detach() for p in stacked.values()], every)
        self.watches = [
            TaskEvaluation(tasks, algorithm, self.device, final_only=members[0].training.final_only) for _ in members
        ]

    def take_epoch(self, epoch: int) -> Iterator[tuple[None, Tensor, Tensor]]:
        """Learn from some meta-batches; members of one seed learn from the same."""
        count = self.training.batch_size
        streams = {m.seeds.seed: m.seeds.numpy(f"tasks of epoch {epoch}") for m in self.members}
        for _ in range(self.every):
            drawn = {seed: self.tasks.draw(rng, count) for seed, rng in streams.items()}
            yield None, *self._take([drawn[m.seeds.seed] for m in self.members])

    def _take(self, drawn: Sequence[Episodes]) -> tuple[Tensor, Tensor]:
        """One step of every member; returns losses and weights, `(members, tasks)`."""
        leaves = [p.detach().requires_grad_() for p in self.parameters]
        parts = [torch.stack(part) for part in zip(*(e.tensors for e in drawn), strict=True)]
        named = dict(zip(self.names, leaves, strict=True))
        task_loss = functools.partial(self.algorithm.query_loss, self.model)
        losses = vmap(vmap(task_loss, in_dims=(None, 0, 0, 0, 0)))(named, *devices.moved(parts, self.device))
        values = losses.detach()
        weights = torch.stack([self._weigh(k, own) for k, own in enumerate(values)])
        share = weights if self.scale is None else weights * self.scale[:, self.step, None]
        # No parameter enters the losses of two members, so one pass back serves all of them.
        gradients = torch.autograd.grad(losses, leaves, share / losses.shape[1])
        with torch.no_grad():
            rates = self.optimizer.rates(self.step)
            self.optimizer.update(self.parameters, list(gradients), self.optimizer.state, *rates)
        return values, weights

    def _weigh(self, k: int, losses: Tensor) -> Tensor:
        weighed = weigh(self.task_objectives[k], losses, state_like(self.states[k], losses), None, None)
        self.states[k] = weighed.state
        return weighed.weights

    def evaluate(self, *, last: bool) -> list[Record]:
        """Scores of each member on the frozen pools."""
        return [self._look(k, last=last) for k in range(len(self.members))]

    def _look(self, k: int, *, last: bool) -> Record:
        kept = _Kept()
        with torch.no_grad():
            for parameter, values in zip(self.model.parameters(), self.parameters, strict=True):
                parameter.copy_(values[k])
        return {**self.watches[k].look(self.model, kept, last=last), "arrays": dict(kept)}

    def facts(self, member: Peer) -> Record:
        """What identifies the pools."""
        return self.tasks.facts()


class _Kept(dict[str, Floats]):
    """Larger results of one member, until a record takes them along."""

    def array(self, name: str, values: Floats) -> None:
        self[name] = values


def objective_of(method: Method, algorithm: TaskLearner, steps: int) -> Objective:
    """The method's objective, the one slot that has a meaning for tasks."""
    others = [slot for slot, _ in method.parts() if slot != "objective"]
    if others:
        raise ValueError(f"tasks are weighed by an objective alone, got {method} with a {others[0]} of its own.")
    if not algorithm.weighted and str(method) != "mean":
        name = type(algorithm).__module__.rpartition(".")[2]
        raise ValueError(f"{name!r} has no task losses to weigh, so it runs with 'mean' only, got {str(method)!r}.")
    return method.build(Context(steps=steps)).objective
