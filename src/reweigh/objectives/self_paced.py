"""Self-paced learning: easy units first, harder ones later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, choose, clip, is_array, namespace
from reweigh.objectives._base import Objective, State, Weighed, mean
from reweigh.objectives._measure import advance, amount_of, measured_quantile, pool

__all__ = ["SelfPaced"]

_SMALLEST, _LARGEST = 1e-6, 1e30  # a threshold of zero would never admit anything; an infinite one is not a number


@dataclass(frozen=True, kw_only=True)
class SelfPaced(Objective):
    r"""Self-paced learning: units count while their loss is below a threshold that grows.

    .. math:: w = \mathbf 1[\ell \le K] \quad\text{(hard)}, \qquad w = \max(0,\, 1 - \ell/K) \quad\text{(linear)}

    :math:`K` is the median loss of the first batch, and is multiplied by `growth` after every `every` steps.

    Parameters
    ----------
    growth
        The factor of the threshold, above one.
    every
        Steps between two raises; the number of steps in an epoch, usually.
    soft
        `"linear"` for the linear weight, `None` for the hard one.
    sync
        Whether the median is over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

    Returns
    -------
    Array
        A scalar: the mean of the integral of the weight, :math:`\min(\ell, K)` for the hard one, with its own gradient.

    Examples
    --------
    >>> import numpy as np
    >>> objective = SelfPaced(growth=2.0, every=1)
    >>> losses = np.array([1.0, 2.0, 3.0, 6.0])
    >>> loss, state = objective.apply(losses, objective.init())  # K = 2.5 admits two
    >>> print(float(loss), float(state["K"]))
    2.0 5.0

    Notes
    -----
    The mean divides by all units, not by those admitted. At :math:`\ell = K` either weight is optimal; this one admits
    the unit, so that a batch of equal losses is not left out. Losses are taken to be non-negative: a threshold below
    1e-6 is raised to that, and the linear weight is at most one. References: Kumar, Packer, Koller, *Self-Paced
    Learning for Latent Variable Models*, NIPS 2010; Jiang et al., *Easy Samples First*, ACM MM 2014 (linear).
    """

    growth: float = 1.1
    every: int = 100
    soft: Literal["linear"] | None = None
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"growth": (1.1, 1.2, 1.3), "soft": (None, "linear")}
    cost: ClassVar[str] = "O(B log B); over ranks, the losses are gathered"
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive("growth", self.growth)
        if not is_array(self.growth) and self.growth <= 1:
            raise ValueError(
                f"`growth` must be a number above 1, got {self.growth!r}. Otherwise hard units would never be admitted."
            )
        validate.whole("every", self.every, 1)
        validate.one_of("soft", self.soft, (None, "linear"))

    @property
    def separable(self) -> bool:
        """False: the first batch sets the threshold, and every call takes it one step on."""
        return False

    def init(self) -> State:
        """The threshold and a step counter."""
        return {"K": np.zeros((), np.float32), "step": np.zeros((), np.int32)}

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit at the current threshold."""
        plain = (
            isinstance(losses, np.ndarray) and measure is None and losses.shape[0] and not isinstance(self.sync, str)
        )
        if plain and self.made_of_numbers and state["step"] > 0:  # numbers, and so no axis of a mesh
            return self._weigh_quickly(losses, state)
        xp = namespace(losses)
        whole, amounts, _ = pool(losses, measure, self.sync)
        threshold = choose(
            state["step"] == 0,
            lambda: clip(measured_quantile(whole, amounts, 0.5), _SMALLEST, None),
            lambda: cast(state["K"], losses.dtype),
        )
        below = xp.minimum(losses, threshold)
        if self.soft is None:
            weights = cast(losses <= threshold, losses.dtype)
            integral = below
        else:
            weights = xp.clip(1.0 - losses / threshold, 0.0, 1.0)
            integral = below - 0.5 * clip(below, 0.0, None) * (clip(below, 0.0, None) / threshold)
        raised = (state["step"] + 1) % self.every == 0
        following = xp.where(raised, clip(threshold, None, _LARGEST / self.growth) * self.growth, threshold)
        return Weighed(weights, advance(state, amount_of(whole, amounts), K=following), mean(integral, measure))

    def _weigh_quickly(self, losses: Array, state: State) -> Weighed:
        """The same for a plain vector of NumPy after the first batch, in its fewest steps."""
        threshold = losses.dtype.type(state["K"])
        below = np.minimum(losses, threshold)
        if self.soft is None:
            weights = (losses <= threshold).astype(losses.dtype)
            value = np.add.reduce(below)
        else:
            weights = np.minimum(np.maximum(1.0 - losses / threshold, 0.0), 1.0)
            positive = np.maximum(below, 0.0)
            value = np.add.reduce(below - 0.5 * positive * (positive / threshold))
        step = state["step"] + 1
        following = state["K"].copy()
        if step % self.every == 0:
            following = np.asarray(min(threshold, _LARGEST / self.growth) * self.growth, following.dtype)
        return Weighed(weights, {"K": following, "step": step}, value / losses.dtype.type(losses.shape[0]))
