"""Reptile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.meta._adapt import Parameters, adapt, detached
from reweigh.bench.recipes.algorithms.meta._base import Episodes, MetaAlgorithm

__all__ = ["Reptile"]


@dataclass(frozen=True, kw_only=True)
class Reptile(MetaAlgorithm):
    r"""A step towards where plain training on each task leads.

    .. math:: g = \frac1K \sum_k (\theta - \phi_k), \qquad \phi_k = \text{some steps of descent on task } k

    There is no task loss whose gradient this is, so nothing can be weighed: it runs with the plain mean only.

    Parameters
    ----------
    inner_lr, inner_steps
        Step size, and steps on a task: while learning on small batches of its queries, when asked on its support set.
    inner_batch
        Queries per step; batches go through the classes in turn.

    Notes
    -----
    References: Nichol, Achiam and Schulman, *On First-Order Meta-Learning Algorithms*, 2018. Learning from the queries
    while meta-training, which have more examples per class than the support set, is the original's "training shots".
    The code that the paper's figures come from draws the queries of each step at random, and leaves the last inner step
    out of the way.
    """

    inner_lr: float = 0.01
    inner_steps: int = 5
    inner_batch: int = 10

    def __post_init__(self) -> None:
        validate.positive("inner_lr", self.inner_lr)
        validate.whole("inner_steps", self.inner_steps, 1)
        validate.whole("inner_batch", self.inner_batch, 1)

    @property
    def weighted(self) -> bool:
        """False: a step towards other parameters has no loss to weigh."""
        return False

    def answer(self, model: nn.Module, support_x: Tensor, support_y: Tensor, query_x: Tensor, ways: int) -> Tensor:
        """The outputs of the adapted model."""
        adapted = adapt(model, detached(model), self.loss, [(support_x, support_y)] * self.inner_steps, self.inner_lr)
        return torch.func.functional_call(model, adapted, (query_x,))

    @torch.no_grad()
    def descend(self, model: nn.Module, episodes: Episodes, ways: int, objective: Callable[[Tensor], Tensor]) -> Tensor:
        """Leave the mean way from the adapted parameters back in `grad`; returns the losses at the start."""
        start = detached(model)
        # Queries lie class after class: by turns through the classes every batch has as many of each as it can.
        place = episodes.query_y.device
        order = torch.arange(episodes.query_y.shape[1], device=place).reshape(ways, -1).T.flatten()
        parts = [torch.arange(k, k + self.inner_batch, device=place) % len(order) for k in self._starts()]

        def one(x: Tensor, y: Tensor) -> Parameters:
            return adapt(model, start, self.loss, [(x[order[part]], y[order[part]]) for part in parts], self.inner_lr)

        adapted: Parameters = self.each(one, episodes.query_x, episodes.query_y)
        for name, parameter in model.named_parameters():
            parameter.grad = (start[name] - adapted[name]).mean(0)
        return self.losses(self.outputs(model, episodes, ways), episodes.query_y)

    def _starts(self) -> list[int]:
        return [step * self.inner_batch for step in range(self.inner_steps)]
