"""Domain-adversarial neural networks."""

from __future__ import annotations

from dataclasses import dataclass

from reweigh.bench.recipes.algorithms.domains._adversary import Contest

__all__ = ["DANN"]


@dataclass(frozen=True, kw_only=True)
class DANN(Contest):
    r"""Features from which a discriminator cannot predict the domain.

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
    width, depth, dropout
        Of the discriminator's hidden layers: units of each, how many there are, and dropout in them.
    discriminator_lr, discriminator_decay
        The discriminator's learning rate, 0 for that of the network, and its weight decay.
    beta1
        Adam's memory of gradients, short because the two play against each other; the second is 0.9.

    Notes
    -----
    Random search draws all that DomainBed's does, the discriminator's learning rate independently of the network's.
    In a discriminator's step nothing is weighed; the mean weight of such a step is recorded as one. References: Ganin
    et al., *Domain-Adversarial Training of Neural Networks*, JMLR 2016.
    """
