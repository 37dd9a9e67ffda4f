"""Exponential weights of losses scaled to the batch's range and capped at its middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, clip, namespace
from reweigh.objectives._base import Objective, State, Weighed
from reweigh.objectives._measure import advance, amounts_of, largest, own_part, pool, positive_or_one

__all__ = ["LinUpper"]

#: The authors' smallest range: equal losses have none, and then equal weights.
_SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class LinUpper(Objective):
    r"""Weights that grow with the loss up to the middle of the batch's range, and are level from there on.

    .. math:: h_i = \delta\,\frac{2\ell_i - \ell_{\max} - \ell_{\min}}{\ell_{\max} - \ell_{\min}}, \qquad
              w_i = B \cdot \mathrm{softmax}_i\big(\min(h + \delta, \delta) / r\big)

    The nearest relative of RGD with published runs of 7 billion parameters: easy units count less, hard ones are not
    distinguished from very hard ones.

    Parameters
    ----------
    delta
        Half the length of the interval that the losses are scaled to; also the cap.
    r
        The temperature; large ones give back the plain mean.
    warmup
        Steps of the plain mean before re-weighting starts.
    sync
        Whether the batch is the one over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the weighted mean.

    Examples
    --------
    >>> import numpy as np
    >>> weights = LinUpper().weigh(np.array([0.0, 1.0, 3.0, 4.0]), ()).weights
    >>> print(weights.round(3))  # the scaled losses are 0, 0.5, 1 and 1
    [0.495 0.816 1.345 1.345]

    Notes
    -----
    Follows the authors' code: delta 1, r 1 unless set, losses gathered over devices, and plain training before
    `burnout_steps` (1000), which is `warmup` here and off unless given. Departure: their units are sequences, whose
    losses they also multiply by the share of the batch's tokens that each has; here that is `sample_weight`.
    References: Sow et al., *Dynamic Loss-Based Sample Reweighting for Improved Large Language Model Pretraining*,
    ICLR 2025.
    """

    delta: float = 1.0
    r: float = 1.0
    warmup: int = 0
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"r": (0.4, 1.0, 2.0)}
    cost: ClassVar[str] = "O(B); over ranks, the losses are gathered"

    def __post_init__(self) -> None:
        validate.positive("delta", self.delta)
        validate.positive("r", self.r)
        validate.whole("warmup", self.warmup, 0)

    @property
    def separable(self) -> bool:
        """False: the range is the batch's."""
        return False

    def init(self) -> State:
        """A step counter during warm-up, otherwise nothing."""
        return {"step": np.zeros((), np.int32)} if self.warmup else ()

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The softmax of scaled and capped losses, with mean one."""
        whole, amounts, cut = pool(losses, measure, self.sync)
        xp = namespace(whole)
        known: Any = amounts_of(whole, amounts)
        top = largest(whole)
        # Units that do not count have the hardest loss of those that do, so no minimum is theirs.
        low = -largest(-whole)
        scaled = self.delta * (2.0 * whole - top - low) / clip(top - low, _SMALLEST, None)
        # Less the cap: the exponent is at most zero.
        odds = xp.exp((xp.minimum(scaled + self.delta, self.delta + 0.0 * scaled) - self.delta) / self.r)
        weights = own_part(odds * (known.sum() / positive_or_one((odds * known).sum())), cut)
        if not self.warmup:
            return Weighed(weights)
        weights = xp.where(state["step"] < self.warmup, 1.0 + 0.0 * weights, weights)
        return Weighed(weights, advance(state, known.sum()))
