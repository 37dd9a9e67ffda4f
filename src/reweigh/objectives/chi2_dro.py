"""The worst case within a chi-square ball around the mini-batch, or with a chi-square penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, namespace
from reweigh.objectives._base import Objective, State, Weighed, mean
from reweigh.objectives._measure import amounts_of, chi2_ball, chi2_penalty, own_part, pool, positive_or_one

__all__ = ["Chi2DRO"]


@dataclass(frozen=True, kw_only=True)
class Chi2DRO(Objective):
    r"""Chi-square DRO: the largest mean loss over re-weightings of the batch, by radius or by price.

    .. math:: \sup_p \Big\{ \sum_i p_i \ell_i : D(p) \le \rho \Big\} \quad\text{or}\quad
              \sup_p \Big\{ \sum_i p_i \ell_i - \mathrm{reg} \cdot D(p) \Big\}, \qquad
              D(p) = \frac{1}{2B} \sum_i (B p_i - 1)^2

    Both are reached by weights :math:`w_i = B p_i \propto \max(\ell_i - \eta, 0)`. Where the ball is wide enough,
    :math:`1 + 2\rho \ge B / \text{number of maxima}`, all mass is spread evenly on the largest losses.

    Parameters
    ----------
    rho
        Radius of the ball; 1 unless `reg` is given.
    reg
        Price of the divergence, in units of the loss, instead of a radius or in addition to it: the
        supremum of the priced form over the ball.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the supremum, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.0, 1.0, 2.0, 3.0])
    >>> print(round(float(Chi2DRO(rho=0.1)(losses)), 6))  # mean + sqrt(2 rho variance), all weights positive
    2.0
    >>> print(round(float(Chi2DRO(reg=5.0)(losses)), 6))  # mean + variance / (2 reg)
    1.625
    >>> print(round(float(Chi2DRO(rho=0.01, reg=5.0)(losses)), 6))  # mean + sqrt(2 rho variance) - reg rho
    1.608114

    Notes
    -----
    The divergence carries the factor 1/2 of the authors' code. They search :math:`\eta` by bisection; here it is exact,
    from the sorted losses. References: Levy, Carmon, Duchi, Sidford, *Large-Scale Methods for Distributionally Robust
    Optimization*, NeurIPS 2020.
    """

    rho: float | None = None
    reg: float | None = None
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rho": (0.01, 0.1, 0.5, 1.0, 2.0)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.reg is not None:
            validate.positive("reg", self.reg)
        elif self.rho is None:
            object.__setattr__(self, "rho", 1.0)
        if self.rho is not None:
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
        if self.reg is None:
            return Weighed(own_part(chi2_ball(whole, amounts, self.rho), cut))
        density = chi2_penalty(whole, amounts, self.reg)
        if self.rho is not None:  # the price alone, unless that leaves the ball: then its surface is reached
            far = 0.5 * mean((density - 1.0) * (density - 1.0), amounts) > self.rho
            density = namespace(density).where(far, chi2_ball(whole, amounts, self.rho), density)
        known = amounts_of(whole, amounts)
        shares = density * (known / positive_or_one(known.sum()))  # first, or the largest losses would overflow
        price = 0.5 * self.reg * mean((density - 1.0) * (density - 1.0), amounts)
        return Weighed(own_part(density, cut), (), (shares * whole).sum() - price)
