"""Attentional-biased SGD: exponential weights over a running normaliser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import advance, log_moving_average, tilt

__all__ = ["ABSGD"]


@dataclass(frozen=True, kw_only=True)
class ABSGD(Objective):
    r"""Attentional-biased stochastic gradient descent: KL-regularised DRO with a moving average.

    .. math:: u \leftarrow (1-a)\, u + a\, \frac1B \sum_i e^{\ell_i/\lambda}, \qquad
              w_i = e^{\ell_i/\lambda} / u, \qquad \hat L = \frac1B \sum_i \mathrm{sg}(w_i)\, \ell_i

    Parameters
    ----------
    lam
        The temperature :math:`\lambda`, in units of the loss, any number but zero. Large is the plain mean; negative
        turns the emphasis round, the authors' mode for noisy labels.
    rate
        The share :math:`a` of the current batch in the moving average.
    sync
        Whether the mean in :math:`u` is that of the batch over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean of :math:`w\,\ell`, as the authors report it.

    Examples
    --------
    >>> import numpy as np
    >>> objective = ABSGD(lam=1.0)
    >>> loss, state = objective.apply(np.log([1.0, 3.0]), objective.init())  # u = 2, weights 1/2 and 3/2
    >>> print(round(float(loss), 6))
    0.823959
    >>> print(round(float(np.exp(state["log_u"])), 6))
    2.0

    Notes
    -----
    The authors start :math:`u` at zero and multiply the batch mean by 1/2, which inflates the first weights; here the
    first batch sets :math:`u`, with factor one. They switch to the plain mean at :math:`\lambda \ge 200` and add one
    to every weight when :math:`\lambda < 0`; neither is done here. Their two-stage schedule is a change of objective
    between epochs. :math:`u` is kept as a logarithm, so no loss overflows it. The momentum of 0.9 is the optimiser's.
    References: Qi, Xu, Yin, Jin, Yang, *Attentional-Biased Stochastic Gradient Descent*, TMLR 2023.
    """

    lam: float = 5.0
    rate: float = 0.5
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lam": (1.0, 3.0, 5.0, 7.0), "rate": (0.25, 0.5, 0.75)}
    cost: ClassVar[str] = "O(B); over ranks, two reductions of a few numbers"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.non_zero("lam", self.lam, "A large value is the plain mean, a negative one favours easy units.")
        validate.fraction("rate", self.rate, "It is the share of the current batch in the moving average.")

    @property
    def separable(self) -> bool:
        """False: the normaliser takes in the batch."""
        return False

    def init(self) -> State:
        """The logarithm of `u`, and a step counter."""
        return {"log_u": np.zeros((), np.float32), "step": np.zeros((), np.int32)}

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The exponential of each loss over the moving average."""
        t = 1.0 / self.lam
        tilted = tilt(losses, t, measure, self.sync)
        log_mean = t * tilted.centre + tilted.log_mean
        log_u = log_moving_average(cast(state["log_u"], losses.dtype), log_mean, self.rate, state["step"] == 0)
        return Weighed(tilted.over(t, log_u), advance(state, tilted.amount, log_u=log_u))
