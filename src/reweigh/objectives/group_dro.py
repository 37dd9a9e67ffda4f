"""Group DRO: the worst group, learned by exponentiated gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, is_array, namespace, segment_counts, segment_sum, sum_over_ranks
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import advance, group_index, group_number, positive_or_one, present

__all__ = ["GroupDRO"]


@dataclass(frozen=True, kw_only=True)
class GroupDRO(Objective):
    r"""Group DRO: a distribution over groups that moves towards those with the largest loss.

    .. math:: q_g \leftarrow \frac{q_g\, e^{\eta (R_g + C/\sqrt{n_g})}}{\sum_h q_h\, e^{\eta (R_h + C/\sqrt{n_h})}},
              \qquad \hat L = \sum_g q_g R_g

    :math:`R_g` is the mean loss of group g in the batch (zero if it has no unit there), :math:`q` starts uniform, and
    the weight of a unit is :math:`q_g` times the number of units over the number in its group.

    Parameters
    ----------
    n_groups
        The number of groups, which the data decides; `apply(..., groups=...)` gives each unit's, from 0.
    eta
        Step size of :math:`q`.
    adjustment
        The :math:`C` of the generalisation adjustment, which lifts small groups; needs `group_counts`.
    group_counts
        The number of training examples :math:`n_g` of each group.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean loss of the groups under :math:`q` after its update.

    Examples
    --------
    >>> import numpy as np
    >>> objective = GroupDRO(n_groups=2, eta=np.log(3.0).item())
    >>> loss, state = objective.apply(np.array([1.0, 1.0, 2.0]), objective.init(), groups=np.array([0, 0, 1]))
    >>> np.exp(state["log_q"]).round(6)  # 3 to 9
    array([0.25, 0.75])
    >>> print(round(float(loss), 6))
    1.75

    Notes
    -----
    As in the authors' code, a group that is missing from the batch counts as one of loss zero when :math:`q` moves;
    they pair the method with sampling that draws groups evenly. :math:`q` is kept as a logarithm, so that a group
    cannot be lost to underflow. References: Sagawa, Koh, Hashimoto, Liang, *Distributionally Robust Neural Networks
    for Group Shifts*, ICLR 2020.
    """

    n_groups: int | None = None
    eta: float = 0.01
    adjustment: float = 0.0
    group_counts: tuple[int, ...] | None = None
    sync: bool | str = True

    needs: ClassVar[tuple[str, ...]] = ("n_groups",)
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"eta": (0.001, 0.01, 0.1)}
    cost: ClassVar[str] = "O(B + groups); over ranks, one reduction of one number per group"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_groups is not None:
            validate.whole("n_groups", self.n_groups, 1)
        validate.positive("eta", self.eta)
        validate.non_negative("adjustment", self.adjustment)
        adjusted = is_array(self.adjustment) or self.adjustment != 0
        if self.group_counts is None:
            if adjusted:
                raise ValueError(
                    "`adjustment` needs `group_counts`, the number of training examples of each group, because small "
                    "groups are lifted more. Give both or neither."
                )
            return
        if not adjusted:
            raise ValueError("`group_counts` belongs to `adjustment`, which is 0. Give both or neither.")
        object.__setattr__(self, "group_counts", tuple(self.group_counts))
        if self.n_groups is not None and len(self.group_counts) != self.n_groups:
            raise ValueError(
                f"`group_counts` must have one number for each of the {self.n_groups} groups, got "
                f"{len(self.group_counts)}."
            )
        for count in self.group_counts:
            validate.whole("group_counts", count, 1)

    @property
    def separable(self) -> bool:
        """False: the weight of a group takes in its loss in the batch."""
        return False

    def init(self) -> State:
        """The logarithm of the distribution over groups, and a step counter."""
        size = group_number(self)
        uniform = np.full(size, -np.log(size), np.float32)
        return {"log_q": uniform, "step": np.zeros((), np.int32)}

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The probability of each unit's group over the group's share of the batch."""
        xp = namespace(losses)
        size = group_number(self)
        index = group_index(groups, measure, size)
        if measure is None:
            rows = [segment_sum(losses, index, size), segment_counts(index, size, losses)]
        else:
            rows = [
                segment_sum(measure * present(losses, measure, 0.0), index, size),
                segment_sum(measure, index, size),
            ]
        sums = xp.stack(rows)
        sums = sum_over_ranks(sums, self.sync)
        counts = positive_or_one(sums[1])
        log_q = cast(state["log_q"], losses.dtype) + self.eta * self._lifted(sums[0] / counts)
        log_q = log_q - log_q.max()
        log_q = log_q - xp.log(xp.exp(log_q).sum())
        amount = sums[1].sum()
        weights = (xp.exp(log_q) * amount / counts)[index]
        return Weighed(weights, advance(state, amount, log_q=log_q))

    def _lifted(self, group_losses: Array) -> Array:
        """The group losses with the adjustment for their number of training examples."""
        if self.group_counts is None:
            return group_losses
        xp = namespace(group_losses)
        lift = [self.adjustment / count**0.5 for count in self.group_counts]
        zero = xp.zeros_like(group_losses[0])
        return group_losses + xp.stack([zero + c for c in lift])
