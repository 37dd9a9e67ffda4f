"""Prototypical networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh.bench.recipes.algorithms.meta._base import Algorithm

__all__ = ["ProtoNet"]


@dataclass(frozen=True, kw_only=True)
class ProtoNet(Algorithm):
    r"""The nearest class mean in a learnt space.

    .. math:: z_c = -\lVert f(x) - \mu_c \rVert^2, \qquad \mu_c = \text{mean of } f \text{ over the support of class } c

    Support and queries of a task go through the network as one batch, so that its normalisation is that of the task and
    one task's loss does not depend on the others beside it.

    Notes
    -----
    References: Snell, Swersky and Zemel, *Prototypical Networks for Few-shot Learning*, NeurIPS 2017.
    """

    def answer(self, model: nn.Module, support_x: Tensor, support_y: Tensor, query_x: Tensor, ways: int) -> Tensor:
        """Minus the squared distances to the class means."""
        support, query = embedded(model, support_x, query_x)
        member = F.one_hot(support_y, ways).to(support.dtype)
        means = (member.T @ support) / member.sum(0)[:, None]
        return -(query[:, None] - means).square().sum(-1)


def embedded(model: Any, support_x: Tensor, query_x: Tensor) -> tuple[Tensor, Tensor]:
    """Features of support and queries, from one batch of both."""
    if not hasattr(model, "embed"):
        raise TypeError(f"{type(model).__name__} has no `embed`. Use a model that tells its features, such as conv4.")
    features = model.embed(torch.cat([support_x, query_x]))
    return features[: len(support_x)], features[len(support_x) :]
