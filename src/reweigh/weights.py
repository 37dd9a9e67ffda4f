"""Weight functions: how much a unit counts, as a function of its own loss alone.

Each is a frozen value with one elementwise call, `weights = KL(tau=1.0)(losses)`, that no gradient flows through,
and its integral `phi`, the genuine objective that re-weighted descent minimises. They take NumPy arrays, torch
tensors and JAX arrays of any shape and floating dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, ArrayT, cast, clip, is_floating, largest_exponent, namespace, stop_gradient, widen

__all__ = ["KL", "ReverseKL", "ChiSquare", "WeightFunction"]

_TAU_FIX = "tau is the loss from which on all units count the same, in units of the loss; try 1.0."


@dataclass(frozen=True, kw_only=True)
class KL:
    r"""The RGD weight: exponential in the clipped loss.

    .. math:: w = \exp(\gamma\, c), \qquad c = \min(\max(\ell - o, 0), \tau), \qquad \gamma = 1/(\tau + 1)

    With the tied scale :math:`\gamma = 1/(\tau+1)` weights lie in :math:`[1, e^{\tau/(\tau+1)}] \subset [1, e)`:
    they cannot overflow in any dtype. Units with :math:`\ell \ge \tau` all share the largest weight.

    Parameters
    ----------
    tau
        Clip level, in units of the loss. `None` clips neither above nor at zero; `gamma` is then
        required, and the exponent is held below the largest the dtype can represent.
    gamma
        Scale of the exponent; `1/(tau+1)` unless given. A negative value turns the emphasis round (min-min DRO):
        hard units count less. `KL(tau=None, gamma=-1)` is the DFT weight :math:`e^{-\ell}`.
    offset
        Subtracted from the loss before clipping, for losses whose floor is not zero.

    Returns
    -------
    Array
        Weights in the shape and dtype of the losses, computed in float32 at least.

    Examples
    --------
    >>> import numpy as np
    >>> KL(tau=1.0)(np.array([-1.0, 0.0, 0.5, 1.0, 5.0])).round(4)
    array([1.    , 1.    , 1.284 , 1.6487, 1.6487])

    Notes
    -----
    As in the paper's listing: clipped at 0 and at `tau`, not normalised. The weight is clipped, the loss it
    multiplies is not. References: Kumar et al., *Stochastic Re-weighted Gradient Descent via Distributionally
    Robust Optimization*, TMLR 2024.
    """

    tau: float | None = 1.0
    gamma: float | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.tau is None:
            if self.gamma is None:
                raise ValueError(
                    "`gamma` is required when `tau` is None, because the tied scale 1/(tau+1) has no tau to use. "
                    "Give both or set tau, for example KL(tau=None, gamma=0.5)."
                )
        else:
            validate.positive("tau", self.tau, _TAU_FIX + " For no clipping use tau=None with a gamma.")
        if self.gamma is not None:
            validate.real("gamma", self.gamma)
        validate.real("offset", self.offset)

    def __call__(self, losses: ArrayT) -> ArrayT:
        """The weight of each unit."""
        return _elementwise(self, losses)

    def of_constants(self, losses: Array) -> Array:
        """The same for losses that are known to be wide and free of gradient: nothing is checked or cast."""
        gamma: Any = self._scale()
        tau: Any = self.tau
        u = _less(losses, self.offset)
        bound = None if tau is None else gamma * tau
        near = isinstance(bound, (int, float)) and abs(bound) < 10.0
        if near and tau is not None and isinstance(u, np.ndarray) and u.ndim:  # in few steps and one vector of memory
            u = np.minimum(np.maximum(u, 0.0), tau)
            u *= gamma
            return np.exp(u, out=u)
        xp = namespace(losses)
        exponent = (u if tau is None else clip(u, 0.0, tau)) * gamma
        if near:
            return xp.exp(exponent)  # within reach of every dtype: exp(10) is a number even in float16
        limit = largest_exponent(losses)
        return xp.exp(clip(exponent, -limit, limit))

    def phi(self, losses: Array) -> Array:
        """The integral of the weight from 0 to the loss: `phi' = w`. Differentiable."""
        gamma = self._scale()
        if isinstance(gamma, (int, float)) and gamma == 0:
            return losses
        return _integral(losses, self.offset, self.tau, lambda u: namespace(u).expm1(gamma * u) / gamma, self)

    def _scale(self) -> Any:
        if self.gamma is not None:
            return self.gamma
        assert self.tau is not None
        return 1.0 / (self.tau + 1.0)


@dataclass(frozen=True, kw_only=True)
class ReverseKL:
    r"""The RGD-RevKL weight: reciprocal in the clipped loss, always clipped.

    .. math:: w = \frac{1}{1 - c/(\tau+1)}, \qquad c = \min(\max(\ell - o, 0), \tau)

    Weights lie in :math:`[1, \tau+1]` and are never below those of :class:`KL` at the same `tau`; the two agree to
    first order in the loss.

    Parameters
    ----------
    tau
        Clip level, in units of the loss.
    offset
        Subtracted from the loss before clipping, for losses whose floor is not zero.

    Returns
    -------
    Array
        Weights in the shape and dtype of the losses, computed in float32 at least.

    Examples
    --------
    >>> import numpy as np
    >>> ReverseKL(tau=3.0)(np.array([-1.0, 0.0, 1.0, 2.0, 5.0])).round(4)
    array([1.    , 1.    , 1.3333, 2.    , 4.    ])

    Notes
    -----
    The paper's prose has `1/(T - u)`; its listing fixes `T = 1` and `u = min(loss, tau)/(tau + 1)`, as here.
    References: Kumar et al., TMLR 2024.
    """

    tau: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        validate.positive("tau", self.tau, _TAU_FIX)
        validate.real("offset", self.offset)

    def __call__(self, losses: ArrayT) -> ArrayT:
        """The weight of each unit."""
        return _elementwise(self, losses)

    def of_constants(self, losses: Array) -> Array:
        """The same for losses that are known to be wide and free of gradient: nothing is checked or cast."""
        clipped = clip(_less(losses, self.offset), 0.0, self.tau)
        return namespace(losses).reciprocal(1.0 - clipped / (self.tau + 1.0))

    def phi(self, losses: Array) -> Array:
        """The integral of the weight from 0 to the loss: `phi' = w`. Differentiable."""
        scale = self.tau + 1.0
        return _integral(losses, self.offset, self.tau, lambda u: -scale * namespace(u).log1p(-u / scale), self)


@dataclass(frozen=True, kw_only=True)
class ChiSquare:
    r"""The RGD-chi2 weight: affine in the clipped loss.

    .. math:: w = c + \tau \quad\text{(literal)}, \qquad w = 1 + c/\tau \quad\text{(scaled)},
              \qquad c = \min(\max(\ell - o, 0), \tau)

    The literal weights lie in :math:`[\tau, 2\tau]` and so multiply the learning rate by as much; the scaled form
    is the same up to that factor and lies in :math:`[1, 2]`. With plain SGD use the scaled form; Adam-type
    optimisers ignore the difference.

    Parameters
    ----------
    tau
        Clip level, in units of the loss.
    scaled
        Whether to divide the literal weight by `tau`.
    offset
        Subtracted from the loss before clipping, for losses whose floor is not zero.

    Returns
    -------
    Array
        Weights in the shape and dtype of the losses, computed in float32 at least.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([-1.0, 0.0, 1.0, 5.0])
    >>> ChiSquare(tau=3.0)(losses)
    array([3., 3., 4., 6.])
    >>> ChiSquare(tau=3.0, scaled=True)(losses).round(4)
    array([1.    , 1.    , 1.3333, 2.    ])

    Notes
    -----
    The paper gives the literal form in prose only; the scaled one is ours. References: Kumar et al., TMLR 2024.
    """

    tau: float = 1.0
    scaled: bool = False
    offset: float = 0.0

    def __post_init__(self) -> None:
        validate.positive("tau", self.tau, _TAU_FIX)
        validate.one_of("scaled", self.scaled, (True, False))
        validate.real("offset", self.offset)

    def __call__(self, losses: ArrayT) -> ArrayT:
        """The weight of each unit."""
        return _elementwise(self, losses)

    def of_constants(self, losses: Array) -> Array:
        """The same for losses that are known to be wide and free of gradient: nothing is checked or cast."""
        clipped = clip(_less(losses, self.offset), 0.0, self.tau)
        return 1.0 + clipped / self.tau if self.scaled else clipped + self.tau

    def phi(self, losses: Array) -> Array:
        """The integral of the weight from 0 to the loss: `phi' = w`. Differentiable."""
        scale = self.tau if self.scaled else 1.0
        return _integral(losses, self.offset, self.tau, lambda u: (0.5 * u * u + self.tau * u) / scale, self)


WeightFunction = KL | ReverseKL | ChiSquare


def _elementwise(weight: WeightFunction, losses: Array) -> Array:
    """Weights in the caller's dtype, from losses as constants and in float32 at least."""
    xp = namespace(losses)
    if not is_floating(losses):
        raise TypeError(
            f"losses must be floating-point numbers, got dtype {losses.dtype}. "
            "Pass the per-unit losses themselves, not labels, counts or predictions."
        )
    weights = weight.of_constants(widen(stop_gradient(losses)))
    if losses.dtype.itemsize < 4:  # an unclipped weight may be a number in float32 and not in half precision
        weights = clip(weights, None, float(xp.finfo(losses.dtype).max))
    return cast(weights, losses.dtype)


def _less(losses: Array, offset: Any) -> Array:
    return losses if isinstance(offset, (int, float)) and offset == 0 else losses - offset


def _integral(
    losses: Array, offset: float, tau: Any, inside: Callable[[Array], Array], weight: WeightFunction
) -> Array:
    """Integrate a weight from 0 to each loss: closed form inside [0, tau], straight lines outside.

    `where` and not `clip`, so that at the two kinks exactly one piece passes the gradient on.
    """
    wide = widen(losses)
    xp = namespace(wide)

    def from_zero(u: Array) -> Array:
        if tau is None:
            return inside(u)
        low = xp.where(u < 0.0, u, 0.0)
        high = xp.where(u > tau, u - tau, 0.0)
        middle = xp.where(u < 0.0, 0.0, xp.where(u > tau, tau, u))
        return easiest * low + inside(middle) + hardest * high

    zero = xp.zeros_like(stop_gradient(wide))
    edge = 0.0 if tau is None else tau
    easiest, hardest = weight.of_constants(zero + offset), weight.of_constants(zero + offset + edge)
    return cast(from_zero(wide - offset) - from_zero(zero - offset), losses.dtype)
