"""Mixup between domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, power_of_ten

__all__ = ["Mixup"]


@dataclass(frozen=True, kw_only=True)
class Mixup(DomainAlgorithm):
    r"""Examples of two domains, mixed with their labels.

    .. math:: \ell = \lambda\, \ell(f(\tilde x), y_i) + (1 - \lambda)\, \ell(f(\tilde x), y_j), \qquad
              \tilde x = \lambda x_i + (1 - \lambda) x_j

    Domains are shuffled and each is mixed with the next, with one :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` a
    pair.

    Parameters
    ----------
    alpha
        Of the Beta distribution.

    Notes
    -----
    The mixed loss of a pair of examples is one unit to the objective. Its floor, the entropy of the mixed label, is not
    taken off. References: Yan et al., *Improve Unsupervised Domain Adaptation with Mixup Training*, 2020.
    """

    alpha: float = 0.2

    law: ClassVar[Mapping[str, Law]] = {"alpha": power_of_ten(-1, 1)}

    def __post_init__(self) -> None:
        validate.positive("alpha", self.alpha)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Mixed(self, setup)


class _Mixed(Learner):
    def __init__(self, config: Mixup, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        order = torch.randperm(batch.domains).tolist()
        first, second = batch.of(order), batch.of([*order[1:], order[0]])
        drawn = torch.distributions.Beta(self.config.alpha, self.config.alpha).sample((batch.domains,))
        share = drawn.to(batch.x.device)[first.domain]
        outputs = self.network(mixed(first.x, second.x, share))
        losses = share * weigh.losses(outputs, first.y) + (1 - share) * weigh.losses(outputs, second.y)
        domain = torch.tensor(order, device=batch.y.device)[first.domain]
        self.descend(weigh(losses, domain), "all")


def mixed(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Inputs mixed one by one, the first with its share."""
    share = share.reshape(-1, *[1] * (first.ndim - 1))
    return share * first + (1 - share) * second
