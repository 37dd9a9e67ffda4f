"""Marginal transfer learning: the classifier sees what its domain looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of

__all__ = ["MTL"]


@dataclass(frozen=True, kw_only=True)
class MTL(DomainAlgorithm):
    r"""The mean feature of a domain beside each of its features.

    .. math:: \sum_e R_e, \qquad f(x) = W [\phi(x), m_e], \qquad
              m_e \leftarrow \rho\, \overline{\phi(x)}_e + (1 - \rho)\, m_e

    Parameters
    ----------
    ema
        The :math:`\rho`, the share of the current batch in the mean of its domain.

    Notes
    -----
    As in DomainBed the risks of the domains are added up, not averaged. Its code then overwrites the mean features with
    standard normal noise before the classifier sees them; here they stay. Of an unseen domain the mean is that of the
    examples predicted at once, so predictions depend on who is predicted with whom; here that is up to 256 at a time.
    References: Blanchard et al., *Domain Generalization by Marginal Transfer Learning*, JMLR 2021.
    """

    ema: float = 0.99

    law: ClassVar[Mapping[str, Law]] = {"ema": one_of(0.5, 0.9, 0.99, 1.0)}

    def __post_init__(self) -> None:
        validate.fraction("ema", self.ema)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Marginal(self, setup)


class _Marginal(Learner):
    def __init__(self, config: MTL, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        features = self.network.features
        self.network.head = nn.Linear(2 * features, setup.classes)
        self.means: Tensor
        self.register_buffer("means", torch.zeros(setup.domains, features))
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        features = self.network.embed(batch.x)
        share = self.config.ema
        fresh = torch.stack([part.mean(0) for part in batch.parts(features)])
        means = share * fresh + (1 - share) * self.means
        self.means.copy_(means.detach())
        outputs = self.network.head(torch.cat([features, means[batch.domain]], 1))
        # Domains have equally many examples: so many times the mean is the sum of their risks.
        self.descend(batch.domains * weigh(weigh.losses(outputs, batch.y), batch.domain), "all")

    def forward(self, x: Tensor) -> Tensor:
        features = self.network.embed(x)
        return self.network.head(torch.cat([features, features.mean(0).expand_as(features)], 1))
