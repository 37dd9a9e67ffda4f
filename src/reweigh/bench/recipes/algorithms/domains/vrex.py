"""Risk extrapolation by the variance of risks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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

__all__ = ["VREx", "variance_of_risks"]


@dataclass(frozen=True, kw_only=True)
class VREx(DomainAlgorithm):
    r"""Equal risks in all domains.

    .. math:: \bar R + \lambda\, \frac1{|E|} \sum_e (R_e - \bar R)^2

    Parameters
    ----------
    weight
        The :math:`\lambda` of the variance; 1 before `anneal`.
    anneal
        Share of training after which it has its full weight and Adam starts over (DomainBed: 500 of 5000 steps).

    Notes
    -----
    The variance is that of the plain risks, whatever the method re-weights. References: Krueger et al.,
    *Out-of-Distribution Generalization via Risk Extrapolation*, ICML 2021.
    """

    weight: float = 10.0
    anneal: float = 0.1

    law: ClassVar[Mapping[str, Law]] = {"weight": power_of_ten(-1, 5), "anneal": power_of_ten(-3.7, 0.3)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.non_negative("anneal", self.anneal)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        restart = round(self.anneal * setup.steps)

        def penalty(seen: ForwardPass) -> Tensor:
            return variance_of_risks(torch.stack([losses.mean() for losses in seen.batch.parts(seen.losses)]))

        return Penalised(setup, penalty, annealed(self.weight, 1.0, restart), restart)


def variance_of_risks(risks: Tensor) -> Tensor:
    """The mean squared deviation of the domains' risks from their mean."""
    return (risks - risks.mean()).square().mean()
