"""What every algorithm of this folder is: tasks in, one loss per task out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh.bench.train.programs.episodes import Episodes

#: From the outputs and targets of some examples to one loss each.
ExampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The negative log-probability of the true class of each example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each example, without a factor 1/2."""
    return (outputs - targets).square().flatten(1).mean(1)


@dataclass(frozen=True, kw_only=True)
class MetaAlgorithm(ABC):
    """How a model that has seen a task's support set answers its queries.

    Parameters
    ----------
    loss
        From outputs and targets to one loss per example.
    batched
        Whether all tasks run as one program (`torch.func.vmap`) or one after another. The numbers are the same; which
        is faster depends on the model and is measured by `benchmarks/meta.py`.
    """

    loss: ExampleLoss = cross_entropy
    batched: bool = True

    @property
    def weighted(self) -> bool:
        """Whether there is a loss for each task that an objective can weigh."""
        return True

    @abstractmethod
    def answer(self, model: nn.Module, support_x: Tensor, support_y: Tensor, query_x: Tensor, ways: int) -> Tensor:
        """The outputs for the queries of one task; gradients with respect to the model's parameters go through."""

    def outputs(self, model: nn.Module, episodes: Episodes, ways: int) -> Tensor:
        """The outputs for all queries of all tasks, `(tasks, queries, outputs)`."""

        def one(support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
            return self.answer(model, support_x, support_y, query_x, ways)

        return self.each(one, episodes.support_x, episodes.support_y, episodes.query_x)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean query loss of each task, `(tasks,)`: what an objective weighs."""
        each = self.loss(outputs.flatten(0, 1), targets.flatten(0, 1))
        return each.reshape(len(outputs), -1).mean(1)

    def descend(self, model: nn.Module, episodes: Episodes, ways: int, objective: Callable[[Tensor], Tensor]) -> Tensor:
        """Leave the meta-gradient in the parameters' `grad`; returns the plain task losses, without gradient."""
        losses = self.losses(self.outputs(model, episodes, ways), episodes.query_y)
        objective(losses).backward()
        return losses.detach()

    def each(self, function: Callable[..., Any], *arguments: Tensor) -> Any:
        """A function of one task, for all of them."""
        if self.batched:
            return torch.func.vmap(function)(*arguments)
        results = [function(*parts) for parts in zip(*arguments, strict=True)]
        if isinstance(results[0], dict):
            return {name: torch.stack([one[name] for one in results]) for name in results[0]}
        return torch.stack(results)
