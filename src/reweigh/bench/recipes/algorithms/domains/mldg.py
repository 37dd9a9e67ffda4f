"""Meta-learning for domain generalisation, to first order."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of, power_of_ten

__all__ = ["MLDG"]


@dataclass(frozen=True, kw_only=True)
class MLDG(DomainAlgorithm):
    r"""A step on some domains that also helps the others.

    .. math:: \frac1{|E|} \sum_{(i, j)} \Big[ \nabla R_i(\theta) + \beta\, \nabla R_j(\theta') \Big], \qquad
              \theta' = \theta - \text{step along } \nabla R_i(\theta)

    Domains are shuffled; the last `tested` are tested on, and each of the others is trained on with one of these. The
    sum over such pairs is divided by the number of all training domains E; second derivatives are left out.

    Parameters
    ----------
    beta
        Weight of the test domains' gradients.
    tested
        Domains that a step only tests on; with too few domains, all but one.

    Notes
    -----
    As in DomainBed, the inner step is one of a fresh Adam, and the sum is divided by the number of domains and not of
    pairs. Where all training domains would be tested on, DomainBed takes no step; here one is trained on. Training
    losses and test losses are both classification losses and go through the objective, pair by pair. References: Li,
    Yang, Song and Hospedales, *Learning to Generalize*, AAAI 2018.
    """

    beta: float = 1.0
    tested: int = 2

    law: ClassVar[Mapping[str, Law]] = {"beta": power_of_ten(-1, 1), "tested": one_of(1, 2)}

    def __post_init__(self) -> None:
        validate.non_negative("beta", self.beta)
        validate.whole("tested", self.tested, 1)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _TwoFold(self, setup)


class _TwoFold(Learner):
    def __init__(self, config: MLDG, setup: Setup) -> None:
        super().__init__(setup)
        if setup.domains < 2:
            raise ValueError(f"'mldg' needs two training domains at least, got {setup.domains}.")
        self.config = config
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        outer = list(self.network.parameters())
        gradients = [torch.zeros_like(p) for p in outer]
        chosen = split(torch.randperm(batch.domains).tolist(), self.config.tested)
        for i, j in chosen:
            # A copy takes the inner step; gradients at both ends are added up for the step of the network itself.
            inner = copy.deepcopy(self.network)
            inner_optimizer = self.setup.optimizer(inner.parameters())
            trained, tested = batch.of([i]), batch.of([j])
            weigh(weigh.losses(inner(trained.x), trained.y), trained.domain + i).backward()
            for total, parameter in zip(gradients, inner.parameters(), strict=True):
                if parameter.grad is not None:
                    total += parameter.grad / batch.domains
            inner_optimizer.step()
            inner.zero_grad()
            weigh(weigh.losses(inner(tested.x), tested.y), tested.domain + j).backward()
            for total, parameter in zip(gradients, inner.parameters(), strict=True):
                if parameter.grad is not None:
                    total += self.config.beta * parameter.grad / batch.domains
        for parameter, total in zip(outer, gradients, strict=True):
            parameter.grad = total
        self.optimizers["all"].step()


def split(order: list[int], tested: int) -> list[tuple[int, int]]:
    """Each domain to train on with one to test on, in turn: the last `tested` are tested on, the others trained on."""
    cut = max(1, len(order) - tested)
    training, testing = order[:cut], order[cut:]
    return [(domain, testing[k % len(testing)]) for k, domain in enumerate(training)]
