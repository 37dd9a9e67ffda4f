"""What every algorithm of this folder is: a value with hyper-parameters, and the learner it starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh.bench.recipes.algorithms.domains._law import Law
from reweigh.bench.train.programs.domains import DomainBatch, DomainLearner, Weigher

Optimizer = torch.optim.Optimizer


class DomainNetwork(nn.Module):
    """Features (`embed`) and a linear layer on them (`head`).

    Parameters
    ----------
    embed
        From inputs to feature vectors; as an `nn.Sequential`, its parts are the layers that can be looked at.
    features, classes
        Length of a feature vector; number of outputs.
    fixed_statistics
        Whether batch normalisation keeps the statistics it came with, as is usual with pre-trained networks.
    """

    def __init__(self, embed: nn.Sequential, features: int, classes: int, *, fixed_statistics: bool = False) -> None:
        super().__init__()
        self.embed, self.features, self.fixed_statistics = embed, features, fixed_statistics
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch."""
        return self.head(self.embed(x))

    def layers(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """What each part of `embed` that has parameters makes of a batch, and the features.

        Pooling and dropout have no parameters: the layers are what there is before them.
        """
        made: list[Tensor] = []
        for part in self.embed:
            x = part(x)
            if any(True for _ in part.parameters()):
                made.append(x)
        return made, x

    def train(self, mode: bool = True) -> Self:
        """As every module; batch normalisation stays in evaluation where its statistics are fixed."""
        super().train(mode)
        if mode and self.fixed_statistics:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an algorithm starts from.

    Parameters
    ----------
    network
        A fresh network for inputs with so many channels more than the data has.
    optimizer
        A fresh optimiser over parameters, or over groups of them, which may have a `rate`, a factor on the learning
        rate, or an `lr` and a `weight_decay` of their own; options such as `betas` replace the optimiser's.
    domains, classes, steps
        Training domains, classes and steps of the whole training.
    shape
        Of one input, for algorithms that must know how many channels each layer has.
    """

    network: Callable[[int], DomainNetwork]
    optimizer: Callable[..., Optimizer]
    domains: int
    classes: int
    steps: int
    shape: tuple[int, ...]

    @torch.no_grad()
    def widths(self, network: DomainNetwork) -> list[int]:
        """Channels of each of a network's layers."""
        like = next(network.parameters())
        was = network.training
        network.eval()
        layers, _ = network.layers(like.new_zeros(2, *self.shape))
        widths = [layer.shape[1] for layer in layers]
        network.train(was)
        return widths


class Learner(DomainLearner):
    """A learner around one network."""

    def __init__(self, setup: Setup, *, channels: int = 0) -> None:
        super().__init__()
        self.setup = setup
        self.network = setup.network(channels)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for examples of any domain."""
        return self.network(x)

    def descend(self, loss: Tensor, *names: str) -> None:
        """One step of these optimisers down a loss, and of no other parameters."""
        for name in names:
            self.optimizers[name].zero_grad()
        loss.backward()
        for name in names:
            self.optimizers[name].step()


@dataclass(frozen=True, kw_only=True)
class DomainAlgorithm(ABC):
    """A way to learn from several domains, with its hyper-parameters."""

    #: What random search draws the hyper-parameters from.
    law: ClassVar[Mapping[str, Law]] = {}
    #: Hyper-parameters that random search draws from the law of one of the recipe's settings, and which setting.
    recipe_law: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def start(self, setup: Setup) -> Learner:
        """The live algorithm; its parameters are initialised from torch's ambient generator."""

    @property
    def batch_size(self) -> int | None:
        """Examples of each domain in a step, where that is the algorithm's to say."""
        return None

    def drawn(self, rng: np.random.Generator, recipe: Mapping[str, Law]) -> Self:
        """The same with every hyper-parameter that has a law drawn from it; `recipe` has the laws of settings."""
        laws = {**self.law, **{name: recipe[setting] for name, setting in self.recipe_law.items()}}
        return replace(self, **{name: law(rng) for name, law in laws.items()})


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """What a penalty may look at: the batch, its features, outputs and plain losses."""

    batch: DomainBatch
    features: Tensor
    outputs: Tensor
    losses: Tensor


class Penalised(Learner):
    """Classification, and a penalty on top that is not re-weighted.

    Parameters
    ----------
    setup
        What to start from.
    penalty
        From a forward pass to a number.
    weight
        What the penalty is multiplied with, given the number of steps taken.
    restart
        The step before which the optimiser starts over, if it does: a penalty that comes in at once changes the scale
        of gradients that Adam remembers.
    """

    def __init__(
        self,
        setup: Setup,
        penalty: Callable[[ForwardPass], Tensor],
        weight: Callable[[int], float],
        restart: int | None = None,
    ) -> None:
        super().__init__(setup)
        self.penalty, self.weight, self.restart = penalty, weight, restart
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        """Down the weighed losses and the penalty."""
        step = self.updates
        if step == self.restart:
            self.optimizers["all"] = self.setup.optimizer(self.network.parameters())
        features = self.network.embed(batch.x)
        outputs = self.network.head(features)
        losses = weigh.losses(outputs, batch.y)
        penalty = self.penalty(ForwardPass(batch=batch, features=features, outputs=outputs, losses=losses))
        self.descend(weigh(losses, batch.domain) + self.weight(step) * penalty, "all")


def pairs(parts: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Every pair of different parts, once."""
    for i, first in enumerate(parts):
        for second in parts[i + 1 :]:
            yield first, second


def annealed(weight: float, first: float, restart: int) -> Callable[[int], float]:
    """A weight that is `first` before a step and `weight` from it on."""
    return lambda step: weight if step >= restart else first


def mlp(inputs: int, outputs: int, *, width: int, depth: int, dropout: float = 0.0) -> nn.Sequential:
    """A multi-layer perceptron of `depth` hidden layers, with dropout in each of them."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(inputs if i == 0 else width, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width if depth else inputs, outputs))


def true_probability(outputs: Tensor, targets: Tensor) -> Tensor:
    """The probability that each example's true class is given."""
    return F.softmax(outputs, 1).gather(1, targets[:, None]).squeeze(1)
