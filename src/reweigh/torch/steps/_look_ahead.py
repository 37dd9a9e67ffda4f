"""A virtual step of gradient descent that can be differentiated, for steps that learn weights from a meta set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from reweigh._array import widen
from reweigh.torch.steps._base import Closure, unwrapped

Virtual = dict[str, Tensor]  # parameters by name


def rates_of(optimizer: Optimizer, model: nn.Module) -> dict[str, float | Tensor]:
    """The learning rate of each parameter that the optimizer moves, by its name in the model."""
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: rates[id(p)] for name, p in unwrapped(model).named_parameters() if p.requires_grad and id(p) in rates}


def losses_under(closure: Closure, virtual: Virtual, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of each unit with other parameters in the model, whose buffers stay as they are."""
    model = unwrapped(closure.model)
    # Forward passes in training mode write running statistics: let them write into copies.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def called(inputs: Tensor) -> Tensor:
        return functional_call(model, (virtual, buffers), (inputs,))

    return widen(closure.losses_of(called, batch).flatten())


def meta_loss(closure: Closure, rates: dict[str, float | Tensor], weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean loss on the meta batch after one virtual step on the sum of `weigh(losses) * losses`.

    The result depends on whatever the weights depend on; the losses `weigh` is given carry no gradient.
    """
    model = unwrapped(closure.model)
    present = {name: p for name, p in model.named_parameters() if name in rates}
    losses = losses_under(closure, dict(present), closure.batch)
    loss = torch.dot(weigh(losses.detach()), losses)
    gradients = torch.autograd.grad(loss, list(present.values()), create_graph=True, materialize_grads=True)
    virtual: Virtual = {
        name: parameter - rates[name] * gradient
        for (name, parameter), gradient in zip(present.items(), gradients, strict=True)
    }
    assert closure.meta_batch is not None
    return losses_under(closure, virtual, closure.meta_batch).mean()
