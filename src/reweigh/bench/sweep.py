"""Many trainings as one batched program.

Trainings that differ in a number (tau, learning rate, another hyper-parameter) or in their seed share every operation,
so their parameters are stacked and one program trains them all. On few cores this pays for MLPs and linear models,
whose steps are mostly overhead; it loses for convolutions, which run as one-thread processes instead.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from reweigh.bench.optimizers import Training
from reweigh.bench.runs import Record
from reweigh.bench.seeds import Seeds
from reweigh.bench.tally import EpochTally
from reweigh.bench.task import Task, scores
from reweigh.method import Built, Context, Method
from reweigh.objectives._base import Objective, descend, state_like

#: Compiling costs about this many seconds; it is worth it when the eager program would take several times that.
_WORTH_COMPILING_SECONDS = 90.0


@dataclass(frozen=True, kw_only=True)
class Member:
    """One training of a group."""

    task: Task
    method: Method
    training: Training
    seeds: Seeds
    scale: np.ndarray[Any, Any] | None = None


def group_key(method: Method, training: Training) -> str | None:
    """What two trainings must share to run as one; None for methods that need a loop of their own.

    Numbers may differ between members; everything else is part of the key.
    """
    if any(slot in ("sampler", "step", "average") for slot, _ in method.parts()):
        return None
    structure = [_structure(method.objective), "" if method.loss is None else repr(method.loss)]
    rest = dataclasses.replace(training, lr=1.0, weight_decay=0.0)
    return "|".join([*structure, repr(rest)])


def fit_many(
    members: Sequence[Member], build: Callable[[], nn.Module], *, compiled: bool | None = None
) -> Iterator[list[Record]]:
    """Train all members at once, yielding their records epoch by epoch; see `loop.fit` for what is in one.

    Parameters
    ----------
    members
        Trainings with equal `group_key`, equal shapes of data and equal batch size and epochs.
    build
        Makes one model; it is called once a member, with that member's initialisation stream.
    compiled
        Whether to compile the step; None decides by measuring a few steps.

    Yields
    ------
    list[Record]
        One record a member. The last ones carry the arrays `mean_weight` and `loss_trajectory` under `"arrays"`.
    """
    group = _Group(members, build)
    for epoch in range(group.training.epochs):
        yield group.run_epoch(epoch, compiled)


class _Group:
    def __init__(self, members: Sequence[Member], build: Callable[[], nn.Module]) -> None:
        keys = {group_key(m.method, m.training) for m in members}
        if len(keys) != 1 or None in keys:
            raise ValueError(f"members of a group must differ in numbers only, got {len(keys)} kinds of training.")
        self.members = members
        self.training = members[0].training
        models: list[nn.Module] = []
        for member in members:
            with member.seeds.ambient("init"):
                models.append(build())
        self.model = copy.deepcopy(models[0]).to("meta")  # only its structure is used
        parameters, buffers = stack_module_state(models)
        self.parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        self.buffers = buffers
        tasks = [m.task for m in members]
        self.x, self.y = _stack(tasks, "x_train"), _stack(tasks, "y_train")
        self.n = self.x.shape[1]
        built: list[Built] = [
            m.method.build(Context(n=self.n, class_counts=m.task.class_counts, targets=m.task.y_train)) for m in members
        ]
        if any(b.loss != built[0].loss for b in built):
            raise ValueError("members of a group must have the same class counts when their loss depends on them.")
        self.loss = built[0].loss
        reference = next(iter(self.parameters.values()))
        self.objective, self.numbers = _stack_objectives([b.objective for b in built], reference.dtype)
        fresh = state_like(built[0].objective.init(), reference)
        self.state: Any = {k: torch.stack([v] * len(members)) for k, v in fresh.items()} if fresh else ()
        batch_size = min(self.training.batch_size, self.n)
        self.samplers = [
            b.sampler.start(self.n, batch_size=batch_size, seed=m.seeds.integer("order"), targets=m.task.y_train)
            for b, m in zip(built, members, strict=True)
        ]
        self.steps = len(self.samplers[0]) * self.training.epochs
        self.step = 0
        self.optimizer = _StackedOptimizer(self.parameters, members)
        noisy = None if tasks[0].noisy is None else _stack(tasks, "noisy")
        self.tally = EpochTally(len(members), self.n, noisy)
        self.scale = _stack_scales(members, self.steps)
        self.mean_weights: list[Tensor] = []
        self.trajectory: list[Tensor] = []
        self._gradients: Callable[..., Any] = self._eager_gradients
        self._decided = False

    def run_epoch(self, epoch: int, compiled: bool | None) -> list[Record]:
        batches = self._batches(epoch)
        rows = torch.arange(len(self.members))[:, None]
        started = time.perf_counter()
        for done, indices in enumerate(batches, 1):
            x, y = self.x[rows, indices], self.y[rows, indices]
            progress = self.step / self.steps
            scale = None if self.scale is None else self.scale[:, self.step]
            gradients, losses, weights, self.state = self._gradients(x, y, self.state, progress, scale)
            self.optimizer.step(gradients, self.training.rate_factor(self.step, self.steps))
            self.tally.update(indices, losses, weights)
            self.step += 1
            if not self._decided:
                self._decide(compiled, (time.perf_counter() - started) / done, done)
        return self._records(epoch)

    def _eager_gradients(
        self, x: Tensor, y: Tensor, state: Any, progress: float, scale: Tensor | None
    ) -> tuple[list[Tensor], Tensor, Tensor, Any]:
        """The gradient of every member: their losses are added, and no parameter enters two of them."""

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(self.model, (parameters, buffers), (inputs,))

        outputs = vmap(forward, randomness="different")(self.parameters, self.buffers, x)
        losses = vmap(self.loss)(outputs, y)
        measure = self.loss.sample_weight(y, progress)
        values, weights, state = vmap(self._objective, in_dims=(0, 0, 0, None if measure is None else 0))(
            losses, self.numbers, state_like(state, losses), measure
        )
        total = (values if scale is None else values * scale).sum()
        gradients = torch.autograd.grad(total, list(self.parameters.values()))
        return list(gradients), losses.detach(), weights, state

    def _objective(
        self, losses: Tensor, numbers: dict[str, Tensor], state: Any, measure: Tensor | None
    ) -> tuple[Tensor, Tensor, Any]:
        objective = dataclasses.replace(self.objective, **numbers)
        weighed = objective.weigh(losses.detach(), state, measure=measure)
        return descend(losses, weighed, measure, None), weighed.weights, weighed.state

    def _decide(self, compiled: bool | None, seconds: float, done: int) -> None:
        """After a few steps, when caches are warm: is the rest long enough for a compiler to pay?"""
        if compiled is None and done < 5:
            return
        self._decided = True
        if compiled or (compiled is None and seconds * (self.steps - self.step) > _WORTH_COMPILING_SECONDS):
            self._gradients = torch.compile(self._eager_gradients, dynamic=False)

    def _batches(self, epoch: int) -> list[Tensor]:
        """The indices of every step, `(members, batch)` each."""
        for sampler in self.samplers:
            sampler.set_epoch(epoch)
        return [torch.stack([torch.as_tensor(batch) for batch in step]) for step in zip(*self.samplers, strict=True)]

    @torch.no_grad()
    def _outputs(self, x: Tensor) -> Tensor:
        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(self.model, (parameters, buffers), (inputs,))

        self.model.eval()
        outputs = vmap(forward)(self.parameters, self.buffers, x)
        self.model.train()
        return outputs

    def _records(self, epoch: int) -> list[Record]:
        tau = self.numbers.get("tau")
        if tau is None and isinstance(fixed := getattr(self.objective, "tau", None), (int, float)):
            tau = torch.full((len(self.members),), float(fixed))
        statistics, mean_weights = self.tally.close(tau)
        self.mean_weights.append(mean_weights)
        self.trajectory.append(self.tally.newest.half().clone())
        tasks = [m.task for m in self.members]
        records: list[Record] = [
            {"epoch": epoch + 1, "step": self.step, "progress": (epoch + 1) / self.training.epochs, **s}
            for s in statistics
        ]
        for part in ("val", "test"):
            outputs, targets = self._outputs(_stack(tasks, f"x_{part}")), _stack(tasks, f"y_{part}")
            for record, output, target, task in zip(records, outputs, targets, tasks, strict=True):
                found = scores(output, target, len(task.classes))
                record |= {f"{part}/{name}": value for name, value in found.items()}
        if epoch + 1 == self.training.epochs:
            weights, trajectory = torch.cat(self.mean_weights), torch.stack(self.trajectory, 1)
            for k, record in enumerate(records):
                record["arrays"] = {
                    "mean_weight": weights[:, k].float().numpy(),
                    "loss_trajectory": trajectory[k].numpy(),
                }
        return records


class _StackedOptimizer:
    """SGD, Adam and AdamW over stacked parameters, with a learning rate and weight decay for each member.

    The same updates as torch's optimisers, which know one rate for a whole tensor.
    """

    def __init__(self, parameters: dict[str, Tensor], members: Sequence[Member]) -> None:
        self.parameters = list(parameters.values())
        self.training = members[0].training
        dtype = self.parameters[0].dtype
        self.lr = torch.tensor([m.training.lr for m in members], dtype=dtype)
        self.decay = torch.tensor([m.training.weight_decay for m in members], dtype=dtype)
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients: list[Tensor], factor: float) -> None:
        self.steps += 1
        rate = self.lr * factor
        update = self._sgd if self.training.optimizer == "sgd" else self._adam
        for parameter, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            shape = (-1,) + (1,) * (parameter.ndim - 1)
            update(parameter, gradient, first, second, rate.view(shape), self.decay.view(shape))

    def _sgd(self, p: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: Tensor, decay: Tensor) -> None:
        del second
        g = g + decay * p
        if self.training.momentum:
            # torch starts the buffer with the first gradient itself, which is what zeros times momentum plus g give
            first.mul_(self.training.momentum).add_(g)
            g = g + self.training.momentum * first if self.training.nesterov else first
        p.sub_(rate * g)

    def _adam(self, p: Tensor, g: Tensor, first: Tensor, second: Tensor, rate: Tensor, decay: Tensor) -> None:
        if self.training.optimizer == "adamw":
            p.mul_(1 - rate * decay)
        else:
            g = g + decay * p
        first.lerp_(g, 0.1)
        second.mul_(0.999).addcmul_(g, g, value=0.001)
        scale = (second.sqrt() / (1 - 0.999**self.steps) ** 0.5).add_(1e-8)
        p.sub_(rate / (1 - 0.9**self.steps) * first / scale)


def _structure(objective: Objective) -> str:
    """An objective's class and everything about it that is not a number."""
    fields = dataclasses.fields(objective)  # pyright: ignore[reportArgumentType]
    fixed = {f.name: v for f in fields if not _is_number(v := getattr(objective, f.name))}
    return f"{type(objective).__name__}{sorted(fixed.items())!r}"


def _stack_objectives(objectives: Sequence[Objective], dtype: torch.dtype) -> tuple[Any, dict[str, Tensor]]:
    """One objective, and a tensor for each number in which the members differ."""
    first = objectives[0]
    numbers: dict[str, Tensor] = {}
    for field in dataclasses.fields(first):  # pyright: ignore[reportArgumentType]
        values = [getattr(o, field.name) for o in objectives]
        if _is_number(values[0]) and len(set(values)) > 1:
            numbers[field.name] = torch.tensor([float(v) for v in values], dtype=dtype)
    return first, numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, float)


def _stack(tasks: Sequence[Task], name: str) -> Tensor:
    """One tensor a member; members that share their data share its memory."""
    tensors = [getattr(task, name) for task in tasks]
    if all(t is tensors[0] for t in tensors):
        return tensors[0].expand(len(tasks), *tensors[0].shape)
    return torch.stack(tensors)


def _stack_scales(members: Sequence[Member], steps: int) -> Tensor | None:
    if all(m.scale is None for m in members):
        return None
    ones = np.ones(steps, np.float32)
    return torch.from_numpy(np.stack([ones if m.scale is None else m.scale for m in members]))
