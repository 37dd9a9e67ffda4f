"""RGD that lets go of the hardest units: our own extension."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reweigh import _validate as validate
from reweigh._array import Array, cast, clip, is_array, namespace, widen
from reweigh.objectives._base import Objective, State, Weighed, mean, warn_if_mostly_negative
from reweigh.weights import KL

__all__ = ["Redescending"]


@dataclass(frozen=True, kw_only=True)
class Redescending(Objective):
    r"""RGD whose weight falls again beyond the clip level. Our own extension, not in the paper.

    .. math:: w = \exp\!\Big(\frac{\mathrm{clip}(\ell, 0, \tau)}{\tau+1}\Big) \cdot
              \begin{cases} 1 & \ell \le \tau \\ (\tau/\ell)^k & \ell > \tau \end{cases}

    The weight rises up to `tau` and falls beyond it, on purpose: with mislabelled data the largest losses are wrong
    labels rather than hard units. It is the derivative of :math:`\Phi`, which is that of RGD up to `tau` and beyond it,
    with :math:`k = 1`,

    .. math:: \Phi(\ell) = \Phi(\tau) + w_{max}\, \tau \log(\ell/\tau)

    so a unit far out pulls with the gradient of the logarithm of its loss.

    Parameters
    ----------
    tau
        The loss with the largest weight.
    power
        How fast the weight falls beyond it: the exponent :math:`k`; zero is :class:`RGD`.
    surrogate
        Return the mean of Phi, whose gradient is the same, whose value is the objective's own and whose second
        derivative includes that of the weight.

    Returns
    -------
    Array
        A scalar. It is a surrogate: log and compare the plain mean.

    Examples
    --------
    >>> import numpy as np
    >>> Redescending(tau=1.0).weigh(np.array([0.0, 0.5, 1.0, 2.0, 10.0]), ()).weights.round(4)
    array([1.    , 1.284 , 1.6487, 0.8244, 0.1649])

    Notes
    -----
    Phi is not convex in the loss beyond `tau`: start from a model that is already better than chance, or warm up with
    the plain mean. References: Kumar et al., TMLR 2024, for the weight up to `tau`; Hampel et al., *Robust Statistics:
    The Approach Based on Influence Functions*, 1986, for redescending influence.
    """

    tau: float = 1.0
    power: float = 1.0
    surrogate: bool = False

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"tau": (1.0, 3.0, 5.0), "power": (0.5, 1.0, 2.0)}
    neutral: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive("tau", self.tau)
        validate.non_negative("power", self.power)
        validate.boolean("surrogate", self.surrogate)

    @functools.cached_property
    def on_host(self) -> bool:
        """Not where the loss to descend is differentiated itself."""
        return super().on_host and not self.surrogate

    @property
    def clip_level(self) -> float | None:
        """None, because the weight falls beyond `tau`; `tau` itself where `power` is zero."""
        return self.tau if not is_array(self.power) and self.power == 0 else None

    @property
    def separable(self) -> bool:
        """True: the weight depends on the unit's own loss alone."""
        return True

    def warn(self, losses: Array, measure: Array | None) -> None:
        """Say where most losses are below zero."""
        warn_if_mostly_negative(losses, 0.0, measure)

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit from its own loss."""
        xp = namespace(losses)
        beyond = clip(losses / self.tau, 1.0, None)
        weights = KL(tau=self.tau).of_constants(losses)
        if not is_array(self.power) and self.power == 1:  # the default, and much the cheapest
            weights = weights / beyond
        else:
            weights = weights * xp.exp(-self.power * xp.log(beyond))
        return Weighed(weights, (), mean(self.phi(losses), measure) if self.surrogate else None)

    def integral(self, losses: Array, state: State) -> Array | None:
        """Phi of each loss with `surrogate`."""
        return self.phi(losses) if self.surrogate else None

    def phi(self, losses: Array) -> Array:
        """The integral of the weight from 0 to the loss: `phi' = w`. Differentiable."""
        wide = widen(losses)
        xp = namespace(wide)
        weight = KL(tau=self.tau)
        # `where` and not `clip`, so that at tau exactly one piece passes the gradient on.
        beyond = wide > self.tau
        near = xp.where(beyond, xp.zeros_like(wide) + self.tau, wide)
        log = xp.log(xp.where(beyond, wide, xp.zeros_like(wide) + self.tau) / self.tau)
        largest = weight.of_constants(xp.zeros_like(wide) + self.tau)
        return cast(weight.phi(near) + largest * self.tau * self._tail(log), losses.dtype)

    def _tail(self, log: Array) -> Array:
        """The integral of `exp(-power · s)` times `exp(s)` up to the logarithm of the loss over tau."""
        xp = namespace(log)
        rest: Any = 1.0 - self.power
        if not is_array(rest):
            return xp.expm1(rest * log) / rest if rest != 0 else log
        safe = xp.where(rest == 0, xp.ones_like(rest), rest)
        return xp.where(rest == 0, log, xp.expm1(safe * log) / safe)
