"""Conditional domain-adversarial neural networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reweigh.bench.recipes.algorithms.domains._adversary import Contest

__all__ = ["CDANN"]


@dataclass(frozen=True, kw_only=True)
class CDANN(Contest):
    r"""Features from which a discriminator that sees the class cannot predict the domain.

    As :class:`~reweigh.bench.recipes.algorithms.domains.dann.DANN`, with an embedding of the true class added to what
    the discriminator sees, and with all classes of the batch counting the same in its loss.

    Parameters
    ----------
    weight, discriminator_steps, gradient_penalty, width, depth, dropout, discriminator_lr, discriminator_decay, beta1
        As for DANN.

    Notes
    -----
    References: Li et al., *Deep Domain Generalization via Conditional Invariant Adversarial Networks*, ECCV 2018.
    """

    conditional: ClassVar[bool] = True
