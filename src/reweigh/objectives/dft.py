"""The DFT weight: each loss times the probability the model gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reweigh._array import Array
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.weights import KL

__all__ = ["DFT"]

_WEIGHT = KL(tau=None, gamma=-1.0)


@dataclass(frozen=True, kw_only=True)
class DFT(Objective):
    r"""Dynamic fine-tuning: hard units count less, by the probability the model gives them.

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}(e^{-\ell_i})\, \ell_i

    For a cross-entropy :math:`\ell = -\log p` the weight is :math:`p`, and the gradient is that of :math:`-p`. It is
    the unclipped weight of :class:`RGD` with :math:`\gamma = -1`: the emphasis turned round.

    Returns
    -------
    Array
        A scalar: the mean of :math:`w\,\ell`.

    Examples
    --------
    >>> import numpy as np
    >>> print(round(float(DFT()(-np.log([0.5, 0.25]))), 6))  # (0.5 log 2 + 0.25 log 4) / 2
    0.346574

    Notes
    -----
    Meant for fine-tuning language models token by token. References: Wu et al., *On the Generalization of SFT: A
    Reinforcement Learning Perspective with Reward Rectification*, arXiv 2508.05629.
    """

    neutral: ClassVar[bool] = True

    @property
    def separable(self) -> bool:
        """True: the weight depends on the unit's own loss alone."""
        return True

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The exponential of minus the loss."""
        return Weighed(_WEIGHT.of_constants(losses))
