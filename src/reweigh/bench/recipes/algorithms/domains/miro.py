"""Mutual information with a pre-trained network."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, DomainBatch, Learner, Setup, Weigher
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of

__all__ = ["MIRO", "unlikelihood"]

_TINY, _FIRST_VARIANCE = 1e-5, 0.1


@dataclass(frozen=True, kw_only=True)
class MIRO(DomainAlgorithm):
    r"""Features that stay predictive of the pre-trained network's.

    .. math:: R + \lambda \sum_{l} \tfrac12\, \overline{\frac{(f_l - f^0_l)^2}{v_l} + \log v_l}

    Layers are the parts of the network that have parameters, before pooling and dropout: with ResNet-50 the stem and
    four stages. :math:`f_l` is the output of layer l for the batch, :math:`f^0_l` its output before any training,
    :math:`v_l` a learnt variance for each channel, and the bar the mean over all entries.

    Parameters
    ----------
    weight
        The :math:`\lambda`: 0.01 for PACS and VLCS, 0.1 for OfficeHome and DomainNet in the authors' runs.
    rate
        What the learning rate of the variances is multiplied with.

    Notes
    -----
    It means little for a network that was not pre-trained. References: Cha, Lee, Park and Chun, *Domain Generalization
    by Mutual-Information Regularization with Pre-trained Models*, ECCV 2022.
    """

    weight: float = 0.1
    rate: float = 10.0

    law: ClassVar[Mapping[str, Law]] = {"weight": one_of(0.001, 0.01, 0.1, 1.0)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.positive("rate", self.rate)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return _Anchored(self, setup)


class _Anchored(Learner):
    def __init__(self, config: MIRO, setup: Setup) -> None:
        super().__init__(setup)
        self.config = config
        self.pretrained = copy.deepcopy(self.network).requires_grad_(False)
        # The raw value whose softplus is the variance less its floor, one per channel.
        first = math.log(math.expm1(_FIRST_VARIANCE - _TINY))
        self.raw = nn.ParameterList([torch.full((width,), first) for width in setup.widths(self.network)])
        self.optimizers["all"] = setup.optimizer(
            [
                {"params": list(self.network.parameters())},
                {"params": list(self.raw), "rate": config.rate},
            ]
        )

    def learn(self, batch: DomainBatch, weigh: Weigher) -> None:
        layers, features = self.network.layers(batch.x)
        with torch.no_grad():
            anchors, _ = self.pretrained.layers(batch.x)
        penalty = torch.stack(
            [unlikelihood(f, anchor, raw) for f, anchor, raw in zip(layers, anchors, self.raw, strict=True)]
        ).sum()
        losses = weigh.losses(self.network.head(features), batch.y)
        self.descend(weigh(losses, batch.domain) + self.config.weight * penalty, "all")


def unlikelihood(features: Tensor, anchor: Tensor, raw: Tensor) -> Tensor:
    """Minus the Gaussian log-likelihood of the anchor, up to a constant, per entry; one raw variance per channel."""
    variance = (F.softplus(raw) + _TINY).reshape(1, -1, *[1] * (features.ndim - 2))
    return ((features - anchor).square() / variance + variance.log()).mean() / 2
