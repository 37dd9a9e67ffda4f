"""The contract of every step, `(optimizer, closure) -> update`, and what steps share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

__all__ = ["Closure", "Step", "Stepper", "TrainingRows"]


class Parts(Protocol):
    """What comes in pieces, such as a tensor."""

    def split(self, split_size: int, /) -> Iterable[Tensor]:
        """All of it in order, so many rows at a time."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingRows:
    """All training rows, for steps that look at them between two stages.

    Parameters
    ----------
    inputs
        A tensor, or anything else with a tensor's `split`.
    targets
        The class of each row, shape (n,).
    groups
        The group of each row, shape (n,), for steps that use it.
    """

    inputs: Parts
    targets: Tensor
    groups: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Closure:
    """One batch and all that turns it into a number to descend; calling it gives that number, with its graph.

    Parameters
    ----------
    model
        What is trained; called as `model(inputs)`.
    batch
        Inputs and targets.
    losses
        `(output, target) -> losses`, one per unit.
    objective
        `losses -> loss`; the plain mean unless given. In gradient accumulation it carries the denominator of the
        whole step, so that the closures' gradients add up.
    meta_batch
        Inputs and targets from the clean meta set, for steps that learn weights from one.
    training_rows
        All training rows, for steps that look at them between two stages.
    index
        Which training row each unit of the batch is, for steps that remember rows.
    context
        Makes the context that forward passes run in, such as `lambda: torch.autocast("cuda", torch.bfloat16)`.

    Examples
    --------
    >>> import torch
    >>> from reweigh.torch.losses import MSE
    >>> model = torch.nn.Linear(1, 1)
    >>> closure = Closure(model=model, batch=(torch.ones(4, 1), torch.ones(4, 1)), losses=MSE())
    >>> closure.unit_losses().shape, closure().shape
    (torch.Size([4]), torch.Size([]))
    """

    model: nn.Module
    batch: tuple[Tensor, Tensor]
    losses: Callable[[Tensor, Tensor], Tensor]
    objective: Callable[[Tensor], Tensor] = torch.mean
    meta_batch: tuple[Tensor, Tensor] | None = None
    training_rows: TrainingRows | None = None
    index: Tensor | None = None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def unit_losses(self) -> Tensor:
        """The loss of each unit of the batch."""
        return self.losses_of(self.model, self.batch)

    def losses_of(self, model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
        """The loss of each unit of another batch, or under another model."""
        inputs, target = batch
        with self.context():
            return self.losses(model(inputs), target)

    def __call__(self) -> Tensor:
        """The loss to descend."""
        return self.objective(self.unit_losses())


Closures = Callable[[], Tensor] | Sequence[Callable[[], Tensor]]


class Step(ABC):
    """How parameters move: a frozen value; `start(model)` gives the live one."""

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost of one step, in passes through the model.
    cost: ClassVar[str] = "1 forward+backward"
    #: What the training context must give: `"meta_loader"` or nothing.
    needs: ClassVar[tuple[str, ...]] = ()
    #: Whether a plain function that returns the loss is not enough, and the closure must be a :class:`Closure`.
    needs_losses: ClassVar[bool] = False
    #: Whether the step makes its own loss of the unit losses, and the closure's objective is not asked.
    own_objective: ClassVar[bool] = False
    #: Whether the live step's `copies` say which training rows to draw, which leaves no room for a sampler.
    draws: ClassVar[bool] = False
    #: Whether the last layer is replaced after the last step, so that there is no average of parameters to keep.
    replaces: ClassVar[bool] = False

    @abstractmethod
    def start(self, model: nn.Module) -> Stepper:
        """The live step, before the first update."""


class Stepper(ABC):
    """A live step: one call is one update of the optimizer's parameters."""

    #: How often each training row is in the set to draw from, shape (n,), whole numbers; None for once each. A loop
    #: reads it before each batch.
    copies: Tensor | None = None

    @abstractmethod
    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Make one update.

        Parameters
        ----------
        optimizer
            Makes the update from the gradients put in place; they are cleared here first. To clip gradients
            register it with `optimizer.register_step_pre_hook`, which runs after unscaling.
        closure
            Gives the loss to descend, or a sequence of micro-batches that do: their gradients add up, so each
            must carry the denominator of the whole step.
        scaler
            The gradient scaler of float16 training; its `step` and `update` are called here.

        Returns
        -------
        Tensor
            The loss before the update, summed over the closures, without its graph.
        """

    def state_dict(self) -> dict[str, Any]:
        """What the step remembers between updates; empty for most."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if state:
            raise ValueError(
                f"{type(self).__name__} remembers nothing, got a state with {sorted(state)}. "
                "It was saved by another step; start with the same settings."
            )


def in_turn(closure: Closures) -> tuple[Callable[[], Tensor], ...]:
    """The closures of one step."""
    closures = (closure,) if callable(closure) else tuple(closure)
    if not closures:
        raise ValueError("`closure` must be a closure or a sequence of at least one, got an empty sequence.")
    return closures


def with_losses(
    closure: Closures, who: str, why: str, *, meta: bool = False, rows: bool = False, index: bool = False
) -> tuple[Closure, ...]:
    """The closures of one step, once it is sure that they carry what the step needs."""
    closures: list[Closure] = []
    for one in in_turn(closure):
        if not isinstance(one, Closure):
            raise TypeError(
                f"`closure` must be a reweigh.torch.steps.Closure for {who}, got {type(one).__name__}: {why}. "
                "A plain function gives only the reduced loss."
            )
        if meta and one.meta_batch is None:
            raise ValueError(
                f"`meta_batch` must be given in the closure for {who}, got None: {why}. "
                "Draw it from a small clean, balanced set kept out of training."
            )
        if rows and one.training_rows is None:
            raise ValueError(
                f"`training_rows` must be given in the closure for {who}, got None: {why}. "
                "Pass TrainingRows(inputs=..., targets=...), and draw batches by the live step's `copies`."
            )
        if index and one.index is None:
            raise ValueError(
                f"`index` must be given in the closure for {who}, got None: {why}. "
                "Pass Closure(..., index=indices), the number of each row of the batch in the training data."
            )
        closures.append(one)
    return tuple(closures)


def row_shares(batches: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """Each micro-batch's share of the rows of the step, by which means over micro-batches add up to one over all."""
    counts = [len(targets) for _, targets in batches]
    return [count / max(sum(counts), 1) for count in counts]


def refuse_scaler(scaler: GradScaler | None, who: str) -> None:
    """Steps that differentiate or remember gradients have no use for scaled ones."""
    if scaler is not None and scaler.is_enabled():
        raise ValueError(
            f"`scaler` must be None for {who}, got an enabled GradScaler: the step works with gradients at their "
            "true size. Train in bfloat16 or float32, which need no scaling."
        )


def descend(closures: Sequence[Callable[[], Tensor]], scaler: GradScaler | None) -> Tensor:
    """Backward through every closure in turn; the sum of their losses, without its graph."""
    total: Tensor | None = None
    for closure in closures:
        loss = closure()
        if loss.ndim != 0:
            raise ValueError(
                f"`closure` must return one number, got shape {tuple(loss.shape)}. Apply the objective to the losses."
            )
        backward(loss if scaler is None else scaler.scale(loss))
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


def backward(loss: Tensor) -> None:
    """Add the gradients of a loss to those in place."""
    torch.autograd.backward(loss)


def update(optimizer: Optimizer, scaler: GradScaler | None) -> None:
    """The optimizer's own step on the gradients in place, skipped by the scaler if they overflowed."""
    if scaler is None:
        optimizer.step()
        return
    scaler.unscale_(optimizer)  # so that a pre-hook that clips sees true gradients
    scaler.step(optimizer)
    scaler.update()


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters the optimizer moves."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a data-parallel wrapper."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def modules_of(closures: Sequence[Callable[[], Tensor]]) -> list[nn.Module]:
    """All modules that closures run through: models, and losses or objectives that are modules."""
    parts = [part for c in closures if isinstance(c, Closure) for part in (c.model, c.losses, c.objective)]
    return [part for part in parts if isinstance(part, nn.Module)]


@contextmanager
def kept_buffers(modules: Sequence[nn.Module]) -> Generator[None]:
    """Inside, buffers may change (running statistics, an objective's state); afterwards they are as before."""
    buffers = {id(buffer): buffer for module in modules for buffer in module.buffers()}.values()
    saved = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.copy_(value)
