"""Adaptive risk minimisation with a context network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law

__all__ = ["ARM"]


@dataclass(frozen=True, kw_only=True)
class ARM(DomainAlgorithm):
    r"""An input channel that describes the other examples of the batch.

    .. math:: f([x, c]), \qquad c = \text{mean of } g(x') \text{ over a support of unlabelled examples of one domain}

    Parameters
    ----------
    support
        Examples that share a context, and so many of each domain are in a step. Where they cannot be dealt evenly, all
        examples of a domain share a context, and so do all that are predicted at once.
    width
        Channels of the context network: three 5 x 5 convolutions, the last with one channel.

    Notes
    -----
    The context network runs on the joined batch of all domains, whose statistics its batch normalisation takes: with
    one domain at a time it would subtract what tells the domains apart. When predicting, the context comes from the
    examples predicted at once, in groups of `support`. As in DomainBed a step has eight examples of each domain;
    there, data made of MNIST has as many as the batch that is drawn. Inputs without height and width have a context
    of one number. References: Zhang et al., *Adaptive Risk Minimization*, NeurIPS 2021.
    """

    support: int = 8
    width: int = 64

    law: ClassVar[Mapping[str, Law]] = {}

    def __post_init__(self) -> None:
        validate.whole("support", self.support, 1)
        validate.whole("width", self.width, 1)

    @property
    def batch_size(self) -> int:
        """As many of each domain as share a context."""
        return self.support

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Adaptive(self, setup)


class _Adaptive(Learner):
    def __init__(self, config: ARM, setup: Setup) -> None:
        super().__init__(setup, channels=1)
        self.config = config
        first = next(self.network.parameters())
        channels, width = first.shape[1] - 1, config.width
        if first.ndim == 2:
            layers: list[nn.Module] = [nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, 1)]
        else:
            layers = []
            for inputs in (channels, width):
                layers += [nn.Conv2d(inputs, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU()]
            layers.append(nn.Conv2d(width, 1, 5, padding=2))
        self.context = nn.Sequential(*layers)
        own = [*self.network.parameters(), *self.context.parameters()]
        self.optimizers["all"] = setup.optimizer(own)

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        # Support sets never cross domains: a domain whose examples cannot be dealt evenly is one support set.
        outputs = self._classify(batch.x, self._support(len(batch.x) // batch.domains))
        self.descend(weigh(weigh.losses(outputs, batch.y), batch.domain), "all")

    def forward(self, x: Tensor) -> Tensor:
        return self._classify(x, self._support(len(x)))

    def _support(self, count: int) -> int:
        """How many share a context where `count` examples are to be dealt."""
        return self.config.support if count % self.config.support == 0 else count

    def _classify(self, x: Tensor, size: int) -> Tensor:
        """The outputs for examples that share a context in groups of `size`."""
        context = self.context(x)
        shared = (
            context.unflatten(0, (-1, size)).mean(1, keepdim=True).expand(-1, size, *context.shape[1:]).flatten(0, 1)
        )
        return self.network(torch.cat([x, shared], 1))
