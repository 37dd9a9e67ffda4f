"""Representation self-challenging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import (
    DomainAlgorithm,
    DomainBatch,
    Learner,
    Setup,
    Weigher,
    true_probability,
)
from reweigh.bench.recipes.algorithms.domains._law import Law, uniform

__all__ = ["RSC", "challenged"]


@dataclass(frozen=True, kw_only=True)
class RSC(DomainAlgorithm):
    r"""Learning without the features that one leans on most.

    In each example the features with the largest derivative of the true class's output are muted; of all examples,
    those whose true probability falls most by it stay muted, and the others are learnt from as they are.

    Parameters
    ----------
    features
        Share of the features that are muted.
    examples
        Share of the examples that stay muted.

    Notes
    -----
    References: Huang, Wang, Xing and Huang, *Self-Challenging Improves Cross-Domain Generalization*, ECCV 2020.
    """

    features: float = 1 / 3
    examples: float = 1 / 3

    law: ClassVar[Mapping[str, Law]] = {"features": uniform(0, 0.5), "examples": uniform(0, 0.5)}

    def __post_init__(self) -> None:
        validate.fraction("features", self.features, zero=True, one=False)
        validate.fraction("examples", self.examples, zero=True, one=False)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _SelfChallenging(self, setup)


class _SelfChallenging(Learner):
    def __init__(self, config: RSC, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        features = self.network.embed(batch.x)
        mask = challenged(features, batch.y, self.network.head, self.config)
        outputs = self.network.head(features * mask)
        self.descend(weigh(weigh.losses(outputs, batch.y), batch.domain), "all")


def challenged(features: Tensor, targets: Tensor, head: nn.Module, config: RSC) -> Tensor:
    """Which features are kept, as zeros and ones without a gradient."""
    seen = features.detach().requires_grad_()
    outputs = head(seen)
    (leaning,) = torch.autograd.grad(outputs.gather(1, targets[:, None]).sum(), seen)
    with torch.no_grad():
        kept = leaning < leaning.quantile(1 - config.features, dim=1, keepdim=True)
        fall = true_probability(outputs, targets) - true_probability(head(seen * kept), targets)
        untouched = fall < fall.quantile(1 - config.examples)
        return (kept | untouched[:, None]).to(features.dtype)
