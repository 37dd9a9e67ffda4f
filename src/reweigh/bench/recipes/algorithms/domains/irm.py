"""Invariant risk minimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import (
    DomainAlgorithm,
    ForwardPass,
    Learner,
    Penalised,
    Setup,
    annealed,
)
from reweigh.bench.recipes.algorithms.domains._law import Law, power_of_ten

__all__ = ["IRM", "gradient_penalty"]


@dataclass(frozen=True, kw_only=True)
class IRM(DomainAlgorithm):
    r"""Features on which one classifier is optimal in every domain.

    .. math:: \frac1{|E|} \sum_e \Big[ R_e + \lambda\, \big(\partial_s R_e^a(s)\big)\big(\partial_s R_e^b(s)\big)
              \Big|_{s=1} \Big]

    The scalar s multiplies the outputs; a and b are the even and the odd examples of the domain, so that the product is
    an unbiased estimate of the squared derivative.

    Parameters
    ----------
    weight
        The :math:`\lambda` of the penalty; 1 before `anneal`.
    anneal
        Share of training after which the penalty has its full weight and Adam starts over.

    Notes
    -----
    DomainBed counts the annealing in steps, 500 of 5000 by default; here it is a share, so that it means the same in a
    short training. References: Arjovsky, Bottou, Gulrajani and Lopez-Paz, *Invariant Risk Minimization*, 2019.
    """

    weight: float = 100.0
    anneal: float = 0.1

    law: ClassVar[Mapping[str, Law]] = {"weight": power_of_ten(-1, 5), "anneal": power_of_ten(-3.7, 0.3)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.non_negative("anneal", self.anneal)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        restart = round(self.anneal * setup.steps)

        def penalty(seen: ForwardPass) -> Tensor:
            parts = zip(seen.batch.parts(seen.outputs), seen.batch.parts(seen.batch.y), strict=True)
            return torch.stack([gradient_penalty(outputs, y) for outputs, y in parts]).mean()

        return Penalised(setup, penalty, annealed(self.weight, 1.0, restart), restart)


def gradient_penalty(outputs: Tensor, targets: Tensor) -> Tensor:
    """The product of the derivatives of two halves' cross entropies by a factor on the outputs, at one."""
    factor = torch.ones((), dtype=outputs.dtype, device=outputs.device, requires_grad=True)
    even = F.cross_entropy(outputs[::2] * factor, targets[::2])
    odd = F.cross_entropy(outputs[1::2] * factor, targets[1::2])
    (first,) = torch.autograd.grad(even, factor, create_graph=True)
    (second,) = torch.autograd.grad(odd, factor, create_graph=True)
    return first * second
