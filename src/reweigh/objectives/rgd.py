"""Re-weighted gradient descent, the method this library is named for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np

from reweigh import _validate as validate
from reweigh._array import Array, ArrayT, cast, is_traced, namespace, stop_gradient, sum_over_ranks
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

__all__ = ["RGD", "RGDOptions", "WeightOptions", "rgd"]

Divergence = Literal["kl", "chi2", "revkl"]

_WEIGHTS: Mapping[str, type[KL | ReverseKL | ChiSquare]] = {"kl": KL, "chi2": ChiSquare, "revkl": ReverseKL}
_PARAMETERS = {kind: frozenset(field.name for field in fields(kind)) for kind in _WEIGHTS.values()}


class WeightOptions(TypedDict, total=False):
    """The short form of a weight function: what `divergence` names, and its parameters."""

    tau: float | None
    divergence: Divergence
    gamma: float | None
    offset: float
    scaled: bool


class RGDOptions(WeightOptions, total=False):
    """The keywords of :class:`RGD`, for what takes them in place of the objective itself."""

    weight: WeightFunction
    normalize: Literal["mean"] | None
    surrogate: bool
    warmup: int
    sync: bool | str


@dataclass(frozen=True, kw_only=True, init=False)
class RGD(Objective):
    r"""Re-weighted gradient descent: each loss times a gradient-free weight that grows with it.

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}(w_i)\,\ell_i, \qquad w_i = \exp\!\big(\mathrm{clip}(\ell_i, 0,
              \tau)/(\tau+1)\big)

    It descends :math:`\frac1B\sum_i \Phi(\ell_i)` with :math:`\Phi' = w`, which is an expectation: mini-batch
    gradients are unbiased, and micro-batches, chunks and data-parallel shards are exact.

    Parameters
    ----------
    weight
        The weight function: :class:`~reweigh.KL` (exponential), :class:`~reweigh.ReverseKL` (reciprocal) or
        :class:`~reweigh.ChiSquare` (affine).
    tau, divergence, gamma, offset, scaled
        The short form of `weight`: `RGD(tau=3.0)` is `RGD(weight=KL(tau=3.0))`, and `divergence="revkl"` or
        `"chi2"` names one of the other two. Beside a `weight` they replace its parameters.
    normalize
        `"mean"` divides the weights by their batch mean, so that the learning rate keeps its meaning. An extension
        of our own; it gives up exactness under micro-batches.
    surrogate
        Return the mean of Phi, whose gradient is the same, whose value is the objective's own and whose second
        derivative includes that of the weight.
    warmup
        Steps of the plain mean before re-weighting starts.
    sync
        Whether `normalize` means the batch over all data-parallel ranks. Inside
        `jax.shard_map`, the name of the axis that holds the batch.

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
    >>> RGD(tau=3.0, divergence="revkl") == RGD(weight=ReverseKL(tau=3.0))
    True

    Notes
    -----
    Follows the paper's listings: no normalisation, division by the number of units, clip at 0 and tau.
    References: Kumar et al., TMLR 2024.
    """

    weight: WeightFunction = field(
        default=KL(),
        # A text or a search space names the parameters of the weight function as if they were the objective's own.
        metadata={
            "short_form": {
                "tau": ("float | None", 1.0),
                "divergence": ("str", "kl"),
                "gamma": ("float | None", None),
                "offset": ("float", 0.0),
                "scaled": ("bool", False),
            }
        },
    )
    normalize: Literal["mean"] | None = None
    surrogate: bool = False
    warmup: int = 0
    sync: bool | str = True

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"tau": (1.0, 3.0, 5.0, 7.0, 9.0)}
    neutral: ClassVar[bool] = True

    def __init__(
        self,
        *,
        weight: WeightFunction | None = None,
        normalize: Literal["mean"] | None = None,
        surrogate: bool = False,
        warmup: int = 0,
        sync: bool | str = True,
        **short_form: Unpack[WeightOptions],
    ) -> None:
        validate.one_of("normalize", normalize, (None, "mean"))
        validate.boolean("surrogate", surrogate)
        validate.whole("warmup", warmup, 0)
        if surrogate and normalize:
            raise ValueError(
                "`surrogate` and `normalize` exclude each other: normalised weights change with the batch, so they "
                "are not the derivative of any one function of the loss. Drop one of the two."
            )
        chosen = _weight_function(weight, dict(short_form))
        values = {"weight": chosen, "normalize": normalize, "surrogate": surrogate, "warmup": warmup, "sync": sync}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def tau(self) -> float | None:
        """The clip level of the weight function."""
        return self.weight.tau

    @property
    def divergence(self) -> Divergence:
        """The short name of the weight function."""
        weight = self.weight
        return "kl" if isinstance(weight, KL) else "revkl" if isinstance(weight, ReverseKL) else "chi2"

    @property
    def gamma(self) -> float | None:
        """The scale of the exponent, where the weight function has one of its own."""
        return self.weight.gamma if isinstance(self.weight, KL) else None

    @property
    def offset(self) -> float:
        """What the weight function subtracts from the loss."""
        return self.weight.offset

    @property
    def scaled(self) -> bool:
        """Whether an affine weight is divided by `tau`."""
        return isinstance(self.weight, ChiSquare) and self.weight.scaled

    @property
    def separable(self) -> bool:
        """True unless the weights are normalised over the batch."""
        return self.normalize is None

    @property
    def clip_level(self) -> float | None:
        """`tau` above the offset."""
        return None if self.tau is None else self.tau + self.offset

    @functools.cached_property
    def on_host(self) -> bool:
        """Not where the loss to descend is differentiated itself, or a counter decides."""
        return super().on_host and not self.surrogate and not self.warmup

    def init(self) -> State:
        """A step counter during warm-up, otherwise nothing."""
        return {"step": np.zeros((), np.int32)} if self.warmup else ()

    def warn(self, losses: Array, measure: Array | None) -> None:
        """Say where most losses are below the lower clip."""
        if self.tau is not None:  # otherwise nothing is clipped at zero
            warn_if_mostly_negative(losses, self.offset, measure)

    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """The weight of each unit from its own loss."""
        weights = self.weight.of_constants(losses)
        if not (self.surrogate or self.normalize or self.warmup):
            return Weighed(weights)
        integral = self.integral(losses, state)
        value = None if integral is None else mean(integral, measure)
        if self.normalize:
            weights = weights / self._mean_weight(weights, measure)
        if not self.warmup:
            return Weighed(weights, (), value)
        weights = namespace(weights).where(state["step"] < self.warmup, 1.0, weights)
        return Weighed(weights, {"step": state["step"] + 1}, value)

    def integral(self, losses: Array, state: State) -> Array | None:
        """Phi of each loss with `surrogate`, the loss itself during warm-up."""
        if not self.surrogate:
            return None
        phi = self.weight.phi(losses)
        return namespace(phi).where(state["step"] < self.warmup, losses, phi) if self.warmup else phi

    def _mean_weight(self, weights: Array, measure: Array | None) -> Array:
        xp = namespace(weights)
        ones = xp.ones_like(weights) if measure is None else measure
        amount, units = (weights * ones).sum(), ones.sum()
        amount, units = sum_over_ranks(amount, self.sync), sum_over_ranks(units, self.sync)
        # Where no unit counts, dividing by zero would turn the zeros of the measure into NaN.
        return xp.where(units > 0, amount, 1.0) / xp.where(units > 0, units, 1.0)


def _weight_function(weight: Any, short_form: dict[str, Any]) -> WeightFunction:
    """The weight function that the keywords of :class:`RGD` stand for."""
    if unknown := short_form.keys() - WeightOptions.__annotations__.keys():
        name = min(unknown)
        import difflib  # not for a call that is right

        near = difflib.get_close_matches(name, RGDOptions.__annotations__, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(RGDOptions.__annotations__)}."
        raise TypeError(f"RGD got an unexpected keyword argument {name!r}. {hint}")
    if weight is not None and "divergence" in short_form:
        raise ValueError(
            f"`divergence` names a weight function and `weight` is one, got {short_form['divergence']!r} and "
            f"{weight!r}. Give one of the two."
        )
    if weight is None:
        divergence = short_form.pop("divergence", "kl")
        validate.one_of("divergence", divergence, tuple(_WEIGHTS))
        kind = _WEIGHTS[divergence]
    elif isinstance(weight, (KL, ReverseKL, ChiSquare)):
        kind = type(weight)
    else:
        raise TypeError(
            f"`weight` must be a weight function, got {weight!r}. For example reweigh.KL(tau=1.0), "
            "reweigh.ReverseKL(tau=1.0) or reweigh.ChiSquare(tau=1.0)."
        )
    for name in short_form.keys() - _PARAMETERS[kind]:
        value = short_form.pop(name)
        if value is not None and value is not False:  # what other weight functions have by default is not a request
            raise ValueError(
                f"{kind.__name__} has no parameter `{name}`, got {name}={value!r}. It has: "
                f"{', '.join(sorted(_PARAMETERS[kind]))}."
            )
    if weight is None:
        return kind(**short_form)
    return replace(weight, **short_form) if short_form else weight


def rgd(
    losses: ArrayT,
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
) -> ArrayT:
    r"""Re-weighted gradient descent in one line: the loss to descend, from per-unit losses.

    .. math:: \hat L = \frac1B \sum_i \mathrm{sg}\big(e^{\mathrm{clip}(\ell_i, 0, \tau)/(\tau+1)}\big)\,\ell_i

    Parameters
    ----------
    losses
        One loss per unit (example, token, task), *not* averaged: a NumPy array, torch tensor or JAX array with at
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
        if isinstance(flat, np.ndarray):
            objective.warn(flat, measure)
        vector = objective.weigh(stop_gradient(flat), (), measure=measure).weights * flat
    if measure is not None:
        vector = vector * measure
    return cast(vector, losses.dtype).reshape(losses.shape)
