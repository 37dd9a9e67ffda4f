"""Distributionally and outlier robust optimisation: DRO on the batch without its largest losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from reweigh import _validate as validate
from reweigh._array import Array, namespace, reusing
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import amount_of, chi2_ball, hide_absent, own_part, pool, top_share

__all__ = ["DORO"]


@dataclass(frozen=True, kw_only=True)
class DORO(Objective):
    r"""DORO: drop the largest losses of the batch as outliers, then take the worst case of the rest.

    .. math:: \sup_p \Big\{ \sum_{i \in K} p_i \ell_i : D(p) \le \rho_\alpha \Big\}, \qquad
              K = \text{all but the hardest fraction } \varepsilon

    With `"cvar"` the worst case is the mean of the hardest fraction :math:`\alpha` of what is kept; with `"chi2"` it
    is that of the chi-square ball of radius :math:`\rho_\alpha = \frac12 (1/\alpha - 1)^2` (:class:`Chi2DRO`).

    Parameters
    ----------
    eps
        The fraction of the batch that is dropped, in [0, 1).
    alpha
        The fraction of the rest that the worst case is about, in (0, 1].
    divergence
        `"cvar"` or `"chi2"`.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the worst-case mean loss of what is kept, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.1, 0.2, 0.4, 1.0, 2.0, 3.0, 5.0, 90.0])
    >>> print(round(float(DORO(eps=0.125, alpha=2/7)(losses)), 6))  # drops 90, then (5 + 3) / 2
    4.0

    Notes
    -----
    The authors round the two numbers of units down, and divide by :math:`\alpha (B - \lfloor\varepsilon B\rfloor)`,
    so that their weights need not sum to the number of units; here the unit at either boundary counts in part, units
    that tie there share, and weights have mean one. Their chi-square form searches its threshold by Brent's method and
    bounds the second moment by :math:`1 + (1/\alpha - 1)^2`, which is the ball here; ours is exact. The default
    fractions are ours; theirs for CelebA are 0.005 and 0.2. References: Zhai, Dan, Kolter, Ravikumar, *DORO:
    Distributional and Outlier Robust Optimization*, ICML 2021.
    """

    eps: float = 0.05
    alpha: float = 0.2
    divergence: Literal["cvar", "chi2"] = "cvar"
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"eps": (0.01, 0.05, 0.1, 0.2), "alpha": (0.1, 0.2, 0.5)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.fraction("eps", self.eps, "It is the fraction of the batch to drop.", zero=True, one=False)
        validate.fraction("alpha", self.alpha, "It is the fraction of the rest that counts.")
        validate.one_of("divergence", self.divergence, ("cvar", "chi2"))

    @property
    def separable(self) -> bool:
        """False: which units are dropped depends on the batch."""
        return False

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """Nothing for the dropped units, the worst-case density of the rest."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        amount = amount_of(whole, amounts)
        dropped = top_share(whole, amounts, self.eps * amount)
        kept = 1.0 - self.eps
        if self.divergence == "cvar":  # the hardest share with the dropped units, less these
            xp = namespace(whole)
            parts = reusing(xp.subtract, top_share(whole, amounts, (self.eps + self.alpha * kept) * amount), dropped)
            return Weighed(own_part(reusing(xp.divide, parts, self.alpha * kept), cut))
        part = 1.0 - dropped
        rest = part if amounts is None else amounts * part
        density = chi2_ball(hide_absent(whole, rest), rest, 0.5 * (1.0 / self.alpha - 1.0) ** 2)
        return Weighed(own_part(part * density / kept, cut))
