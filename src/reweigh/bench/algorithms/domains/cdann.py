"""Conditional domain-adversarial neural networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reweigh import _validate as validate
from reweigh.bench.algorithms.domains._adversary import LAW, Adversarial
from reweigh.bench.algorithms.domains._base import Algorithm, Learner, Setup
from reweigh.bench.algorithms.domains._law import Law

__all__ = ["CDANN"]


@dataclass(frozen=True, kw_only=True)
class CDANN(Algorithm):
    r"""Features from which a discriminator that is told the class cannot tell the domain.

    As :class:`~reweigh.bench.algorithms.domains.dann.DANN`, with an embedding of the true class added to what the
    discriminator sees, and with all classes of the batch counting the same in its loss.

    Parameters
    ----------
    weight, discriminator_steps, gradient_penalty, width, beta1
        As for DANN.

    Notes
    -----
    References: Li et al., *Deep Domain Generalization via Conditional Invariant Adversarial Networks*, ECCV 2018.
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
        return Adversarial(self, setup, conditional=True)
