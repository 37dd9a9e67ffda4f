"""RGD with a clip level that follows the losses: our own extension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, clip, namespace
from reweigh.objectives._base import Objective, State, Weighed, warn_if_mostly_negative
from reweigh.objectives._measure import (
    advance,
    amount_of,
    batch_mean,
    measured_quantile,
    moving_average,
    pool,
    positive_or_one,
)

__all__ = ["RGDAuto"]

_SMALLEST = 1e-6  # a clip level of zero would divide by zero once every loss has vanished


@dataclass(frozen=True, kw_only=True)
class RGDAuto(Objective):
    r"""RGD whose clip level is a running quantile of the loss. Our own extension, not in the paper.

    .. math:: w_i = \exp\!\big(\gamma\, \mathrm{clip}(\ell_i, 0, q)/q\big), \qquad
              q \leftarrow (1-r)\, q + r\, Q_{0.9}(\ell)

    Weights lie in :math:`[1, e^\gamma]` and use that whole range at every stage of training: multiplying all losses by
    a number changes nothing. A fixed `tau` clips every unit while losses are large and none once they are small.

    Parameters
    ----------
    gamma
        The exponent at the clip level; a negative value turns the emphasis round.
    quantile
        Which quantile of the loss the clip level follows, in (0, 1].
    rate
        The share :math:`r` of the current batch in the running quantile.
    normalize
        `"mean"` divides the weights by their batch mean, so that the learning rate keeps its meaning.
    sync
        Whether the quantile, and the mean of `normalize`, are over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar. It is a surrogate: log and compare the plain mean.

    Examples
    --------
    >>> import numpy as np
    >>> objective = RGDAuto()
    >>> losses = np.array([0.0, 1.0, 2.0, 4.0])
    >>> weighed = objective.weigh(losses, objective.init())  # the first batch sets q = 4
    >>> weighed.weights.round(4)
    array([1.    , 1.284 , 1.6487, 2.7183])

    Notes
    -----
    A step uses the level from before its own update, except the first, which has none: so the weights of a step are
    fixed functions of each loss, as in RGD. Where a quantile falls between two losses it is their middle. The level is
    at least 1e-6. References: Kumar et al., *Stochastic Re-weighted Gradient Descent via Distributionally Robust
    Optimization*, TMLR 2024, for the weight that this one adapts.
    """

    gamma: float = 1.0
    quantile: float = 0.9
    rate: float = 0.05
    normalize: Literal["mean"] | None = None
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"gamma": (0.5, 1.0), "quantile": (0.5, 0.75, 0.9)}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.real("gamma", self.gamma)
        validate.fraction("quantile", self.quantile, "It is the share of units below the clip level.")
        validate.fraction("rate", self.rate, "It is the share of the current batch in the running quantile.")
        validate.one_of("normalize", self.normalize, (None, "mean"))

    @property
    def separable(self) -> bool:
        """False: the first batch sets the clip level, and every call moves it."""
        return False

    def init(self) -> State:
        """The clip level and a step counter."""
        return {"q": np.zeros((), np.float32), "step": np.zeros((), np.int32)}

    def warn(self, losses: Array, measure: Array | None) -> None:
        """Say where most losses are below zero."""
        warn_if_mostly_negative(losses, 0.0, measure)

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit at the clip level from before this batch."""
        xp = namespace(losses)
        first = state["step"] == 0
        whole, amounts, _ = pool(losses, measure, self.sync)
        current = clip(measured_quantile(whole, amounts, self.quantile), _SMALLEST, None)
        old = cast(state["q"], losses.dtype)
        weights = xp.exp(self.gamma * xp.clip(losses / xp.where(first, current, old), 0.0, 1.0))
        if self.normalize:
            weights = weights / positive_or_one(batch_mean(weights, measure, self.sync)[0])
        level = clip(moving_average(old, current, self.rate, first), _SMALLEST, None)
        return Weighed(weights, advance(state, amount_of(whole, amounts), q=level))
