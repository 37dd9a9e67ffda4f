"""Style-agnostic networks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, power_of_ten

__all__ = ["SagNet", "randomised"]

_TINY = 1e-5


@dataclass(frozen=True, kw_only=True)
class SagNet(DomainAlgorithm):
    r"""Content without style: features keep their shape and lose their mean and spread.

    A feature vector's mean and standard deviation are its *style*, the rest is its *content*. Three steps per batch:

    1. network and classifier learn from features whose style is mixed with that of another example;
    2. a style head learns to classify from style alone, the content being another example's;
    3. the network learns to leave that head without a clue: :math:`\lambda` times the cross entropy of the uniform
       distribution.

    Parameters
    ----------
    weight
        The :math:`\lambda`.

    Notes
    -----
    The first step's losses go through the objective; the style head is an adversary and learns plainly. Style is that
    of the feature vector, as in DomainBed. References: Nam, Lee, Park, Yoon and Yoo, *Reducing Domain Gap by Reducing
    Style Bias*, CVPR 2021.
    """

    weight: float = 0.1

    law: ClassVar[Mapping[str, Law]] = {"weight": power_of_ten(-2, 1)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _StyleAgnostic(self, setup)


class _StyleAgnostic(Learner):
    def __init__(self, config: SagNet, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        self.style = copy.deepcopy(self.network.head)
        self.optimizers["embed"] = setup.optimizer(self.network.embed.parameters())
        self.optimizers["head"] = setup.optimizer(self.network.head.parameters())
        self.optimizers["style"] = setup.optimizer(self.style.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        features = randomised(self.network.embed(batch.x), style=True)
        losses = weigh.losses(self.network.head(features), batch.y)
        self.descend(weigh(losses, batch.domain), "embed", "head")
        outputs = self._style_outputs(batch.x)
        self.descend(F.cross_entropy(outputs, batch.y), "style")
        clueless = -F.log_softmax(self._style_outputs(batch.x), 1).mean()
        self.descend(self.config.weight * clueless, "embed")

    def _style_outputs(self, x: Tensor) -> Tensor:
        return self.style(randomised(self.network.embed(x), style=False))


def randomised(features: Tensor, *, style: bool) -> Tensor:
    """Feature vectors with their style mixed with another's, or with the content of another and their own style."""
    # Drawn by the processor, so that every device mixes the same examples.
    share = torch.rand(len(features), 1, dtype=features.dtype).to(features.device, non_blocking=True)
    other = torch.randperm(len(features)).to(features.device, non_blocking=True)
    mean, spread = features.mean(1, keepdim=True), (features.var(1, keepdim=True) + _TINY).sqrt()
    content = (features - mean) / spread
    if not style:
        return content[other].detach() * spread + mean
    variance = share * spread.square() + (1 - share) * spread.square()[other]
    return content * variance.sqrt() + share * mean + (1 - share) * mean[other]
