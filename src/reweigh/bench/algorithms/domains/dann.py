"""Domain-adversarial neural networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reweigh import _validate as validate
from reweigh.bench.algorithms.domains._adversary import LAW, Adversarial
from reweigh.bench.algorithms.domains._base import Algorithm, Learner, Setup
from reweigh.bench.algorithms.domains._law import Law

__all__ = ["DANN"]


@dataclass(frozen=True, kw_only=True)
class DANN(Algorithm):
    r"""Features from which a discriminator cannot tell the domain.

    .. math:: \min_{\theta} \max_{\phi}\; R(\theta) - \lambda\, D(\theta, \phi), \qquad
              D = \text{cross entropy of the domain given the features}

    Parameters
    ----------
    weight
        The :math:`\lambda`.
    discriminator_steps
        Steps of the discriminator for each of the network.
    gradient_penalty
        Weight of the squared gradient of the discriminator's loss by its input.
    width
        Of the two hidden layers of the discriminator.
    beta1
        Adam's memory of gradients, short because the two play against each other; the second is 0.9.

    Notes
    -----
    In a discriminator's step nothing is weighed; the mean weight of such a step is recorded as one. References: Ganin
    et al., *Domain-Adversarial Training of Neural Networks*, JMLR 2016.
    """

    weight: float = 1.0
    discriminator_steps: int = 1
    gradient_penalty: float = 0.0
    width: int = 256
    beta1: float = 0.5

    law: ClassVar[Mapping[str, Law]] = LAW

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.whole("discriminator_steps", self.discriminator_steps, 1)
        validate.non_negative("gradient_penalty", self.gradient_penalty)
        validate.whole("width", self.width, 1)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return Adversarial(self, setup, conditional=False)
