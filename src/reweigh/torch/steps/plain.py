"""The plain step: one gradient, one update."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from reweigh.torch.steps._base import Closures, Step, Stepper, descend, in_turn, update

__all__ = ["Plain"]


@dataclass(frozen=True, kw_only=True)
class Plain(Step):
    """The optimizer's own step on the gradient of the loss.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    >>> stepper = Plain().start(model)
    >>> stepper.step(optimizer, lambda: model.weight.square().sum())
    tensor(1.)
    >>> model.weight.item()
    0.5
    """

    def start(self, model: nn.Module) -> LivePlain:
        """The live step."""
        return LivePlain()


class LivePlain(Stepper):
    """The live form of :class:`Plain`."""

    def step(self, optimizer: Optimizer, closure: Closures, *, scaler: GradScaler | None = None) -> Tensor:
        """Gradient, update."""
        optimizer.zero_grad(set_to_none=True)
        loss = descend(in_turn(closure), scaler)
        update(optimizer, scaler)
        return loss
