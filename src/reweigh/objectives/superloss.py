"""SuperLoss: an automatic curriculum by a confidence for each unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, clip, namespace
from reweigh.objectives._base import Objective, State, Weighed, mean
from reweigh.objectives._measure import advance, batch_mean, moving_average

__all__ = ["SuperLoss"]

_HALLEY_STEPS = 4  # each triples the digits; the start has two


@dataclass(frozen=True, kw_only=True)
class SuperLoss(Objective):
    r"""SuperLoss: each unit's weight is the confidence that is best for its loss.

    .. math:: \min_{s > 0}\ (\ell - T)\, s + \lambda (\log s)^2 \qquad\Rightarrow\qquad
              w = s^* = \exp\!\Big(-W\big(\tfrac12 \max(-\tfrac2e, \tfrac{\ell - T}{\lambda})\big)\Big)

    W is the principal branch of Lambert's function, :math:`W(y)\, e^{W(y)} = y`. Units easier than :math:`T` count more
    than one, at most e; harder ones less.

    Parameters
    ----------
    T
        The loss at which the weight is one: a number, such as the logarithm of the number of classes, or `"ema"` for
        a running mean of the loss.
    lam
        The regularisation :math:`\lambda`, in units of the loss; large is the plain mean.
    rate
        The share of the current batch in the running mean, which the first batch sets. Only for `T="ema"`.
    sync
        Whether the running mean is over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean of :math:`(\ell - T)\, s^* + \lambda (\log s^*)^2`, with its own gradient at fixed T.

    Examples
    --------
    >>> import numpy as np
    >>> objective = SuperLoss(T=1.0, lam=0.5)
    >>> objective.weigh(np.array([0.0, 1.0, 1.0 + np.e]), ()).weights.round(4)  # W(-1/e) = -1, W(0) = 0, W(e) = 1
    array([2.7183, 1.    , 0.3679])

    Notes
    -----
    Where the maximum with :math:`-2/e` acts, the minimum over s is not attained and the weight stays at e, as in the
    paper. The running mean takes in the current batch before it is used. Lambert's function is computed by Halley's
    method in the array's own operations, on its device, where public ports go through SciPy. References: Castells,
    Weinzaepfel, Revaud, *SuperLoss: A Generic Loss for Robust Curriculum Learning*, NeurIPS 2020.
    """

    T: float | Literal["ema"] = "ema"
    lam: float = 1.0
    rate: float = 0.1
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"lam": (0.25, 1.0, 4.0)}
    cost: ClassVar[str] = "O(B); over ranks, with T='ema', one reduction of two numbers"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.T, str):
            validate.one_of("T", self.T, ("ema",), "Give a number or 'ema'.")
        else:
            validate.real("T", self.T, "Give a number or 'ema'.")
        validate.positive("lam", self.lam)
        validate.fraction("rate", self.rate, "It is the share of the current batch in the running mean.")

    @property
    def separable(self) -> bool:
        """Whether T is a number; a running mean takes in the batch."""
        return not isinstance(self.T, str)

    def init(self) -> State:
        """The running mean and a step counter, or nothing if T is a number."""
        if not isinstance(self.T, str):
            return ()
        return {"mean": np.zeros((), np.float32), "step": np.zeros((), np.int32)}

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The confidence of each unit."""
        threshold, following = self._threshold(losses, state, measure)
        excess = losses - threshold
        w = _lambert_w(0.5 * clip(excess / self.lam, -2.0 / math.e, None))
        weights = namespace(losses).exp(-w)
        return Weighed(weights, following, mean(excess * weights + self.lam * w * w, measure))

    def _threshold(self, losses: Array, state: State, measure: Array | None) -> tuple[Any, State]:
        if not isinstance(self.T, str):
            return self.T, ()
        average, amount = batch_mean(losses, measure, self.sync)
        average = moving_average(cast(state["mean"], losses.dtype), average, self.rate, state["step"] == 0)
        return average, advance(state, amount, mean=average)


def _lambert_w(y: Array) -> Array:
    """The principal branch of Lambert's function for `y >= -1/e`."""
    xp = namespace(y)
    # Below zero the series about the branch point, above it an approximation good to two per cent everywhere.
    p = xp.sqrt(clip(2.0 * (math.e * y + 1.0), 0.0, 2.0))  # from zero on the series is not used
    series = -1.0 + p * (1.0 - p * (1.0 / 3.0 - p * (11.0 / 72.0)))
    log = xp.log1p(clip(y, 0.0, None))
    w = xp.where(y < 0, series, log * (1.0 - xp.log1p(log) / (2.0 + log)))
    for _ in range(_HALLEY_STEPS):
        # Halley's step for w e^w = y, divided through by e^w, which would overflow first.
        error = w - y * xp.exp(-w)
        slope = clip(w + 1.0, 1e-6, None)
        w = w - error / (slope - 0.5 * (slope + 1.0) * error / slope)
    return w
