"""The inner loop: some steps of plain gradient descent on one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from reweigh.bench.recipes.algorithms.meta._base import ExampleLoss

Parameters = dict[str, Tensor]


def adapt(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    loss: ExampleLoss,
    batches: Sequence[tuple[Tensor, Tensor]],
    lr: float,
) -> Parameters:
    """The parameters after one step of unweighted gradient descent on each batch; everything is differentiable."""
    adapted = dict(parameters)
    for x, y in batches:

        def mean_loss(at: Parameters, x: Tensor = x, y: Tensor = y) -> Tensor:
            return loss(torch.func.functional_call(model, at, (x,)), y).mean()

        gradient: Parameters = torch.func.grad(mean_loss)(adapted)
        adapted = {name: value - lr * gradient[name] for name, value in adapted.items()}
    return adapted


def detached(model: nn.Module) -> Parameters:
    """The model's parameters as constants."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
