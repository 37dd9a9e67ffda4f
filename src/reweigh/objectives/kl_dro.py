"""The worst case within a KL ball around the mini-batch, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, cast, clip, namespace
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import pool, positive_or_one

__all__ = ["KLDRO"]

# Halvings that bring the logarithm of the scale to 1e-4, and Newton steps that take it to the last digit.
_HALVINGS = 20
_NEWTON_STEPS = 3
# The largest logarithm of the scale that is looked at: beyond it two losses differ by less than any float can tell.
_LARGEST_LOG_SCALE = 70.0


@dataclass(frozen=True, kw_only=True)
class KLDRO(Objective):
    r"""KL-constrained DRO: the largest mean loss over all re-weightings of the batch within a KL ball.

    .. math:: \sup_p \Big\{ \sum_i p_i \ell_i : \sum_i p_i \log (B p_i) \le \rho \Big\}, \qquad
              p_i \propto e^{\ell_i/\beta}, \qquad w_i = B p_i

    :math:`\beta` is the one temperature at which the constraint is met, and the value equals the dual
    :math:`\inf_{\beta > 0} \beta \log \frac1B \sum_i e^{\ell_i/\beta} + \beta \rho`. Where the ball is wide enough to
    hold it, :math:`\rho \ge \log(B / \text{number of maxima})`, all mass is spread evenly on the largest losses.

    Parameters
    ----------
    rho
        Radius of the ball, in nats.
    sync
        Whether the batch is the one over all data-parallel ranks.

    Returns
    -------
    Array
        A scalar: the worst-case mean loss, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.2, 0.7, 1.5, 4.0])
    >>> print(round(float(KLDRO(rho=0.1)(losses)), 6))
    2.284045
    >>> print(float(KLDRO(rho=2.0)(losses)))  # log 4 = 1.39: all mass on the largest
    4.0

    Notes
    -----
    The estimator of Levy et al. with the KL divergence: the inner problem is solved on the batch, so its expectation
    lies below the worst case of the whole data, by less the larger the batch. Solved by a fixed number of halvings
    and Newton steps on the logarithm of :math:`1/\beta`, which traces and compiles. References: Hu and Hong,
    *Kullback-Leibler Divergence Constrained Distributionally Robust Optimization*, 2013; Levy, Carmon, Duchi, Sidford,
    *Large-Scale Methods for Distributionally Robust Optimization*, NeurIPS 2020.
    """

    rho: float = 0.5
    sync: bool = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rho": (0.01, 0.05, 0.1, 0.5, 1.0)}
    cost: ClassVar[str] = "O(B), some 25 passes over the losses; over ranks, the losses are gathered"

    def __post_init__(self) -> None:
        validate.positive("rho", self.rho, "A radius of zero is the plain mean: use Mean().")

    @property
    def separable(self) -> bool:
        """False: the worst case is that of the batch."""
        return False

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The worst-case probability of each unit, times the number of units."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        return Weighed(cut(_worst_case(whole, amounts, self.rho)))


def _worst_case(losses: Array, amounts: Array, rho: Any) -> Array:
    """The density of the worst distribution in the ball with respect to the batch."""
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    share = amounts / positive_or_one(amounts.sum())
    top = losses.max()
    # Losses from -1 to 0, so that one range of scales serves every batch.
    unit = (losses - top) / positive_or_one(top - losses.min())
    log_ratio = _solve(unit, share, xp.zeros_like(top) + rho)
    maxima = cast(losses == top, losses.dtype)
    hardest = positive_or_one((share * maxima).sum())
    return xp.where(rho >= -xp.log(hardest), maxima / hardest, xp.exp(log_ratio))


def _solve(unit: Array, share: Array, rho: Array) -> Array:
    """The logarithm of the density proportional to `exp(scale · unit)` whose divergence is `rho`."""
    xp = namespace(unit)
    # Of losses within one unit the divergence is at most scale²/8, which bounds the scale from below.
    low = 0.5 * xp.log(8.0 * rho)
    high = xp.zeros_like(low) + _LARGEST_LOG_SCALE
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        too_far = _divergence(_log_ratio(unit, share, middle), share) > rho
        low, high = xp.where(too_far, low, middle), xp.where(too_far, middle, high)
    log_scale = 0.5 * (low + high)
    for _ in range(_NEWTON_STEPS):
        log_ratio = _log_ratio(unit, share, log_scale)
        divergence = _divergence(log_ratio, share)
        worst = share * xp.exp(log_ratio)
        slope = (worst * (log_ratio - divergence) * (log_ratio - divergence)).sum()
        log_scale = clip(log_scale + (rho - divergence) / positive_or_one(slope), low, high)
    return _log_ratio(unit, share, log_scale)


def _log_ratio(unit: Array, share: Array, log_scale: Array) -> Array:
    xp = namespace(unit)
    exponents = xp.exp(log_scale) * unit
    return exponents - xp.log(positive_or_one((share * xp.exp(exponents)).sum()))


def _divergence(log_ratio: Array, share: Array) -> Array:
    return (share * namespace(log_ratio).exp(log_ratio) * log_ratio).sum()
