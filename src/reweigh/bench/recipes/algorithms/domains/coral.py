"""Equal means and covariances of features."""

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
    pairs,
)
from reweigh.bench.recipes.algorithms.domains._law import Law, power_of_ten

__all__ = ["CORAL", "moments_apart"]


@dataclass(frozen=True, kw_only=True)
class CORAL(DomainAlgorithm):
    r"""Features with the same first two moments in every domain.

    .. math:: R + \gamma\, \operatorname*{mean}_{e < f} \Big[ \overline{(\mu_e - \mu_f)^2}
              + \overline{(C_e - C_f)^2} \Big]

    Bars are means over entries.

    Parameters
    ----------
    weight
        The :math:`\gamma`.

    Notes
    -----
    The mean over entries of both parts, as in DomainBed. References: Sun and Saenko, *Deep CORAL*, ECCV 2016.
    """

    weight: float = 1.0

    law: ClassVar[Mapping[str, Law]] = {"weight": power_of_ten(-1, 1)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)

    def start(self, setup: Setup) -> Learner:
        """The learner."""

        def penalty(seen: ForwardPass) -> Tensor:
            apart = [moments_apart(a, b) for a, b in pairs(seen.batch.parts(seen.features))]
            return torch.stack(apart).mean() if apart else seen.features.new_zeros(())

        return Penalised(setup, penalty, lambda _: self.weight)


def moments_apart(first: Tensor, second: Tensor) -> Tensor:
    """The mean squared difference of means, and that of covariances, of two sets of features."""
    means = first.mean(0), second.mean(0)
    spreads = [
        (part - mean).T @ (part - mean) / (len(part) - 1) for part, mean in zip((first, second), means, strict=True)
    ]
    return (means[0] - means[1]).square().mean() + (spreads[0] - spreads[1]).square().mean()
