"""Group DRO with the training domains as groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, power_of_ten

__all__ = ["DomainGroupDRO"]


@dataclass(frozen=True, kw_only=True)
class DomainGroupDRO(DomainAlgorithm):
    r"""The worst domain, learnt by exponentiated gradient.

    .. math:: q_e \leftarrow \frac{q_e\, e^{\eta R_e}}{\sum_f q_f\, e^{\eta R_f}}, \qquad \sum_e q_e R_e

    Parameters
    ----------
    eta
        Step size of the distribution over domains, which starts uniform and moves by plain risks.

    Notes
    -----
    Examples enter the objective with :math:`q_e` as their measure, so a re-weighting objective acts within what the
    domains count. References: Sagawa, Koh, Hashimoto and Liang, ICLR 2020.
    """

    eta: float = 0.01

    law: ClassVar[Mapping[str, Law]] = {"eta": power_of_ten(-3, -1)}

    def __post_init__(self) -> None:
        validate.positive("eta", self.eta)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Worst(self, setup)


class _Worst(Learner):
    def __init__(self, config: DomainGroupDRO, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        self.optimizers["all"] = setup.optimizer(self.network.parameters())
        self.q: Tensor
        self.register_buffer("q", torch.full((setup.domains,), 1.0 / setup.domains))

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        losses = weigh.losses(self.network(batch.x), batch.y)
        risks = torch.stack([part.detach().mean() for part in batch.parts(losses)])
        # A softmax of logarithms is the same rule, and a risk of a hundred does not overflow it.
        self.q.copy_(torch.softmax(self.q.log() + self.config.eta * risks, 0))
        measure = (self.q * batch.domains)[batch.domain]
        self.descend(weigh(losses, batch.domain, sample_weight=measure), "all")
