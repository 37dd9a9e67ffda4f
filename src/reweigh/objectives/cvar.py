"""Conditional value at risk: the mean of the hardest fraction of the batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, argsort, clip, is_array, log_cumsum_exp, namespace, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import amount_of, amounts_of, own_part, pool, positive_or_one, top_share

__all__ = ["CVaR"]


@dataclass(frozen=True, kw_only=True)
class CVaR(Objective):
    r"""Conditional value at risk: the mean loss of the hardest fraction alpha of the batch.

    .. math:: \sup_p \Big\{ \sum_i p_i \ell_i : p_i \le \frac{1}{\alpha B} \Big\}, \qquad w_i = B p_i

    The :math:`\lfloor \alpha B \rfloor` hardest units weigh :math:`1/\alpha`, the next one takes the mass that is left,
    all others weigh nothing. With a price on the divergence from the batch it is smooth,

    .. math:: \sup_p \Big\{ \sum_i p_i \ell_i - \mathrm{reg} \sum_i p_i \log (B p_i) :
              p_i \le \frac{1}{\alpha B} \Big\}, \qquad w_i = \min\big(e^{(\ell_i - \eta)/\mathrm{reg}},\, 1/\alpha\big)

    with :math:`\eta` such that weights have mean one.

    Parameters
    ----------
    alpha
        The fraction of the batch, in (0, 1]; one is the plain mean.
    reg
        Price of the KL divergence, in units of the loss; None for none. Small ones come near the plain form, large ones
        near the mean.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the supremum, with its own gradient. Without a price it is the mean loss of the hardest fraction.

    Examples
    --------
    >>> import numpy as np
    >>> print(round(float(CVaR(alpha=0.375)(np.array([0.2, 0.7, 1.5, 4.0]))), 6))  # (4 + 1.5/2) / 1.5
    3.166667
    >>> print(CVaR(alpha=0.5, reg=1.0).weigh(np.array([0.2, 0.7, 1.5, 4.0]), ()).weights.round(3))
    [0.317 0.522 1.162 2.   ]

    Notes
    -----
    Units that tie at the boundary share the mass that is left, so that their order does not matter; the authors give it
    to whichever sorts first. The value is the same. With a price, they search :math:`\eta` by bisection; here it is
    exact, from the sorted losses. References: Rockafellar and Uryasev, *Optimization of Conditional Value-at-Risk*,
    2000; Levy, Carmon, Duchi, Sidford, *Large-Scale Methods for Distributionally Robust Optimization*, NeurIPS
    2020.
    """

    alpha: float = 0.1
    reg: float | None = None
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"alpha": (0.1, 0.2, 0.5, 0.8)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("alpha", self.alpha, "It is the fraction of the batch that counts.")
        if self.reg is not None:
            validate.positive("reg", self.reg, "Without a price leave it out.")

    @property
    def separable(self) -> bool:
        """False: which units are the hardest depends on the batch."""
        return False

    @functools.cached_property
    def bounded(self) -> bool:
        """Without a price losses are only compared."""
        return self.reg is None

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """One over alpha for the hardest units; with a price, exponential in the loss up to there."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        if self.reg is not None:
            density, value = _priced(whole, amounts, self.alpha, self.reg)
            return Weighed(own_part(density, cut), (), value)
        parts = top_share(whole, amounts, self.alpha * amount_of(whole, amounts))
        return Weighed(own_part(reusing(namespace(parts).divide, parts, self.alpha), cut))


def _priced(losses: Array, amounts: Array | None, alpha: Any, reg: Any) -> tuple[Array, Array]:
    r"""The density :math:`\min(e^{(\ell - \eta)/\mathrm{reg}}, 1/\alpha)` with mean one, and the supremum it reaches.

    Were the k hardest units at the cap, and no other, the logarithm of the rest's scale would follow from what mass is
    left. A wrong k leaves too little for the rest, so the largest of these scales is the one.
    """
    xp = namespace(losses)
    if not losses.shape[0]:
        return losses, losses.sum()
    known: Any = amounts_of(losses, amounts)
    share = known / positive_or_one(known.sum())
    cap = -xp.log(xp.zeros_like(losses.max()) + alpha)
    tiny, lowest = float(xp.finfo(losses.dtype).tiny), 0.1 * float(xp.finfo(losses.dtype).min)
    # Before dividing: what is further down than this has no weight, and would overflow.
    lowest = lowest * (clip(reg, None, 1.0) if is_array(reg) else min(reg, 1.0))
    scaled = clip(losses - losses.max(), lowest, None) / reg
    order = argsort(-scaled)
    ordered, shares = scaled[order], share[order]
    rest = xp.flip(log_cumsum_exp(xp.flip(ordered + xp.log(clip(shares, tiny, None)), (0,))), (0,))
    room = 1.0 - (xp.cumsum(shares, 0) - shares) / alpha
    scale = xp.where(room > 0, xp.log(clip(room, tiny, None)) - rest, -math.inf).max()
    # Once more for the units that this leaves below the cap, in units of their own largest: large losses over a small
    # price have lost the digits that the difference to the scale consists of.
    at_cap = scaled + scale >= cap
    top = xp.where(at_cap, losses.min(), losses).max()
    powers = xp.where(at_cap, 0.0, xp.exp(clip(losses - top, lowest, 0.0) / reg))
    left = clip(1.0 - xp.where(at_cap, share, 0.0).sum() / alpha, 0.0, None)
    below = clip(powers * (left / positive_or_one((share * powers).sum())), None, 1.0 / alpha)
    density = xp.where(at_cap, 1.0 / alpha, below)
    divergence = (share * density * xp.log(clip(density, tiny, None))).sum()
    return density, (share * density * losses).sum() - reg * divergence
