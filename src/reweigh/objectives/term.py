"""Tilted empirical risk minimisation on the mini-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, namespace, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import tilt

__all__ = ["TERM"]


@dataclass(frozen=True, kw_only=True)
class TERM(Objective):
    r"""Tilted empirical risk: the log of the mean exponential loss of the batch.

    .. math:: R_t = \frac1t \log \frac1B \sum_i e^{t \ell_i}, \qquad
              w_i = \frac{e^{t \ell_i}}{\frac1B \sum_j e^{t \ell_j}}

    A positive tilt :math:`t` moves the mean towards the largest loss, a negative one towards the smallest, which
    leaves outliers out; :math:`t \to 0` is the plain mean. Weights average to one.

    Parameters
    ----------
    t
        The tilt, any number but zero, in units of one over the loss.
    sync
        Whether the normaliser is that of the batch over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: :math:`R_t`, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.2, 0.7, 1.5, 4.0])
    >>> print(round(float(TERM(t=0.5)(losses)), 6))
    2.202267
    >>> print(round(float(TERM(t=-1.0)(losses)), 6))
    0.943686

    Notes
    -----
    The normaliser makes a mini-batch gradient a biased estimate of the whole data's: see :class:`RGD` for the
    unbiased relative and :class:`TERMEma` for a normaliser averaged over batches. The authors' noisy-label script
    descends the mean of :math:`e^{t\ell}/t` without the logarithm; this is the objective of the paper. Computed by
    log-sum-exp, so that no loss overflows. References: Li, Beirami, Sanjabi, Smith, *Tilted Empirical Risk
    Minimization*, ICLR 2021; *On Tilted Losses in Machine Learning*, JMLR 2023.
    """

    t: float = 1.0
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"t": (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0)}
    cost: ClassVar[str] = "O(B); over ranks, two reductions of a few numbers"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.non_zero("t", self.t, "For the limit t=0, the plain mean, use Mean().")

    @property
    def separable(self) -> bool:
        """False: the normaliser is that of the batch."""
        return False

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The softmax of the tilted losses, times the number of units."""
        tilted = tilt(losses, self.t, measure, self.sync)
        xp = namespace(losses)
        weights = reusing(xp.multiply, tilted.powers, xp.exp(-tilted.log_mean))
        return Weighed(weights, (), tilted.centre + tilted.log_mean / self.t)
