"""The plain mean: empirical risk minimisation."""

from __future__ import annotations

from dataclasses import dataclass

from reweigh._array import Array, namespace
from reweigh.objectives._base import Objective, State, Weighed

__all__ = ["Mean"]


@dataclass(frozen=True, kw_only=True)
class Mean(Objective):
    r"""The mean loss: every unit counts the same.

    .. math:: \hat L = \frac1B \sum_i \ell_i

    The baseline of every comparison, with the same masks, sample weights and denominators as all others.

    Returns
    -------
    Array
        A scalar: the mean of the losses.

    Examples
    --------
    >>> import numpy as np
    >>> print(round(float(Mean()(np.array([0.2, 0.7, 1.5, 4.0]))), 6))
    1.6

    Notes
    -----
    Also called empirical risk minimisation (ERM). References: Vapnik, *Principles of Risk Minimization for Learning
    Theory*, NIPS 1991.
    """

    @property
    def separable(self) -> bool:
        """True: no weight depends on anything."""
        return True

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """One for each unit."""
        return Weighed(namespace(losses).ones_like(losses))

    def integral(self, losses: Array, state: State) -> Array | None:
        """The loss itself."""
        return losses
