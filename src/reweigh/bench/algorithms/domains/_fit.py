"""Leave one domain out: train on the others, choose a checkpoint by them, and only then look at the one left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.algorithms.domains._base import Batch, Learner, Weigher
from reweigh.bench.loop import Live
from reweigh.bench.runs import Record
from reweigh.bench.seeds import Seeds
from reweigh.bench.tally import EpochTally
from reweigh.method import Built, Context, Method

Array = np.ndarray[Any, Any]
#: How a checkpoint and hyper-parameters are chosen: by held-out examples of the *training* domains; or, as an upper
#: bound that no one could have in practice, by held-out examples of the domain left out, at the last step.
Selection = Literal["training domains", "oracle"]


class LookedTooEarlyError(RuntimeError):
    """The domain that is left out was asked for before training was over."""


class Rows(Protocol):
    """Inputs of which some can be had by their numbers: an array, in memory or on disk, or a part of one."""

    def __getitem__(self, rows: Array, /) -> Array:
        """The inputs of these numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Examples of one domain, and how some of them become a tensor.

    Parameters
    ----------
    x, y
        Inputs, which may lie on disk, and labels.
    tensor
        From some inputs to what a network takes.
    """

    x: Rows
    y: Array
    tensor: Callable[[Array], Tensor]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some rows."""
        # Ascending first: an array on disk is read in its order.
        order = np.argsort(rows, kind="stable")
        x = self.tensor(np.asarray(self.x[rows[order]]))
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        return x[back], torch.from_numpy(self.y[rows])


@dataclass(frozen=True, kw_only=True)
class Source:
    """A training domain: what is learnt from, and what is held out to choose by."""

    name: str
    train: Pool
    held: Pool


class Target:
    """The domain that is left out. Asking for its examples before `release` is an error, whoever asks.

    Parameters
    ----------
    name
        Of the domain.
    report, held
        What accuracy is reported on, and what the oracle may choose by.
    """

    def __init__(self, name: str, report: Pool, held: Pool) -> None:
        self.name = name
        self._pools = {"report": report, "held": held}
        self._released = False

    def release(self) -> None:
        """Training is over, and nothing can be learnt or chosen any more."""
        self._released = True

    def pool(self, part: Literal["report", "held"]) -> Pool:
        """Its examples, once training is over."""
        if not self._released:
            raise LookedTooEarlyError(
                f"examples of the domain left out, {self.name!r}, were asked for while training. They may only be "
                "looked at after the last step: call `release` there."
            )
        return self._pools[part]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Training domains, the one left out, and the names of the classes."""

    sources: Sequence[Source]
    target: Target
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, and by which rule to choose.

    Parameters
    ----------
    steps, check
        Steps of the whole training, and after how many the held-out examples of training domains are looked at.
    batch_size
        Examples of *each* training domain in a step.
    selection
        The rule.
    """

    steps: int
    check: int
    batch_size: int
    selection: Selection = "training domains"

    def __post_init__(self) -> None:
        validate.whole("steps", self.steps, 1)
        validate.whole("check", self.check, 1)
        validate.whole("batch_size", self.batch_size, 2)
        validate.one_of("selection", self.selection, ("training domains", "oracle"))
        if self.steps % self.check:
            raise ValueError(f"`check` must divide `steps`, got {self.check} and {self.steps}.")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one domain left out.

    Parameters
    ----------
    val, test, last
        Accuracy on held-out examples of the training domains, on the domain left out, and on it at the last step.
    oracle
        Accuracy on the held-out part of the domain left out, at the last step.
    confusion
        On the domain left out: true classes in rows, predictions in columns.
    """

    name: str
    val: float
    test: float
    last: float
    oracle: float
    confusion: list[list[int]]


class LeaveOneOut:
    """The moving parts of one training without one domain, which a checkpoint has to hold."""

    def __init__(
        self, problem: Problem, learner: Learner, method: Method, schedule: Schedule, seeds: Seeds, *, stream: str
    ) -> None:
        self.problem, self.learner, self.schedule, self.seeds, self.stream = problem, learner, schedule, seeds, stream
        built = parts_of(method, problem, schedule.steps)
        self.weigh = Weigher(built.loss, Live(built.objective))
        self.average = None if built.average is None else built.average.start(learner)
        # An algorithm may weigh an example more than once in a step: MLDG does, once for each domain at most.
        self.tally = EpochTally(1, schedule.batch_size * len(problem.sources) ** 2)
        self.segment = 0
        self.best: tuple[float, dict[str, Tensor]] | None = None
        self.mean_weights: list[float] = []

    @property
    def over(self) -> bool:
        """Whether the last step was taken."""
        return self.segment * self.schedule.check >= self.schedule.steps

    def run_segment(self, scale: Array | None = None) -> Record:
        """Some steps, then a look at the held-out examples of training domains; `scale` is a factor for each step."""
        name = f"{self.stream}, segment {self.segment}"
        # A stream for each segment: what is drawn does not depend on where a run was interrupted.
        with self.seeds.ambient(f"noise of {name}"):
            classified = self._steps(self.seeds.numpy(f"order of {name}"), scale)
        self.segment += 1
        accuracy, loss = self._held()
        if self.average is not None:
            self.average.observe(loss)
        elif self.learner.settled and (self.best is None or accuracy > self.best[0]):
            state = {key: value.clone() for key, value in self.learner.state_dict().items()}
            self.best = accuracy, state
        tau = getattr(self.weigh.live.objective, "tau", None)
        found: Record = {"held/accuracy": accuracy, "held/loss": loss}
        if classified:
            (statistics,), _ = self.tally.close(None if tau is None else torch.tensor([float(tau)]))
            found |= statistics
        return found

    def _steps(self, rng: np.random.Generator, scale: Array | None) -> int:
        """The steps of a segment; returns in how many of them something was classified."""
        self.learner.train()
        classified = 0
        for k in range(self.schedule.check):
            step = self.segment * self.schedule.check + k
            self.weigh.live.factor = 1.0 if scale is None else float(scale[step])
            self.learner.update(self._draw(rng), self.weigh)
            if self.average is not None:
                self.average.update(self.learner)
            found = self.weigh.collect()
            if found is None:  # a step in which nothing was classified
                self.mean_weights.append(1.0)
                continue
            losses, weights = found
            classified += 1
            self.mean_weights.append(float(weights.mean()))
            self.tally.update(torch.arange(len(losses))[None], losses[None], weights[None])
        return classified

    def _draw(self, rng: np.random.Generator) -> Batch:
        drawn = [
            source.train.take(rng.integers(len(source.train), size=self.schedule.batch_size))
            for source in self.problem.sources
        ]
        x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return Batch(x=x, y=y, domains=len(drawn))

    def _held(self) -> tuple[float, float]:
        """Mean accuracy and mean loss over training domains, on their held-out examples."""
        found = [self._score(source.held) for source in self.problem.sources]
        return float(np.mean([f[0] for f in found])), float(np.mean([f[1] for f in found]))

    def _score(self, pool: Pool) -> tuple[float, float, Array]:
        outputs, targets = self._outputs(pool)
        right = (outputs.argmax(1) == targets).double().mean()
        table = np.zeros((len(self.problem.classes),) * 2, np.int64)
        np.add.at(table, (targets.numpy(), outputs.argmax(1).numpy()), 1)
        return float(right), float(F.cross_entropy(outputs.double(), targets)), table

    @torch.no_grad()
    def _outputs(self, pool: Pool, batch: int = 256) -> tuple[Tensor, Tensor]:
        """Outputs and labels, in one fixed random order.

        Some algorithms look at all that is predicted at once, and folders come class by class: in their order, who is
        predicted with whom would tell the class.
        """
        self.learner.eval()
        order = Seeds(0).numpy("order of predictions").permutation(len(pool))
        outputs: list[Tensor] = []
        labels: list[Tensor] = []
        for i in range(0, len(order), batch):  # one batch at a time in memory
            x, y = pool.take(order[i : i + batch])
            outputs.append(self.learner(x))
            labels.append(y)
        return torch.cat(outputs), torch.cat(labels)

    def finish(self) -> Result:
        """The chosen weights on the domain left out, which is looked at now for the first time."""
        if not self.over:
            raise LookedTooEarlyError("training is not over, so nothing may be reported yet.")
        self.problem.target.release()
        report, held = self.problem.target.pool("report"), self.problem.target.pool("held")
        last, oracle = self._score(report)[0], self._score(held)[0]
        with self._chosen():
            val, _ = self._held()
            test, _, confusion = self._score(report)
        if self.schedule.selection == "oracle":
            val = oracle
        return Result(
            name=self.problem.target.name, val=val, test=test, last=last, oracle=oracle, confusion=confusion.tolist()
        )

    def _chosen(self) -> Any:
        """The learner with the weights that the rule chooses, until the block is left."""
        if self.average is not None:
            return self.average.swapped(self.learner)
        if self.schedule.selection == "oracle" or self.best is None:  # the last step, without early stopping
            return nullcontext()
        return _Swapped(self.learner, self.best[1])

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "segment": self.segment,
            "learner": self.learner.state_dict(),
            "optimizers": {name: one.state_dict() for name, one in self.learner.optimizers.items()},
            "average": None if self.average is None else self.average.state_dict(),
            "best": None if self.best is None else list(self.best),
            "objective": {name: torch.as_tensor(value) for name, value in (self.weigh.live.state or {}).items()},
            "mean_weights": self.mean_weights,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.segment, self.mean_weights = state["segment"], state["mean_weights"]
        self.learner.load_state_dict(state["learner"])
        for name, one in self.learner.optimizers.items():
            one.load_state_dict(state["optimizers"][name])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.best = None if state["best"] is None else (state["best"][0], state["best"][1])
        self.weigh.live.state = state["objective"] or ()


class _Swapped:
    """Other weights in a learner for the length of a block."""

    def __init__(self, learner: Learner, state: dict[str, Tensor]) -> None:
        self.learner, self.state = learner, state
        self.own: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self.own = copy.deepcopy(self.learner.state_dict())
        self.learner.load_state_dict(self.state)

    def __exit__(self, *_: object) -> None:
        self.learner.load_state_dict(self.own)


def parts_of(method: Method, problem: Problem, steps: int) -> Built:
    """The loss, objective and average of a method, the slots that have a meaning for every algorithm."""
    others = [slot for slot, _ in method.parts() if slot not in ("loss", "objective", "average")]
    if others:
        raise ValueError(
            f"an algorithm draws its batches and takes its steps itself, so a method has a loss, an objective and an "
            f"average here, got {method} with a {others[0]} of its own."
        )
    labels = np.concatenate([source.train.y for source in problem.sources])
    counts = np.bincount(labels, minlength=len(problem.classes)).tolist()
    return method.build(Context(n=len(labels), class_counts=counts, n_groups=len(problem.sources), steps=steps))


def leave_one_out(
    start: Callable[[int], LeaveOneOut], count: int, steps: int, saved: dict[str, Any] | None, scale: Array | None
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Every domain left out in turn: a record for each look, and the state to go on from.

    Parameters
    ----------
    start
        The training that leaves out a domain of this number.
    count, steps
        Number of domains; steps of each training.
    saved
        The state of a checkpoint, or None.
    scale
        A factor on the classification losses for every step of all trainings, one after the other.
    """
    results: list[dict[str, Any]] = saved["results"] if saved else []
    mean_weights: list[float] = saved["mean_weights"] if saved else []
    inner: dict[str, Any] | None = saved["training"] if saved else None
    for k in range(len(results), count):
        training = start(k)
        if inner is not None:
            training.restore(inner)
            inner = None
        own = None if scale is None else scale[k * steps : (k + 1) * steps]
        while not training.over:
            record = training.run_segment(own)
            record["left_out"] = training.problem.target.name
            over = training.over
            if over:
                results.append(vars(training.finish()))
                mean_weights += training.mean_weights
            state = {"results": results, "mean_weights": mean_weights, "training": None if over else training.state()}
            yield record, state
