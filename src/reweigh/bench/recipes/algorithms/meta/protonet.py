"""Prototypical networks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from reweigh.bench.recipes.algorithms.meta._metric import MetricAlgorithm

__all__ = ["ProtoNet"]


@dataclass(frozen=True, kw_only=True)
class ProtoNet(MetricAlgorithm):
    r"""The nearest class mean in a learnt space.

    .. math:: z_c = -\lVert f(x) - \mu_c \rVert^2, \qquad \mu_c = \text{mean of } f \text{ over the support of class } c

    Notes
    -----
    References: Snell, Swersky and Zemel, *Prototypical Networks for Few-shot Learning*, NeurIPS 2017.
    """

    def compare(self, support: Tensor, support_y: Tensor, query: Tensor, ways: int) -> Tensor:
        """Minus the squared distances to the class means."""
        member = F.one_hot(support_y, ways).to(support.dtype)
        means = (member.T @ support) / member.sum(0)[:, None]
        return -(query[:, None] - means).square().sum(-1)
