"""Feature reconstruction in the linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, Learner, Setup
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of
from reweigh.bench.recipes.algorithms.domains._reconstruction import Reconstructing

__all__ = ["FRRL"]


@dataclass(frozen=True, kw_only=True)
class FRRL(DomainAlgorithm):
    r"""A linear layer from whose outputs the features can be recovered: our reading of the paper.

    .. math:: R(W) + \lambda\, \overline{\lvert \phi(x) - D(W \phi(x)) \rvert}

    First the whole network is trained plainly; then its features :math:`\phi` are frozen, and the linear layer W goes
    on learning beside a decoder D with one hidden layer. A layer that leans on few features cannot be undone.

    Parameters
    ----------
    weight
        The :math:`\lambda`.
    features
        Share of training that makes the features.
    width
        Of the decoder's hidden layer.

    Notes
    -----
    The authors' code is not public and their abstract gives neither the form of the penalty nor the decoder: both, and
    the shares of training, are ours, so no parity with the published numbers is claimed. References: Addepalli, Nasery,
    Radhakrishnan, Netrapalli and Jain, *Feature Reconstruction From Outputs Can Mitigate Simplicity Bias in Neural
    Networks*, ICLR 2023.
    """

    weight: float = 1.0
    features: float = 0.6
    width: int = 128

    law: ClassVar[Mapping[str, Law]] = {"weight": one_of(0.1, 1.0, 10.0)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.fraction("features", self.features, zero=True, one=False)
        validate.whole("width", self.width, 1)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return Reconstructing(setup, weight=self.weight, width=self.width, features=self.features, head=1.0)
