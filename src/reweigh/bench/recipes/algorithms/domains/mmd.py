"""Maximum mean discrepancy of features."""

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

__all__ = ["MMD", "discrepancy"]

_BANDWIDTHS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


@dataclass(frozen=True, kw_only=True)
class MMD(DomainAlgorithm):
    r"""Features with the same distribution in every domain, as kernels see it.

    .. math:: R + \gamma\, \operatorname*{mean}_{e < f} \Big[ \overline{K_{ee}} + \overline{K_{ff}} -
              2\, \overline{K_{ef}} \Big], \qquad K(x, y) = \sum_{b} e^{-b\, \lVert x - y \rVert^2}

    with b from 0.001 to 1000 in powers of ten.

    Parameters
    ----------
    weight
        The :math:`\gamma`.

    Notes
    -----
    The biased estimate, diagonals included, as in DomainBed. References: Li, Pan, Wang and Kot, *Domain Generalization
    with Adversarial Feature Learning*, CVPR 2018; Gretton et al., JMLR 2012.
    """

    weight: float = 1.0

    law: ClassVar[Mapping[str, Law]] = {"weight": power_of_ten(-1, 1)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)

    def start(self, setup: Setup) -> Learner:
        """The learner."""

        def penalty(seen: ForwardPass) -> Tensor:
            apart = [discrepancy(a, b) for a, b in pairs(seen.batch.parts(seen.features))]
            return torch.stack(apart).mean() if apart else seen.features.new_zeros(())

        return Penalised(setup, penalty, lambda _: self.weight)


def discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two sets of features."""
    return _kernel(first, first).mean() + _kernel(second, second).mean() - 2 * _kernel(first, second).mean()


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    squares = first.square().sum(1)[:, None] + second.square().sum(1)[None]
    # Rounding may put the distance of equal features below zero.
    distances = (squares - 2 * first @ second.T).clamp(min=1e-30)
    return torch.stack([torch.exp(-b * distances) for b in _BANDWIDTHS]).sum(0)
