"""Leave one domain out: train on the others, choose a checkpoint by them, and only then look at the one left out."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh._array import widen
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.driver import Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import ArrayWriter, Record
from reweigh.method import Built, Context, Method
from reweigh.torch.averages import Averager

Array = np.ndarray[Any, Any]
#: How a checkpoint and hyper-parameters are chosen: by held-out examples of the *training* domains; or, as an upper
#: bound that no one could have in practice, by held-out examples of the domain left out, at the last step.
Selection = Literal["training domains", "oracle"]


class LookedTooEarlyError(RuntimeError):
    """The domain that is left out was asked for before training was over."""


class IndexedInputs(Protocol):
    """Inputs that are read by index: an array, in memory or on disk, or a part of one."""

    def __getitem__(self, rows: Array, /) -> Array:
        """The inputs of these numbers."""
        ...


@dataclass(frozen=True, kw_only=True)
class DomainExamples:
    """Examples of one domain, and how some of them become a tensor.

    Parameters
    ----------
    x, y
        IndexedInputs, which may lie on disk, and labels.
    tensor
        From some inputs to what a network takes.
    """

    x: IndexedInputs
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
class TrainingDomain:
    """A domain to learn from: its training examples, and those held out to choose by."""

    name: str
    train: DomainExamples
    held: DomainExamples


class HeldOutDomain:
    """The domain that is left out. Asking for its examples before `release` is always an error.

    Parameters
    ----------
    name
        Of the domain.
    report, held
        What accuracy is reported on, and what the oracle may choose by.
    """

    def __init__(self, name: str, report: DomainExamples, held: DomainExamples) -> None:
        self.name = name
        self._pools = {"report": report, "held": held}
        self._released = False

    def release(self) -> None:
        """Training is over, and nothing can be learnt or chosen any more."""
        self._released = True

    def pool(self, part: Literal["report", "held"]) -> DomainExamples:
        """Its examples, once training is over."""
        if not self._released:
            raise LookedTooEarlyError(
                f"examples of the domain left out, {self.name!r}, were requested during training. They may only be "
                "looked at after the last step: call `release` there."
            )
        return self._pools[part]


@dataclass(frozen=True, kw_only=True)
class DomainProblem:
    """Training domains, the one left out, and the names of the classes."""

    sources: Sequence[TrainingDomain]
    target: HeldOutDomain
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long to train, and by which rule to choose.

    Parameters
    ----------
    steps, check
        Steps of the training without one domain, and after how many the held-out examples of training domains are
        looked at.
    batch_size
        Examples of *each* training domain in a step.
    selection
        The rule.
    precision
        Of the steps and of predictions: `"float32"`, or `"bfloat16"` for mixed precision.
    """

    steps: int
    check: int
    batch_size: int
    selection: Selection = "training domains"
    precision: devices.Precision = "float32"

    def __post_init__(self) -> None:
        validate.whole("steps", self.steps, 1)
        validate.whole("check", self.check, 1)
        validate.whole("batch_size", self.batch_size, 2)
        validate.one_of("selection", self.selection, ("training domains", "oracle"))
        # Algorithms add penalties to the loss, so there is no one place for the factor that float16 needs.
        validate.one_of("precision", self.precision, ("float32", "bfloat16"))
        if self.steps % self.check:
            raise ValueError(f"`check` must divide `steps`, got {self.check} and {self.steps}.")


@dataclass(frozen=True, kw_only=True)
class DomainResult:
    """The result of one domain left out.

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


@dataclass(frozen=True, kw_only=True)
class DomainBatch:
    """Equally many examples of each training domain, domain after domain.

    Parameters
    ----------
    x, y
        IndexedInputs `(n, ...)` and labels `(n,)`.
    domains
        Number of domains; `n` is a multiple of it.
    """

    x: Tensor
    y: Tensor
    domains: int

    def __post_init__(self) -> None:
        if len(self.x) % self.domains:
            raise ValueError(f"a batch must hold equally many of each of {self.domains} domains, got {len(self.x)}.")

    @property
    def domain(self) -> Tensor:
        """The domain of each example, from 0."""
        return torch.arange(self.domains, device=self.y.device).repeat_interleave(len(self.y) // self.domains)

    def parts(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of all examples, domain by domain."""
        return values.chunk(self.domains)

    def of(self, domains: Iterable[int]) -> DomainBatch:
        """Some domains only."""
        chosen = list(domains)
        xs, ys = self.parts(self.x), self.parts(self.y)
        return DomainBatch(
            x=torch.cat([xs[d] for d in chosen]), y=torch.cat([ys[d] for d in chosen]), domains=len(chosen)
        )


class Weigher:
    """The method's live loss and objective, and what they saw in a step.

    An algorithm asks for the plain losses of some examples and hands them back to be made one number of.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], live: LiveObjective) -> None:
        self.loss, self.live = loss, live
        self._seen: list[tuple[Tensor, Tensor]] = []

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One classification loss per example."""
        return self.loss(widen(outputs), targets)

    def __call__(self, losses: Tensor, domain: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The number to descend, made of the losses of examples and the domain each belongs to."""
        loss = self.live(losses, sample_weight, groups=domain)
        assert self.live.weights is not None
        self._seen.append((losses.detach(), self.live.weights.detach()))
        return loss

    def collect(self) -> tuple[Tensor, Tensor] | None:
        """Losses and weights since the last call; None where nothing was weighed."""
        if not self._seen:
            return None
        losses, weights = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        self._seen.clear()
        return losses, weights


class DomainLearner(nn.Module, ABC):
    """A live algorithm: parameters, its optimisers by name, and a count of the steps it took.

    The count is a number of the host: reading it from a device would make every step wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0
        self.optimizers: dict[str, torch.optim.Optimizer] = {}

    def update(self, batch: DomainBatch, weigh: Weigher) -> None:
        """Take one step."""
        self.learn(batch, weigh)
        self.updates += 1

    @abstractmethod
    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        """What a step is."""

    @property
    def settled(self) -> bool:
        """Whether what there is now is the algorithm's result, and not an earlier phase of it."""
        return True


class LeaveOneOut(Program):
    """Every domain left out in turn, one training after the other.

    Parameters
    ----------
    start
        The problem without the domain of a number, and a fresh learner for it.
    count
        Number of domains.
    method, schedule, seeds
        How to train; the method's loss, objective and average are used.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        start: Callable[[int], tuple[DomainProblem, DomainLearner]],
        count: int,
        method: Method,
        schedule: Schedule,
        seeds: Seeds,
        *,
        device: torch.device | None = None,
    ) -> None:
        self.start, self.method, self.schedule, self.seeds = start, method, schedule, seeds
        self.device = devices.current() if device is None else device
        self.steps, self.every = count * schedule.steps, schedule.check
        self.results: list[dict[str, Any]] = []
        self._begin(0)

    def _begin(self, number: int) -> None:
        """Start the training that leaves out the domain of this number."""
        self.number = number
        self.problem, learner = self.start(number)
        self.module = self.learner = _placed(learner, self.device).train()
        built = parts_of(self.method, self.problem, self.schedule.steps)
        self.weigh = Weigher(built.loss, LiveObjective(built.objective))
        self.objectives = (self.weigh.live,)
        # Held-out examples are looked at with the weights as they are, by which SWAD finds its valley: the average is
        # put in place once, at the end, and so it is not the driver's.
        self.averager: Averager | None = None if built.average is None else built.average.start(learner)
        self.best: tuple[float, dict[str, Tensor]] | None = None

    @property
    def over(self) -> bool:
        """Whether the training without this domain took its last step."""
        return self.learner.updates >= self.schedule.steps

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """The random streams of a segment: what is drawn does not depend on where a run was interrupted."""
        left_out, segment = divmod(number, self.schedule.steps // self.every)
        if left_out != self.number:
            self._begin(left_out)
        name = f"{left_out} left out, segment {segment}"
        self._rng = self.seeds.numpy(f"order of {name}")
        return self.seeds.ambient(f"noise of {name}")

    def step(self, step: int) -> StepOutput | None:
        """One step of the algorithm; None if it classified nothing."""
        with devices.autocast(self.device, self.schedule.precision):
            self.learner.update(self._draw(), self.weigh)
        if self.averager is not None:
            self.averager.update(self.learner)
        weighed = self.weigh.collect()
        return None if weighed is None else StepOutput(*weighed)

    def _draw(self) -> DomainBatch:
        drawn = [
            source.train.take(self._rng.integers(len(source.train), size=self.schedule.batch_size))
            for source in self.problem.sources
        ]
        x, y = (torch.cat(parts).to(self.device, non_blocking=True) for parts in zip(*drawn, strict=True))
        return DomainBatch(x=x, y=y, domains=len(drawn))

    def evaluate(self, *, last: bool) -> Record:
        """A look at the held-out examples of training domains; after a training's last step, its result."""
        accuracy, loss = self._held()
        if self.averager is not None:
            self.averager.observe(loss)
        elif self.learner.settled and (self.best is None or accuracy > self.best[0]):
            self.best = accuracy, copy.deepcopy(self.learner.state_dict())
        if self.over:
            self.results.append(asdict(self.finish()))
        record: Record = {"held/accuracy": accuracy, "held/loss": loss, "left_out": self.problem.target.name}
        return record | self._means() if last else record

    def _held(self) -> tuple[float, float]:
        """Mean accuracy and mean loss over training domains, on their held-out examples."""
        scores = [self._score(source.held) for source in self.problem.sources]
        return float(np.mean([score[0] for score in scores])), float(np.mean([score[1] for score in scores]))

    def _score(self, pool: DomainExamples) -> tuple[float, float, Array]:
        """Accuracy, mean loss and confusions."""
        outputs, targets = self._outputs(pool)
        right = (outputs.argmax(1) == targets).double().mean()
        table = np.zeros((len(self.problem.classes),) * 2, np.int64)
        np.add.at(table, (targets.numpy(), outputs.argmax(1).numpy()), 1)
        return float(right), float(F.cross_entropy(outputs.double(), targets)), table

    @torch.no_grad()
    def _outputs(self, pool: DomainExamples, batch: int = 256) -> tuple[Tensor, Tensor]:
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
            with devices.autocast(self.device, self.schedule.precision):
                outputs.append(widen(self.learner(x.to(self.device, non_blocking=True))))
            labels.append(y)
        return torch.cat(outputs).cpu(), torch.cat(labels)

    def finish(self) -> DomainResult:
        """The chosen weights on the domain left out, which is looked at now for the first time."""
        if not self.over:
            raise LookedTooEarlyError("training is not over, so nothing may be reported yet.")
        target = self.problem.target
        target.release()
        report, held = target.pool("report"), target.pool("held")
        last, oracle = self._score(report)[0], self._score(held)[0]
        with self._chosen():
            val, _ = self._held()
            test, _, confusion = self._score(report)
        if self.schedule.selection == "oracle":
            val = oracle
        return DomainResult(
            name=target.name, val=val, test=test, last=last, oracle=oracle, confusion=confusion.tolist()
        )

    def _chosen(self) -> AbstractContextManager[Any]:
        """The learner with the weights that the rule chooses, until the block is left."""
        if self.averager is not None:
            return self.averager.swapped(self.learner)
        if self.schedule.selection == "oracle" or self.best is None:  # the last step, without early stopping
            return nullcontext()
        return _swapped(self.learner, self.best[1])

    def _means(self) -> Record:
        """Means over the domains left out, and each of them."""

        def mean(name: str) -> float:
            return float(np.mean([result[name] for result in self.results]))

        return {
            "val/accuracy": mean("val"),
            "test/accuracy": mean("test"),
            "test/last_accuracy": mean("last"),
            "test/worst_domain": float(min(result["test"] for result in self.results)),
            "domain_names": [result["name"] for result in self.results],
            "domain_val": [result["val"] for result in self.results],
            "domain_test": [result["test"] for result in self.results],
            "class_names": list(self.problem.classes),
        }

    def keep(self, writer: ArrayWriter) -> None:
        """The confusions on each domain left out."""
        writer.array("confusion", np.asarray([result["confusion"] for result in self.results]))

    def state(self) -> dict[str, Any]:
        """Results so far, and the current training."""
        return {
            "results": self.results,
            "number": self.number,
            "updates": self.learner.updates,
            "learner": self.learner.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.learner.optimizers.items()},
            "averager": None if self.averager is None else self.averager.state_dict(),
            "best": None if self.best is None else list(self.best),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        if state["number"] != self.number:
            self._begin(state["number"])
        self.results, self.learner.updates = state["results"], state["updates"]
        self.learner.load_state_dict(state["learner"])
        for name, optimizer in self.learner.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        if self.averager is not None:
            self.averager.load_state_dict(state["averager"])
        self.best = None if state["best"] is None else (state["best"][0], state["best"][1])


def _placed(learner: DomainLearner, device: torch.device) -> DomainLearner:
    """A fresh learner on a device, its optimisers with it: not on every device do parameters stay the same objects."""
    before = [id(parameter) for parameter in learner.parameters()]
    after = dict(zip(before, learner.to(device).parameters(), strict=True))
    for optimizer in learner.optimizers.values():
        for group in optimizer.param_groups:
            group["params"] = [after[id(parameter)] for parameter in group["params"]]
    return learner


@contextmanager
def _swapped(learner: DomainLearner, state: dict[str, Tensor]) -> Generator[None]:
    """Other weights in a learner for the length of a block."""
    own = copy.deepcopy(learner.state_dict())
    learner.load_state_dict(state)
    try:
        yield
    finally:
        learner.load_state_dict(own)


def parts_of(method: Method, problem: DomainProblem, steps: int) -> Built:
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
