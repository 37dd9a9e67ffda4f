"""Features from which a discriminator cannot predict the domain, given the class or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher, mlp
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of, power_of_ten, power_of_two


@dataclass(frozen=True, kw_only=True)
class Contest(DomainAlgorithm):
    """The hyper-parameters that DANN and CDANN share; see DANN for what they mean."""

    #: Whether the discriminator sees the class.
    conditional: ClassVar[bool] = False

    weight: float = 1.0
    discriminator_steps: int = 1
    gradient_penalty: float = 0.0
    width: int = 256
    depth: int = 2
    dropout: float = 0.0
    discriminator_lr: float = 0.0
    discriminator_decay: float = 0.0
    beta1: float = 0.5

    law: ClassVar[Mapping[str, Law]] = {
        "weight": power_of_ten(-2, 2),
        "discriminator_steps": power_of_two(0, 3),
        "gradient_penalty": power_of_ten(-2, 1),
        "width": power_of_two(6, 10),
        "depth": one_of(2, 3, 4),
        "dropout": one_of(0.0, 0.1, 0.5),
        "discriminator_decay": power_of_ten(-6, -2),
        "beta1": one_of(0.0, 0.5),
    }
    recipe_law: ClassVar[Mapping[str, str]] = {"discriminator_lr": "lr"}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.whole("discriminator_steps", self.discriminator_steps, 1)
        validate.non_negative("gradient_penalty", self.gradient_penalty)
        validate.whole("width", self.width, 1)
        validate.whole("depth", self.depth, 1)
        validate.fraction("dropout", self.dropout, zero=True, one=False)
        validate.non_negative("discriminator_lr", self.discriminator_lr)
        validate.non_negative("discriminator_decay", self.discriminator_decay)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return AdversarialLearner(self, setup)


class AdversarialLearner(Learner):
    """Steps of the discriminator and of the network in turn.

    A conditional discriminator sees an embedding of the class added to the features, and classes count evenly in its
    loss.
    """

    def __init__(self, config: Contest, setup: Setup) -> None:
        super().__init__(setup)
        self.config, self.conditional = config, config.conditional
        self.discriminator = mlp(
            self.network.features, setup.domains, width=config.width, depth=config.depth, dropout=config.dropout
        )
        self.classes = nn.Embedding(setup.classes, self.network.features)
        own = [*self.discriminator.parameters(), *(self.classes.parameters() if self.conditional else ())]
        betas = (config.beta1, 0.9)
        group: dict[str, Any] = {"params": own, "weight_decay": config.discriminator_decay}
        if config.discriminator_lr:
            group["lr"] = config.discriminator_lr
        self.optimizers["discriminator"] = setup.optimizer([group], betas=betas)
        self.optimizers["network"] = setup.optimizer(self.network.parameters(), betas=betas)

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        """A step of the discriminator, or, once every few steps, of the network against it."""
        turn = self.updates % (1 + self.config.discriminator_steps)
        features = self.network.embed(batch.x)
        if turn < self.config.discriminator_steps:
            self.descend(self.discriminator_loss(features.detach().requires_grad_(), batch), "discriminator")
            return
        discerned = self.discriminator_loss(features, batch)
        losses = weigh.losses(self.network.head(features), batch.y)
        self.descend(weigh(losses, batch.domain) - self.config.weight * discerned, "network")

    def discriminator_loss(self, features: Tensor, batch: DomainBatch) -> Tensor:
        """The loss of predicting the domain from the features, and the discriminator's gradient penalty."""
        seen = features + self.classes(batch.y) if self.conditional else features
        outputs = self.discriminator(seen)
        losses = F.cross_entropy(outputs, batch.domain, reduction="none")
        if self.conditional:
            counts = F.one_hot(batch.y, self.setup.classes).sum(0)
            loss = (losses / (counts[batch.y] * self.setup.classes)).sum()
        else:
            loss = losses.mean()
        if not self.config.gradient_penalty:
            return loss
        domain_loss = F.cross_entropy(outputs, batch.domain, reduction="sum")
        (gradient,) = torch.autograd.grad(domain_loss, seen, create_graph=True)
        return loss + self.config.gradient_penalty * gradient.square().sum(1).mean()
