"""Empirical risk minimisation over all training domains."""

from __future__ import annotations

from dataclasses import dataclass

from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher

__all__ = ["ERM"]


@dataclass(frozen=True, kw_only=True)
class ERM(DomainAlgorithm):
    r"""The mean loss over the examples of all training domains together.

    .. math:: \frac1{|E|} \sum_{e \in E} R_e(\theta), \qquad R_e = \text{mean loss in domain } e

    Notes
    -----
    References: Vapnik, *Statistical Learning Theory*, 1998; as a baseline, Gulrajani and Lopez-Paz, *In Search of Lost
    Domain Generalization*, ICLR 2021.
    """

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Pooled(setup)


class _Pooled(Learner):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        self.descend(weigh(weigh.losses(self.network(batch.x), batch.y), batch.domain), "all")
