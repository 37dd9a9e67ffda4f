"""Re-weighted gradient descent, the method this library is named for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, cast, is_traced, namespace, stop_gradient, sum_over_ranks
from reweigh.objectives._base import (
    Nonfinite,
    Objective,
    State,
    Weighed,
    check_losses,
    mean,
    measured,
    warn_if_mostly_negative,
)
from reweigh.weights import KL, ChiSquare, ReverseKL, WeightFunction

__all__ = ["RGD", "rgd"]

Divergence = Literal["kl", "chi2", "revkl"]


@dataclass(frozen=True, kw_only=True)
class RGD(Objective):
    r"""Re-weighted gradient descent: each loss times a gradient-free weight that grows with it.

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}(w_i)\,\ell_i, \qquad w_i = \exp\!\big(\mathrm{clip}(\ell_i, 0,
              \tau)/(\tau+1)\big)

    It descends :math:`\frac1B\sum_i \Phi(\ell_i)` with :math:`\Phi' = w`, which is an expectation: mini-batch
    gradients are unbiased, and micro-batches, chunks and data-parallel shards are exact.

    Parameters
    ----------
    tau
        Clip level, in units of the loss: :class:`~reweigh.KL`.
    divergence
        `"kl"` (exponential weight), `"revkl"` (reciprocal) or `"chi2"` (affine).
    gamma, offset, scaled
        As in the weight functions; `gamma` belongs to `"kl"`, `scaled` to `"chi2"`.
    normalize
        `"mean"` divides the weights by their batch mean, so that the learning rate keeps its meaning. An extension
        of ours; it gives up exactness under micro-batches.
    surrogate
        Return the mean of Phi, whose gradient is the same and whose value is the objective's own.
    warmup
        Steps of the plain mean before re-weighting starts.
    sync
        Whether `normalize` means the batch over all data-parallel ranks.

    Returns
    -------
    Array
        A scalar. It is a surrogate: log and compare the plain mean.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.2, 0.7, 1.5, 4.0])
    >>> print(round(float(RGD(tau=1.0)(losses)), 6))
    2.570587

    Notes
    -----
    Follows the paper's listings: no normalisation, division by the number of units, clip at 0 and tau.
    References: Kumar et al., TMLR 2024.
    """

    tau: float | None = 1.0
    divergence: Divergence = "kl"
    gamma: float | None = None
    offset: float = 0.0
    scaled: bool = False
    normalize: Literal["mean"] | None = None
    surrogate: bool = False
    warmup: int = 0
    sync: bool = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"tau": (1.0, 3.0, 5.0, 7.0, 9.0)}

    def __post_init__(self) -> None:
        validate.one_of("divergence", self.divergence, ("kl", "chi2", "revkl"))
        validate.one_of("normalize", self.normalize, (None, "mean"))
        validate.whole("warmup", self.warmup, 0)
        if self.gamma is not None and self.divergence != "kl":
            raise ValueError(f"`gamma` belongs to divergence='kl', got gamma={self.gamma!r} with {self.divergence!r}.")
        if self.scaled and self.divergence != "chi2":
            raise ValueError(f"`scaled` belongs to divergence='chi2', got it with {self.divergence!r}.")
        if self.tau is None and self.divergence != "kl":
            raise ValueError(f"`tau` may be None for divergence='kl' only, got it with {self.divergence!r}.")
        if self.surrogate and self.normalize:
            raise ValueError(
                "`surrogate` and `normalize` exclude each other: normalised weights change with the batch, so they "
                "are not the derivative of any one function of the loss. Drop one of the two."
            )
        # Built once: a training step should not pay for validation.
        object.__setattr__(self, "_weight", self._build_weight())

    def _build_weight(self) -> WeightFunction:
        if self.divergence == "kl":
            return KL(tau=self.tau, gamma=self.gamma, offset=self.offset)
        assert self.tau is not None
        if self.divergence == "revkl":
            return ReverseKL(tau=self.tau, offset=self.offset)
        return ChiSquare(tau=self.tau, scaled=self.scaled, offset=self.offset)

    @property
    def weight(self) -> WeightFunction:
        """The weight function: :class:`~reweigh.KL`, :class:`~reweigh.ReverseKL` or :class:`~reweigh.ChiSquare`."""
        return self.__dict__["_weight"]

    @property
    def separable(self) -> bool:
        """True unless the weights are normalised over the batch."""
        return self.normalize is None

    @property
    def clip_level(self) -> float | None:
        """`tau` above the offset."""
        return None if self.tau is None else self.tau + self.offset

    def init(self) -> State:
        """A step counter during warm-up, otherwise nothing."""
        return {"step": np.zeros((), np.int32)} if self.warmup else ()

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit from its own loss."""
        if self.tau is not None:  # otherwise nothing is clipped at zero
            warn_if_mostly_negative(losses, self.offset, measure)
        weights = self.weight.of_constants(losses)
        value = mean(self.weight.phi(losses), measure) if self.surrogate else None
        if self.normalize:
            weights = weights / self._mean_weight(weights, measure)
        if not self.warmup:
            return Weighed(weights, (), value)
        warm = state["step"] < self.warmup
        weights = namespace(weights).where(warm, 1.0, weights)
        if value is not None:
            value = namespace(weights).where(warm, mean(losses, measure), value)
        return Weighed(weights, {"step": state["step"] + 1}, value)

    def _mean_weight(self, weights: Array, measure: Array | None) -> Array:
        xp = namespace(weights)
        ones = xp.ones_like(weights) if measure is None else measure
        amount, units = (weights * ones).sum(), ones.sum()
        if self.sync:
            amount, units = sum_over_ranks(amount), sum_over_ranks(units)
        # Where no unit counts at all, dividing by zero would turn the zeros of the measure into NaN.
        return xp.where(units > 0, amount, 1.0) / xp.where(units > 0, units, 1.0)


def rgd(
    losses: Array,
    tau: float | None = 1.0,
    divergence: Divergence = "kl",
    *,
    gamma: float | None = None,
    offset: float = 0.0,
    scaled: bool = False,
    mask: Array | None = None,
    sample_weight: Array | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    count: Any = None,
    normalize: Literal["mean"] | None = None,
    surrogate: bool = False,
    nonfinite: Nonfinite | None = None,
) -> Array:
    r"""Re-weighted gradient descent in one line: the loss to descend, from per-unit losses.

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}\big(e^{\mathrm{clip}(\ell_i, 0, \tau)/(\tau+1)}\big)\,\ell_i

    Parameters
    ----------
    losses
        One loss a unit (example, token, task), *not* averaged: a NumPy array, torch tensor or JAX array with at
        least one axis.
    tau, divergence, gamma, offset, scaled, normalize, surrogate
        The method's hyper-parameters: see :class:`~reweigh.RGD`.
    mask
        Which units are real. Acts before weighting, and the mean divides by the number of real units.
    sample_weight
        The user's own weights; multiply after the method's weight, and the mean divides by their sum.
    reduction
        `"mean"`, `"sum"`, or `"none"` for the vector of weighted losses.
    count
        The denominator of the mean instead: the total over micro-batches or, under data parallel,
        `reweigh.torch.global_count(...)`.
    nonfinite
        `"raise"` (default on NumPy), `"propagate"` (default on torch and JAX) or `"skip"`.

    Returns
    -------
    Array
        A scalar in the framework and dtype of the losses (a vector with `reduction="none"`).

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([0.2, 0.7, 1.5, 4.0])
    >>> print(round(float(rgd(losses, tau=1.0)), 6))
    2.570587
    >>> rgd(losses, tau=3.0, divergence="chi2", reduction="none")
    array([ 0.64,  2.59,  6.75, 24.  ])
    """
    known = not is_traced(losses) and _is_number(tau) and _is_number(gamma) and _is_number(offset)
    objective = (_built_once if known else RGD)(
        tau=tau,
        divergence=divergence,
        gamma=gamma,
        offset=offset,
        scaled=scaled,
        normalize=normalize,
        surrogate=surrogate,
    )
    validate.one_of("reduction", reduction, ("mean", "sum", "none"))
    if reduction != "mean" and count is not None:
        raise ValueError(f"`count` is the denominator of the mean, got it with reduction={reduction!r}.")
    if reduction == "none":
        return _vector(objective, check_losses(losses), mask, sample_weight, nonfinite)
    denominator = count if reduction == "mean" else 1
    return objective(losses, mask=mask, sample_weight=sample_weight, count=denominator, nonfinite=nonfinite)


#: A training loop calls `rgd` with the same numbers again and again, and building and checking the value costs as
#: much as the weights of a small batch. Arrays as hyper-parameters are not kept, nor anything under a tracer.
_built_once = functools.lru_cache(maxsize=128, typed=True)(RGD)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _vector(objective: RGD, losses: Array, mask: Any, sample_weight: Any, nonfinite: Nonfinite | None) -> Array:
    """The weighted losses before any reduction, in the shape of the losses."""
    flat, measure = measured(losses, mask, sample_weight, nonfinite)
    if objective.surrogate:
        vector = objective.weight.phi(flat)
    else:
        vector = objective.weigh(stop_gradient(flat), (), measure=measure).weights * flat
    if measure is not None:
        vector = vector * measure
    return cast(vector, losses.dtype).reshape(losses.shape)
