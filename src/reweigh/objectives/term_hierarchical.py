"""Tilted empirical risk minimisation within groups and across them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import (
    Array,
    max_over_ranks,
    namespace,
    reusing,
    segment_counts,
    segment_max,
    segment_sum,
    sum_over_ranks,
)
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import group_index, group_number, positive_or_one, present, tilt

__all__ = ["TERMHierarchical"]


@dataclass(frozen=True, kw_only=True)
class TERMHierarchical(Objective):
    r"""Hierarchical TERM: one tilt within each group, another across the groups.

    .. math:: R_g = \frac{1}{t_{in}} \log \frac{1}{n_g} \sum_{i \in g} e^{t_{in} \ell_i}, \qquad
              R = \frac{1}{t_{out}} \log \sum_g \frac{n_g}{n} e^{t_{out} R_g}, \qquad
              w_i = e^{t_{out} (R_g - R)}\, e^{t_{in} (\ell_i - R_g)}

    A negative tilt within leaves out the outliers of each group, a positive one across lifts the worst group. Equal
    tilts are :class:`TERM`. Groups without a unit in the batch take no part.

    Parameters
    ----------
    n_groups
        The number of groups, which the data decides; `apply(..., groups=...)` gives each unit's, from 0.
    t_in, t_out
        The tilts within and across groups, any numbers but zero, in units of one over the loss.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: :math:`R`, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> objective = TERMHierarchical(n_groups=2, t_in=1.0, t_out=-1.0)
    >>> loss = objective(np.log([1.0, 3.0, 8.0]), groups=np.array([0, 0, 1]))  # group values log 2 and log 8
    >>> print(round(float(np.exp(-loss)), 6))  # 2/3 of 1/2 and 1/3 of 1/8
    0.375

    Notes
    -----
    Groups weigh by their number of units in the batch. The default tilts are ours, for outliers within groups of
    unequal difficulty. References: Li et al., *Tilted Empirical Risk Minimization*, ICLR 2021.
    """

    n_groups: int | None = None
    t_in: float = -1.0
    t_out: float = 1.0
    sync: bool | str = True

    needs: ClassVar[tuple[str, ...]] = ("n_groups",)
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"t_in": (-2.0, -1.0, -0.5), "t_out": (0.5, 1.0, 2.0, 5.0)}
    cost: ClassVar[str] = "O(B + groups); over ranks, two reductions of one number per group"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_groups is not None:
            validate.whole("n_groups", self.n_groups, 1)
        validate.non_zero("t_in", self.t_in)
        validate.non_zero("t_out", self.t_out)

    @property
    def separable(self) -> bool:
        """False: the normalisers are those of the batch."""
        return False

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit in its group times that of the group."""
        xp = namespace(losses)
        size = group_number(self)
        index = group_index(groups, measure, size)
        top = segment_max(present(self.t_in * losses, measure, -math.inf), index, size)
        top = max_over_ranks(top, self.sync)
        centre = xp.where(top > -math.inf, top, 0.0) / self.t_in
        exponents = reusing(xp.multiply, losses - centre[index], self.t_in)
        powers = reusing(xp.exp, present(exponents, measure, 0.0))
        if measure is None:
            rows = [segment_sum(powers, index, size), segment_counts(index, size, losses)]
        else:
            rows = [segment_sum(measure * powers, index, size), segment_sum(measure, index, size)]
        sums = xp.stack(rows)
        sums = sum_over_ranks(sums, self.sync)
        log_mean = xp.log(positive_or_one(sums[0] / positive_or_one(sums[1])))
        across = tilt(centre + log_mean / self.t_in, self.t_out, sums[1], sync=False)
        of_group = across.powers * xp.exp(-across.log_mean - log_mean)
        weights = reusing(xp.multiply, powers, of_group[index])
        return Weighed(weights, (), across.centre + across.log_mean / self.t_out)
