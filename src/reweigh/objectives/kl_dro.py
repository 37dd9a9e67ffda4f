"""The worst case within a KL ball around the mini-batch, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, cast, choose, clip, dot, namespace, repeat, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import own_part, pool, positive_or_one

__all__ = ["KLDRO"]

# Half a dozen steps do for most batches; plateaus of the divergence, between losses of many scales, take more.
_MOST_STEPS = 40
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
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

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
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rho": (0.01, 0.05, 0.1, 0.5, 1.0)}
    cost: ClassVar[str] = "O(B), some 6 passes over the losses; over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

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
        return Weighed(own_part(_worst_case(whole, amounts, self.rho), cut))


def _worst_case(losses: Array, amounts: Array | None, rho: Any) -> Array:
    """The density of the worst distribution in the ball with respect to the batch."""
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses
    share = xp.full_like(losses, 1.0 / losses.shape[0]) if amounts is None else amounts / positive_or_one(amounts.sum())
    top = losses.max()
    # Losses from -1 to 0, so that one range of scales serves every batch.
    unit = reusing(xp.divide, losses - top, positive_or_one(top - losses.min()))
    maxima = cast(losses == top, losses.dtype)
    hardest = positive_or_one((share * maxima).sum())

    def spread() -> Array:
        scale = xp.exp(_log_scale(unit, share, xp.zeros_like(top) + rho))
        powers = reusing(xp.exp, reusing(xp.multiply, unit, scale))
        return reusing(xp.divide, powers, positive_or_one(dot(share, powers)))

    return choose(rho >= -xp.log(hardest), lambda: maxima / hardest, spread)


def _log_scale(unit: Array, share: Array, rho: Array) -> Array:
    """The logarithm of the scale at which the density proportional to `exp(scale · unit)` has the divergence `rho`.

    By Newton's method on logarithms of both, which are proportional while the scale is small; a step that would leave
    the bracket halves it instead.
    """
    xp = namespace(unit)
    square = unit * unit
    mean = (share * unit).sum()
    variance = (share * square).sum() - mean * mean
    # Of losses within one unit the divergence is at most scale²/8, which bounds the scale from below.
    low = 0.5 * xp.log(8.0 * rho)
    high = xp.zeros_like(low) + _LARGEST_LOG_SCALE
    tiny = float(xp.finfo(unit.dtype).tiny)
    near = float(xp.finfo(unit.dtype).eps) ** 0.5  # the step after one as short as this is a rounding error

    def step(_: Array, low: Array, high: Array, log_scale: Array) -> tuple[Array, ...]:
        scale = xp.exp(log_scale)
        worst = reusing(xp.multiply, reusing(xp.exp, scale * unit), share)
        normaliser = positive_or_one(worst.sum())
        mean = dot(worst, unit) / normaliser
        divergence = clip(scale * mean - xp.log(normaliser), tiny, None)
        slope = scale * scale * (dot(worst, square) / normaliser - mean * mean)
        too_far = divergence > rho
        low, high = xp.where(too_far, low, log_scale), xp.where(too_far, log_scale, high)
        following = log_scale + xp.log(rho / divergence) * divergence / positive_or_one(slope)
        inside = (following >= low) & (following <= high) & (slope > 0)
        done = (inside & (abs(following - log_scale) < near)) | (high - low < near * near)
        return done, low, high, xp.where(inside, following, 0.5 * (low + high))

    start = clip(0.5 * xp.log(2.0 * rho / clip(variance, tiny, None)), low, high)
    return repeat(step, (rho < 0, low, high, start), _MOST_STEPS)[-1]
