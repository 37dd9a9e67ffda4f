"""Feature reconstruction, then fine-tuning under the fixed linear layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reweigh import _validate as validate
from reweigh.bench.recipes.algorithms.domains._base import DomainAlgorithm, Learner, Setup
from reweigh.bench.recipes.algorithms.domains._law import Law, one_of
from reweigh.bench.recipes.algorithms.domains._reconstruction import Reconstructing

__all__ = ["FRR"]


@dataclass(frozen=True, kw_only=True)
class FRR(DomainAlgorithm):
    r"""As :class:`~reweigh.bench.recipes.algorithms.domains.frr_l.FRRL`, and then the features under that linear layer.

    Three phases: the whole network plainly; the linear layer with the reconstruction penalty, features frozen; the
    features without a penalty, the linear layer frozen. Our own reconstruction, like FRR-L.

    Parameters
    ----------
    weight
        Of the reconstruction penalty.
    features, head
        Shares of training after which the first and the second phase end.
    width
        Of the decoder's hidden layer.

    Notes
    -----
    Checkpoints are chosen among those of the last phase. References: as FRR-L.
    """

    weight: float = 1.0
    features: float = 0.5
    head: float = 0.75
    width: int = 128

    law: ClassVar[Mapping[str, Law]] = {"weight": one_of(0.1, 1.0, 10.0)}

    def __post_init__(self) -> None:
        validate.non_negative("weight", self.weight)
        validate.fraction("features", self.features, zero=True, one=False)
        validate.fraction("head", self.head, one=False)
        if self.features > self.head:
            raise ValueError(f"`features` must not exceed `head`, got {self.features} and {self.head}. Phases follow.")
        validate.whole("width", self.width, 1)

    def start(self, setup: Setup) -> Learner:
        """The learner."""
        return Reconstructing(setup, weight=self.weight, width=self.width, features=self.features, head=self.head)
