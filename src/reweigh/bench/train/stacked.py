"""Many trainings as one batched program.

Trainings that differ in a number (tau, learning rate, another hyper-parameter) or in their seed share every operation,
so their parameters are stacked and one program trains them all. On few cores this pays for MLPs and linear models,
whose steps are mostly overhead; it loses for convolutions, which run as one-thread processes instead.
"""

# torch writes its own optimisers with operations on lists of tensors, which have no public name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import copy
import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.correction import corrected, logits_per_output
from reweigh.bench.train.records import Record
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.tally import EpochTally, clip_levels
from reweigh.bench.train.task import Task
from reweigh.method import Built, Method, hyper_parameters
from reweigh.objectives._base import Objective, state_like
from reweigh.torch.losses import Loss

#: What compiling a step costs, with a margin, and what it saves a step: calls into torch, and passes over the
#: parameters. Seconds on one thread; `benchmarks/sweep.py` measures them.
_COMPILING, _SAVED, _SAVED_PER_PARAMETER = 40.0, 5e-4, 5e-9

#: Examples that are scored at a time.
_EVALUATED_AT_ONCE = 1024

#: Layers that treat every number alike, so that an axis of members in front changes nothing.
_ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One training of a group: what it may have of its own."""

    method: Method
    training: OptimizerPlan
    seeds: Seeds
    scale: np.ndarray[Any, Any] | None = None


M = TypeVar("M", bound=Peer)


@dataclass(frozen=True, kw_only=True)
class Member(Peer):
    """One supervised training of a group."""

    task: Task


def group_key(method: Method, training: OptimizerPlan) -> str | None:
    """What two trainings must share to run as one; None for methods that need a loop of their own.

    Numbers may differ between members; everything else is part of the key.
    """
    if any(slot in ("sampler", "step", "average") for slot, _ in method.parts()):
        return None
    if "n_groups" in getattr(method.objective, "needs", ()) or method.objective.takes:
        return None
    if training.nonfinite != "propagate":  # one member's broken step is not the others'
        return None
    if training.precision != "float32":
        return None
    if method.post is not None and method.post.needs_classifier:
        return None
    structure = [_structure(method.objective), "" if method.loss is None else repr(method.loss)]
    rest = dataclasses.replace(training, lr=1.0, weight_decay=0.0)
    return "|".join([*structure, repr(rest)])


def fit_many(
    members: Sequence[Member], build: Callable[[], nn.Module], *, compiled: bool | None = None
) -> Iterator[list[Record]]:
    """Train all members at once, yielding their records epoch by epoch; see `driver.fit` for what is in one.

    Parameters
    ----------
    members
        Trainings with equal `group_key`, equal shapes of data and equal batch size and epochs.
    build
        Makes one model; it is called once per member, with that member's initialisation stream.
    compiled
        Whether to compile the step; None does where there are enough steps for it to pay, and falls back to the eager
        program where no compiler is found.

    Yields
    ------
    list[Record]
        One record per member. The last ones carry the arrays `mean_weight` and `loss_trajectory` under `"arrays"`.
    """
    return StackedSupervised(members, build, compiled).fit()


def worth_compiling(steps: int, parameters: int) -> bool:
    """Whether a compiler pays for so many steps of so many parameters, those of all members.

    Decided by arithmetic and not by a clock: a compiled step differs from an eager one in the last bits, and a group
    that is done again after an interruption must end with the same ones.
    """
    return steps * (_SAVED + _SAVED_PER_PARAMETER * parameters) > _COMPILING


class StackedDriver(ABC, Generic[M]):
    """Many trainings that share every operation: the second driver, next to `driver.Driver`.

    Parameters
    ----------
    members
        The trainings, with the same optimiser, batch size and epochs.
    objectives, parameters
        One objective per member; the parameters of all, with an axis of members in front.
    every
        Steps of an epoch.
    units, noisy
        Training units with numbers of their own, whose newest losses are kept; which labels of each member's were
        corrupted.
    """

    def __init__(
        self,
        members: Sequence[M],
        objectives: Sequence[Objective],
        parameters: list[Tensor],
        every: int,
        *,
        units: int = 0,
        noisy: Tensor | None = None,
    ) -> None:
        self.members, self.parameters, self.every = members, parameters, every
        self.training, self.device = members[0].training, parameters[0].device
        self.step, self.steps = 0, every * self.training.epochs
        self.optimizer = StackedOptimizer(parameters, [m.training for m in members], self.steps)
        self.clip_levels = clip_levels(objectives)
        self.tally = EpochTally(len(members), units, devices.moved(noisy, self.device), device=self.device)
        self.scale = devices.moved(_stack_scales(members, self.steps, parameters[0].dtype), self.device)
        self.mean_weights: list[Tensor] = []
        self.trajectory: list[Tensor] = []

    @abstractmethod
    def take_epoch(self, epoch: int) -> Iterator[tuple[Tensor | None, Tensor, Tensor]]:
        """Take the steps of an epoch; yields the numbers of each step's units, if any, their losses and weights."""

    @abstractmethod
    def evaluate(self, *, last: bool) -> list[Record]:
        """Scores of each member; `last` says whether training is over."""

    @abstractmethod
    def facts(self, member: M) -> Record:
        """What a report wants to know of a member's data, for its first record."""

    def fit(self) -> Iterator[list[Record]]:
        """Train, yielding one record per member after each epoch."""
        for epoch in range(self.training.epochs):
            yield self.run_epoch(epoch)

    def run_epoch(self, epoch: int) -> list[Record]:
        """Train to the end of an epoch, and score the results."""
        for units, losses, weights in self.take_epoch(epoch):
            self.tally.update(units, losses, weights)
            self.step += 1
        statistics, mean_weights = self.tally.close(self.clip_levels)
        self.mean_weights.append(mean_weights)
        if self.tally.newest.shape[1]:
            self.trajectory.append(self.tally.newest.half().cpu().clone())
        last = epoch + 1 == self.training.epochs
        place: Record = {"epoch": epoch + 1, "step": self.step, "progress": (epoch + 1) / self.training.epochs}
        records = [
            {**place, **own, **(self.facts(member) if epoch == 0 else {}), **scores}
            for member, own, scores in zip(self.members, statistics, self.evaluate(last=last), strict=True)
        ]
        for k, record in enumerate(records if last else ()):
            arrays = record.setdefault("arrays", {})
            arrays["mean_weight"] = torch.cat(self.mean_weights)[:, k].float().numpy()
            if self.trajectory:
                arrays["loss_trajectory"] = torch.stack([losses[k] for losses in self.trajectory]).numpy()
        return records


def initial_models(members: Sequence[Peer], build: Callable[[], nn.Module]) -> list[nn.Module]:
    """A model for each member, from its initialisation stream."""
    models: list[nn.Module] = []
    for member in members:
        with member.seeds.ambient("init"):
            models.append(build())
    return models


class StackedSupervised(StackedDriver[Member]):
    """Supervised trainings on data of one shape; see `fit_many`."""

    def __init__(self, members: Sequence[Member], build: Callable[[], nn.Module], compiled: bool | None = None) -> None:
        keys = {group_key(m.method, m.training) for m in members}
        if len(keys) != 1 or None in keys:
            raise ValueError(f"members of a group must differ in numbers only, got {len(keys)} kinds of training.")
        tasks, training, device = [m.task for m in members], members[0].training, devices.current()
        self.model = _StackedModel(initial_models(members, build), tasks[0].x_train.ndim, device)
        self.x, self.y = (
            _MemberRows([t.x_train for t in tasks], device),
            _MemberRows([t.y_train for t in tasks], device),
        )
        n = len(tasks[0].x_train)
        self.batch_size = min(training.batch_size, n)
        every = -(-n // self.batch_size)
        built: list[Built] = [m.method.build(m.task.context(every * training.epochs)) for m in members]
        alike = all(b.loss == built[0].loss for b in built)
        self.loss = built[0].loss if alike else Loss.stacked([b.loss for b in built])
        self.posts = [b.post for b in built]
        objectives, noisy = [b.objective for b in built], _stack([t.noisy for t in tasks])
        super().__init__(members, objectives, self.model.parameters, every, units=n, noisy=noisy)
        reference = self.parameters[0]
        self.objective, self.numbers = _stack_objectives(objectives, reference)
        fresh = state_like(objectives[0].init(), reference)
        self.state: Any = {k: torch.stack([v] * len(members)) for k, v in fresh.items()} if fresh else ()
        self.samplers = {
            seed: built[0].sampler.start(n, batch_size=self.batch_size, seed=seed, num_replicas=1, rank=0)
            for seed in dict.fromkeys(m.seeds.integer("order") for m in members)
        }
        self.strict = compiled is not None
        if compiled is None:
            compiled = worth_compiling(self.steps, sum(p.numel() for p in self.parameters))
        self.compiled = compiled
        self._programs: dict[bool, Callable[..., Any]] = {}

    def take_epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One pass over the data."""
        for indices in self._order(epoch).to(self.device, non_blocking=True).split(self.batch_size, 1):
            x, y = self.x[indices], self.y[indices]
            measure = self.loss.sample_weight(y, self.step / self.steps)
            arguments = (
                self.parameters,
                self.optimizer.state,
                self.state,
                x,
                y,
                measure,
                None if self.scale is None else self.scale[:, self.step],
                *self.optimizer.rates(self.step),
            )
            # The short batch at the end of an epoch is not worth a program of its own.
            whole = indices.shape[1] == self.batch_size
            advance = self._program(arguments) if self.compiled and whole else self._advance
            losses, weights, self.state = advance(*arguments)
            yield indices, losses, weights

    @torch.no_grad()
    def _advance(
        self,
        parameters: list[Tensor],
        optimizer_state: list[list[Tensor]],
        state: Any,
        x: Tensor,
        y: Tensor,
        measure: Tensor | None,
        scale: Tensor | None,
        rate: Tensor,
        correction: Tensor,
    ) -> tuple[Tensor, Tensor, Any]:
        """One step of every member, in place; returns losses, weights and the objectives' new state."""
        leaves = [p.detach().requires_grad_() for p in parameters]
        with torch.enable_grad():
            outputs = self.model(leaves, x)
            # A unit's loss is its own, so members and units may share an axis.
            losses = self.loss(outputs.flatten(0, 1), y.flatten(0, 1)).unflatten(0, y.shape[:2])
        values = losses.detach()
        weights, state = vmap(self._weigh, in_dims=(0, 0, 0, None if measure is None else 0))(
            values, self.numbers, state, measure
        )
        # The gradient of an objective is the mean of weight times gradient: what flows back into the losses is known,
        # and no parameter enters the losses of two members.
        share = _share(weights, measure)
        gradients = torch.autograd.grad(losses, leaves, share if scale is None else share * scale[:, None])
        self.optimizer.update(parameters, list(gradients), optimizer_state, rate, correction)
        return values, weights, state

    def _weigh(
        self, losses: Tensor, numbers: dict[str, Tensor], state: Any, measure: Tensor | None
    ) -> tuple[Tensor, Any]:
        objective = dataclasses.replace(self.objective, **numbers) if numbers else self.objective
        weighed = objective.weigh(losses, state, measure=measure)
        return weighed.weights, weighed.state

    def _program(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """The compiled step; one with class weights, which may start late, is another than one without."""
        weighted = arguments[5] is not None
        if weighted not in self._programs:
            try:
                self._programs[weighted] = _compile(self._advance, arguments)
            except RuntimeError:  # no compiler, or one that does not know an operation
                if self.strict:
                    raise
                self._programs[weighted] = self._advance
        return self._programs[weighted]

    def _order(self, epoch: int) -> Tensor:
        """The examples of an epoch in the order in which each member meets them, `(members, n)`."""
        orders = {seed: sampler.order(epoch) for seed, sampler in self.samplers.items()}
        return torch.stack([orders[m.seeds.integer("order")] for m in self.members])

    def evaluate(self, *, last: bool) -> list[Record]:
        """Scores on validation and test examples; members with the same data are scored at once."""
        records: list[Record] = [{} for _ in self.members]
        if self.training.final_only and not last:
            return records
        for chosen, task in _by_identity([m.task for m in self.members]):
            outputs = {part: self.model.predict(chosen, getattr(task, f"x_{part}"), self.device) for part in task.parts}
            outputs = self._corrected(chosen, task, outputs)
            if self.training.final_only:
                arrays = {part: of_part.float().cpu().numpy() for part, of_part in outputs.items()}
                for i, k in enumerate(chosen):
                    records[k]["arrays"] = {f"{part}_outputs": of_part[i] for part, of_part in arrays.items()}
            for part, of_part in outputs.items():
                for k, own in zip(chosen, task.score_each(part, of_part), strict=True):
                    records[k] |= {f"{part}/{name}": value for name, value in own.items()}
        return records

    def _corrected(self, chosen: Sequence[int], task: Task, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each member's outputs after the correction of its method, if any has one."""
        if all(self.posts[k] is None for k in chosen):
            return outputs
        scale = logits_per_output(self.loss)
        own = [
            corrected(task, self.posts[k], {part: outputs[part][i] for part in outputs}, scale=scale)
            for i, k in enumerate(chosen)
        ]
        return {part: torch.stack([of_member[part].double().cpu() for of_member in own]) for part in outputs}

    def facts(self, member: Member) -> Record:
        """Classes and how many examples each has."""
        return member.task.facts()


class _StackedModel:
    """Models of one shape as one, their parameters with an axis of members in front.

    Parameters
    ----------
    models
        The members, of which only parameters and buffers are kept.
    axes
        Axes of a batch of one member's inputs.
    device
        Where they are trained.
    """

    def __init__(self, models: Sequence[nn.Module], axes: int, device: torch.device) -> None:
        self.skeleton = copy.deepcopy(models[0]).to("meta")
        parameters, buffers = stack_module_state(list(models))
        self.buffers = devices.moved(buffers, device)
        self.names = list(parameters)
        self.parameters = [_laid_out(p.detach().to(device)) for p in parameters.values()]
        self.layers = _known_layers(self.skeleton, axes)

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Outputs `(members, batch, ...)` of inputs `(members, batch, ...)`."""
        named = dict(zip(self.names, parameters, strict=True))
        if self.layers is None:
            return vmap(self._one, randomness="different")(named, self.buffers, x)
        # The same as above with a tenth of the calls into torch.
        for name, layer in self.layers:
            if isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            elif isinstance(layer, nn.Linear):
                x = _linear(x, named[f"{name}.weight"], named.get(f"{name}.bias"))
            else:
                x = layer(x)
        return x

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.skeleton, (parameters, buffers), (x,))

    @torch.no_grad()
    def predict(self, chosen: Sequence[int], x: Tensor, device: torch.device) -> Tensor:
        """Outputs of some members on the same inputs, a few at a time; in the processor's memory."""
        everyone = len(chosen) == len(self.parameters[0])
        own = self.parameters if everyone else [p[chosen] for p in self.parameters]
        buffers = self.buffers
        if not everyone:
            self.buffers = {name: b[chosen] for name, b in buffers.items()}
        self.skeleton.eval()
        parts = (part.to(device, non_blocking=True) for part in x.split(_EVALUATED_AT_ONCE))
        outputs = [self(own, part.expand(len(chosen), *part.shape)) for part in parts]
        self.skeleton.train()
        self.buffers = buffers
        return torch.cat(outputs, 1).cpu()


def _known_layers(model: nn.Module, axes: int) -> list[tuple[str, nn.Module]] | None:
    """The layers of a plain chain of linear and elementwise ones, which needs no `vmap`; None for other models."""
    if not isinstance(model, nn.Sequential):
        return None
    layers = list(model.named_children())
    for _, layer in layers:
        if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
            axes = 2
        elif not (type(layer) is nn.Linear and axes == 2) and type(layer) not in _ELEMENTWISE:
            return None
    return layers


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def _laid_out(p: Tensor) -> Tensor:
    """Matrices in memory as their gradients come out of a batched product, so that an update runs straight through."""
    return p.transpose(1, 2).contiguous().transpose(1, 2) if p.ndim == 3 else p


def _share(weights: Tensor, measure: Tensor | None) -> Tensor:
    """The weight of each unit in the mean over its member's batch."""
    if measure is None:
        return weights / weights.shape[1]
    amount = measure.sum(1, keepdim=True).clamp_min(torch.finfo(measure.dtype).tiny)
    return weights * measure / amount


def _compile(step: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """A step as one compiled program, warmed up; the arguments are left as they are.

    Objectives build and check values, which the compiler would have to give up on. A trace of one step has only what
    was computed, batched and differentiated, and is the same for every step.
    """

    def copied() -> tuple[Any, ...]:
        return pytree.tree_map_only(Tensor, torch.clone, arguments)

    def traced(own: tuple[Any, ...]) -> Any:
        return step(*own)

    program = torch.compile(make_fx(traced)(copied()), fullgraph=True, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about itself
        with torch.no_grad():
            program(copied())

    def run(*own: Any) -> Any:
        with torch.no_grad():
            return program(own)

    return run


class StackedOptimizer:
    """SGD, Adam and AdamW over stacked parameters, with a learning rate and weight decay for each member.

    The same updates as torch's optimisers, which know one rate for a whole tensor.
    """

    def __init__(self, parameters: Sequence[Tensor], trainings: Sequence[OptimizerPlan], steps: int) -> None:
        self.training = trainings[0]
        dtype, device = parameters[0].dtype, parameters[0].device
        buffers = 2 if self.training.optimizer != "sgd" else int(self.training.momentum != 0)
        self.state = [[torch.zeros_like(p) for p in parameters] for _ in range(buffers)]
        decay = torch.tensor([training.weight_decay for training in trainings], dtype=dtype)
        self.decay = decay.to(device) if bool(decay.any()) else None
        rate = torch.tensor([training.lr for training in trainings], dtype=torch.float64)
        factor = torch.tensor([self.training.rate_factor(i, steps) for i in range(steps)], dtype=torch.float64)
        done = torch.arange(1, steps + 1, dtype=torch.float64)
        self._rates = (factor[:, None] * rate).to(device, dtype)
        self._corrections = torch.stack([1 / (1 - 0.9**done), (1 - 0.999**done).rsqrt()], 1).to(device, dtype)

    def rates(self, step: int) -> tuple[Tensor, Tensor]:
        """Every member's learning rate at a step, and Adam's two factors for averages that started at zero."""
        return self._rates[step], self._corrections[step]

    def update(
        self, p: list[Tensor], g: list[Tensor], state: list[list[Tensor]], rate: Tensor, correction: Tensor
    ) -> None:
        """Move parameters and state in place."""
        if self.decay is not None:
            if self.training.optimizer == "adamw":
                torch._foreach_mul_(p, _beside(1 - rate * self.decay, p))
            else:
                g = _plus(g, torch._foreach_mul(p, _beside(self.decay, p)))
        if self.training.optimizer == "sgd":
            self._sgd(p, g, state, rate)
        else:
            self._adam(p, g, state, rate, correction)

    def _sgd(self, p: list[Tensor], g: list[Tensor], state: list[list[Tensor]], rate: Tensor) -> None:
        if state:
            (momenta,) = state
            # torch starts the buffer with the first gradient itself, which is what zeros times momentum plus g give
            torch._foreach_mul_(momenta, self.training.momentum)
            torch._foreach_add_(momenta, g)
            g = _plus(g, momenta, self.training.momentum) if self.training.nesterov else momenta
        torch._foreach_add_(p, torch._foreach_mul(g, _beside(-rate, p)))

    def _adam(
        self, p: list[Tensor], g: list[Tensor], state: list[list[Tensor]], rate: Tensor, correction: Tensor
    ) -> None:
        first, second = state
        torch._foreach_lerp_(first, g, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, g, g, 0.001)
        deviation = torch._foreach_sqrt(second)
        torch._foreach_mul_(deviation, correction[1])
        torch._foreach_add_(deviation, 1e-8)
        torch._foreach_addcdiv_(p, torch._foreach_mul(first, _beside(-rate * correction[0], p)), deviation)


def _plus(a: list[Tensor], b: Sequence[Tensor], factor: float = 1.0) -> list[Tensor]:
    return list(torch._foreach_add(a, list(b), alpha=factor))


def _beside(values: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """One number per member, in a shape that fits each parameter."""
    shaped = {axes: values.view((-1,) + (1,) * (axes - 1)) for axes in {p.ndim for p in parameters}}
    return [shaped[p.ndim] for p in parameters]


class _MemberRows:
    """Rows of data of each member; members with the same data share its memory."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        distinct = _by_identity(tensors)
        parts = [tensor for _, tensor in distinct]
        self.data = devices.DeviceRows(parts[0] if len(parts) == 1 else torch.cat(parts), device)
        offsets = torch.zeros(len(tensors), 1, dtype=torch.int64)
        for i, (chosen, tensor) in enumerate(distinct):
            offsets[list(chosen)] = i * len(tensor)
        self.offsets = offsets.to(device)
        self.shared = len(parts) == 1

    def __getitem__(self, indices: Tensor) -> Tensor:
        """The rows of indices `(members, batch)`."""
        rows = indices if self.shared else indices + self.offsets
        return self.data[rows.flatten()].unflatten(0, indices.shape)


def _structure(objective: Objective) -> str:
    """An objective's class and everything about it that is not a number."""
    fixed = {name: value for name, value in hyper_parameters(objective).items() if not _is_number(value)}
    return f"{type(objective).__name__}{sorted(fixed.items())!r}"


def _stack_objectives(objectives: Sequence[Objective], like: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """One objective, and a tensor for each number in which the members differ."""
    first, dtype, device = objectives[0], like.dtype, like.device
    numbers: dict[str, Tensor] = {}
    for name in hyper_parameters(first):
        values = [getattr(o, name) for o in objectives]
        if _is_number(values[0]) and len(set(values)) > 1:
            numbers[name] = torch.tensor([float(v) for v in values], dtype=dtype, device=device)
    return first, numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, float)


def _by_identity(values: Sequence[Any]) -> list[tuple[list[int], Any]]:
    """The distinct ones among objects, each with the places where it stands."""
    places: dict[int, list[int]] = {}
    for k, value in enumerate(values):
        places.setdefault(id(value), []).append(k)
    return [(ks, values[ks[0]]) for ks in places.values()]


def _stack(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """One tensor per member, or None if one has none."""
    present = [t for t in tensors if t is not None]
    return torch.stack(present) if len(present) == len(tensors) else None


def _stack_scales(members: Sequence[Peer], steps: int, dtype: torch.dtype) -> Tensor | None:
    if all(m.scale is None for m in members):
        return None
    ones = np.ones(steps, np.float32)
    return torch.from_numpy(np.stack([ones if m.scale is None else m.scale for m in members])).to(dtype)
