"""What every algorithm of this folder is: a value with hyper-parameters, and the learner it starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh.bench.algorithms.domains._law import Law
from reweigh.bench.loop import Live

Optimizer = torch.optim.Optimizer


class Network(nn.Module):
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

    def layers(self, x: Tensor) -> list[Tensor]:
        """What each part of `embed` that has parameters makes of a batch; the features themselves come last."""
        found: list[Tensor] = []
        for part in self.embed:
            x = part(x)
            if any(True for _ in part.parameters()):
                found.append(x)
        return [*found, x]

    def train(self, mode: bool = True) -> Self:
        """As every module; batch normalisation stays in evaluation where its statistics are fixed."""
        super().train(mode)
        if mode and self.fixed_statistics:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Equally many examples of each training domain, domain after domain.

    Parameters
    ----------
    x, y
        Inputs `(n, ...)` and labels `(n,)`.
    domains
        Number of domains; `n` is a multiple of it.
    """

    x: Tensor
    y: Tensor
    domains: int

    def __post_init__(self) -> None:
        if len(self.x) % self.domains:
            raise ValueError(f"a batch must hold equally many of each of {self.domains} domains, got {len(self.x)}.")

    @property
    def domain(self) -> Tensor:
        """The domain of each example, from 0."""
        return torch.arange(self.domains, device=self.y.device).repeat_interleave(len(self.y) // self.domains)

    def parts(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of all examples, domain by domain."""
        return values.chunk(self.domains)

    def of(self, domains: Iterable[int]) -> Batch:
        """Some domains only."""
        chosen = list(domains)
        xs, ys = self.parts(self.x), self.parts(self.y)
        return Batch(x=torch.cat([xs[d] for d in chosen]), y=torch.cat([ys[d] for d in chosen]), domains=len(chosen))


class Weigher:
    """The method's loss and objective at work, and what they saw in a step.

    An algorithm asks for the plain losses of some examples and hands them back to be made one number of.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], live: Live) -> None:
        self.loss, self.live = loss, live
        self._seen: list[tuple[Tensor, Tensor]] = []

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One classification loss an example."""
        return self.loss(outputs, targets)

    def __call__(self, losses: Tensor, domain: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The number to descend, made of the losses of examples and the domain each belongs to."""
        found = self.live(losses, sample_weight, groups=domain)
        assert self.live.weights is not None
        self._seen.append((losses.detach(), self.live.weights.detach()))
        return found

    def collect(self) -> tuple[Tensor, Tensor] | None:
        """Losses and weights since the last time, None where nothing was weighed; the objective's state moves on."""
        if not self._seen:
            return None
        losses, weights = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        self._seen.clear()
        self.live.advance()
        return losses, weights


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an algorithm starts from.

    Parameters
    ----------
    network
        A fresh network for inputs with so many channels more than the data has.
    optimizer
        A fresh optimiser over parameters, or over groups of them, which may have a `rate`, a factor on the learning
        rate; options such as `betas` replace its own.
    domains, classes, steps
        Training domains, classes and steps of the whole training.
    shape
        Of one input, for algorithms that must know how many channels each layer has.
    """

    network: Callable[[int], Network]
    optimizer: Callable[..., Optimizer]
    domains: int
    classes: int
    steps: int
    shape: tuple[int, ...]

    @torch.no_grad()
    def widths(self, network: Network) -> list[int]:
        """Channels of each of a network's layers."""
        like = next(network.parameters())
        was = network.training
        network.eval()
        found = [part.shape[1] for part in network.layers(like.new_zeros(2, *self.shape))]
        network.train(was)
        return found


class Learner(nn.Module, ABC):
    """An algorithm at work: parameters, optimisers, and a count of steps, all in its state."""

    def __init__(self, setup: Setup, *, channels: int = 0) -> None:
        super().__init__()
        self.setup = setup
        self.network = setup.network(channels)
        self.updates: Tensor
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        #: By name, so that a checkpoint can hold their states.
        self.optimizers: dict[str, Optimizer] = {}

    def update(self, batch: Batch, weigh: Weigher) -> None:
        """Take one step."""
        self.learn(batch, weigh)
        self.updates += 1

    @abstractmethod
    def learn(self, batch: Batch, weigh: Weigher) -> None:
        """What a step is."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for examples of any domain."""
        return self.network(x)

    @property
    def settled(self) -> bool:
        """Whether what there is now is the algorithm's result, and not an earlier phase of it."""
        return True

    def descend(self, loss: Tensor, *names: str) -> None:
        """One step of these optimisers down a loss, and of no other parameters."""
        for name in names:
            self.optimizers[name].zero_grad()
        loss.backward()
        for name in names:
            self.optimizers[name].step()


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """A way to learn from several domains, with its hyper-parameters."""

    #: What random search draws the hyper-parameters from.
    law: ClassVar[Mapping[str, Law]] = {}

    @abstractmethod
    def start(self, setup: Setup) -> Learner:
        """The algorithm at work; its parameters are initialised from torch's ambient generator."""

    def drawn(self, rng: np.random.Generator) -> Self:
        """The same with every hyper-parameter that has a law drawn from it."""
        return replace(self, **{name: law(rng) for name, law in self.law.items()})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a penalty may look at: the batch, its features, outputs and plain losses."""

    batch: Batch
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
        From what was seen to a number.
    weight
        What the penalty is multiplied with, given the number of steps taken.
    restart
        The step before which the optimiser starts anew, if it does: a penalty that comes in at once changes the scale
        of gradients that Adam remembers.
    """

    def __init__(
        self,
        setup: Setup,
        penalty: Callable[[Seen], Tensor],
        weight: Callable[[int], float],
        restart: int | None = None,
    ) -> None:
        super().__init__(setup)
        self.penalty, self.weight, self.restart = penalty, weight, restart
        self.optimizers["all"] = setup.optimizer(self.network.parameters())

    def learn(self, batch: Batch, weigh: Weigher) -> None:
        """Down the weighed losses and the penalty."""
        step = int(self.updates)
        if step == self.restart:
            self.optimizers["all"] = self.setup.optimizer(self.network.parameters())
        features = self.network.embed(batch.x)
        outputs = self.network.head(features)
        losses = weigh.losses(outputs, batch.y)
        penalty = self.penalty(Seen(batch=batch, features=features, outputs=outputs, losses=losses))
        self.descend(weigh(losses, batch.domain) + self.weight(step) * penalty, "all")


def pairs(parts: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Every pair of different parts, once."""
    for i, first in enumerate(parts):
        for second in parts[i + 1 :]:
            yield first, second


def annealed(weight: float, first: float, restart: int) -> Callable[[int], float]:
    """A weight that is `first` before a step and `weight` from it on."""
    return lambda step: weight if step >= restart else first


def mlp(inputs: int, outputs: int, *, width: int, depth: int) -> nn.Sequential:
    """A multi-layer perceptron of `depth` hidden layers."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(inputs if i == 0 else width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width if depth else inputs, outputs))


def true_probability(outputs: Tensor, targets: Tensor) -> Tensor:
    """The probability that each example's true class is given."""
    return F.softmax(outputs, 1).gather(1, targets[:, None]).squeeze(1)
