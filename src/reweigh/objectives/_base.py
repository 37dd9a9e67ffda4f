"""The contract of every objective: a vector of losses in, one number to descend out."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from reweigh import _validate as validate
from reweigh._array import (
    Array,
    as_array_like,
    cast,
    clip,
    constant_like,
    dot,
    flatten,
    is_array,
    is_floating,
    is_traced,
    namespace,
    stop_gradient,
    widen,
)

State = Any  # `()` for most objectives; otherwise a dict of names to 0-d or 1-d arrays
Nonfinite = Literal["raise", "skip", "propagate"]


class Weighed(NamedTuple):
    """What an objective makes of a batch.

    `weights` has one entry a unit and is scaled so that the objective's gradient is the *mean* of `w · grad l`.
    `value` is the objective's own value where that is not the mean of `w · l`.
    """

    weights: Array
    state: State = ()
    value: Array | None = None


class Objective(ABC):
    """A number to descend, made of per-unit losses.

    A concrete objective defines `weigh`, which turns losses into gradient-free weights, and, if it remembers
    anything between steps, `init`. Masks, sample weights, denominators, precision and the autograd graph are
    handled here, once, for all of them.

    `separable` says whether the weight of a unit depends on its own loss alone. Then micro-batches, data-parallel
    shards and chunks give exactly the gradient of the whole batch.
    """

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost beyond the plain mean, in words.
    cost: ClassVar[str] = "O(B)"

    @property
    @abstractmethod
    def separable(self) -> bool:
        """Whether a unit's weight depends on its own loss alone."""

    @abstractmethod
    def weigh(
        self, losses: Array, state: State, *, measure: Array | None = None, groups: Array | None = None
    ) -> Weighed:
        """Weights for a 1-d vector of losses, which carries no gradient and is float32 at least.

        `measure` is how much each unit counts before any re-weighting: the mask times the sample weights, or
        `None` when all count one. Units of measure zero have loss zero.
        """

    def init(self) -> State:
        """The state before the first step: `()` unless the objective remembers something."""
        return ()

    @property
    def stateful(self) -> bool:
        """Whether the objective remembers something between steps."""
        return bool(self.init())

    @property
    def clip_level(self) -> float | None:
        """The loss from which on every unit has the same weight; None where no fixed loss does that."""
        return None

    def apply(
        self,
        losses: Array,
        state: State,
        *,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        count: Any = None,
        nonfinite: Nonfinite | None = None,
    ) -> tuple[Array, State]:
        """The loss to descend, and the state for the next step.

        Parameters
        ----------
        losses
            One loss a unit, not reduced; any shape with at least one axis.
        state
            What `init()` or the previous `apply` returned.
        mask
            Which units are real, in the shape of the losses: pads and ignored labels are `False`.
        sample_weight
            The user's own weights, in the shape of the losses. They multiply after the objective's weight, and
            the mean divides by their sum.
        groups
            Integer group of each unit, for objectives over groups.
        count
            The denominator to use instead of the number (or weight) of units at hand: the total over the
            micro-batches of a step, or `reweigh.torch.global_count(...)` under data parallel.
        nonfinite
            What to do with NaN and infinite losses: `"raise"` (the default on NumPy), `"propagate"` (the default
            on torch and JAX, where looking would stall the device) or `"skip"` them. Their gradient is then zero
            *at the loss*. Before it, zero times NaN is NaN: a `mask`, or this, cannot undo a NaN that the loss was
            computed from. Put a number in its place first, or use :class:`reweigh.torch.Reweighted`, which sees the
            output too.

        Returns
        -------
        tuple[Array, State]
            A scalar in the dtype of the losses, and the next state.
        """
        losses = check_losses(losses)
        flat, measure = measured(losses, mask, sample_weight, nonfinite)
        if groups is not None:
            groups = _beside("groups", groups, losses)
        if count is not None:
            validate.positive("count", count, "It is the number of units to divide by.")
        state = state_like(state, flat)
        weighed = self.weigh(stop_gradient(flat), state, measure=measure, groups=groups)
        return cast(descend(flat, weighed, measure, count), losses.dtype), weighed.state

    def __call__(
        self,
        losses: Array,
        *,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        count: Any = None,
        nonfinite: Nonfinite | None = None,
    ) -> Array:
        """The loss to descend, for objectives without a state; see `apply`."""
        if self.stateful:
            raise TypeError(
                f"{self!r} remembers something between steps, so a single call is not enough. Use "
                "`state = objective.init()` once and `loss, state = objective.apply(losses, state)` each step, "
                "or `reweigh.torch.Reweighted(criterion, objective)`, which keeps the state in buffers."
            )
        return self.apply(
            losses,
            (),
            mask=mask,
            sample_weight=sample_weight,
            groups=groups,
            count=count,
            nonfinite=nonfinite,
        )[0]


def check_losses(losses: Any) -> Array:
    """`losses` as an array with a unit axis and floating-point entries, or an error that names the fix."""
    if not is_array(losses):
        if isinstance(losses, (list, tuple)):
            losses = np.asarray(losses)
        elif not isinstance(losses, (int, float)):
            namespace(losses)  # raises, naming the type
    if isinstance(losses, (int, float)) or losses.ndim == 0:
        raise ValueError(
            "losses must have one entry per unit, got a single number: the loss was already averaged or summed, "
            "and re-weighting one number only changes the learning rate. Compute it with reduction='none' (torch) "
            "or without the mean (JAX), and pass that vector."
        )
    if not is_floating(losses):
        raise TypeError(
            f"losses must be floating-point numbers, got dtype {losses.dtype}. "
            "Pass the per-unit losses themselves, not labels, counts or predictions."
        )
    return losses


def state_like(state: State, losses: Array) -> State:
    """The state as arrays of the framework of the losses; a fresh state is made of NumPy arrays."""
    if not state:
        return state
    return {name: constant_like(value, losses) for name, value in state.items()}


def total(measure: Array | None, losses: Array) -> Any:
    """How much the batch counts: the number of units, or the sum of their measure (never zero)."""
    if measure is None:
        return losses.shape[0]
    amount = measure.sum()
    # Where nothing counts, the sum above the line is zero too: any positive number below it gives zero.
    return clip(amount, float(namespace(amount).finfo(amount.dtype).tiny), None)


def mean(values: Array, measure: Array | None) -> Array:
    """The mean of `values` under the measure."""
    return values.mean() if measure is None else (values * measure).sum() / total(measure, values)


def descend(losses: Array, weighed: Weighed, measure: Array | None, count: Any) -> Array:
    """One number whose gradient is the weighted one and whose value is the objective's."""
    weights = weighed.weights if measure is None else weighed.weights * measure
    denominator = total(measure, losses) if count is None else count
    loss = dot(weights / denominator, losses)
    if weighed.value is None:
        return loss
    value = weighed.value if count is None else weighed.value * (total(measure, losses) / count)
    # The weights are constants, so the value they give is not the objective's own: keep the gradient of the
    # one and the value of the other.
    return loss + stop_gradient(value - loss)


def measured(losses: Array, mask: Any, sample_weight: Any, nonfinite: Nonfinite | None) -> tuple[Array, Array | None]:
    """The losses as a wide vector with zeros where nothing counts, and how much each entry counts."""
    xp = namespace(losses)
    flat = widen(flatten(losses))
    if mask is not None:
        mask = _beside("mask", mask, losses) != 0
    policy = nonfinite or ("raise" if xp is np else "propagate")
    validate.one_of("nonfinite", policy, ("raise", "skip", "propagate"))
    if policy == "raise":
        raise_if_not_finite(flat, mask)
    elif policy == "skip":
        finite = xp.isfinite(stop_gradient(flat))
        mask = finite if mask is None else mask & finite
    measure = None
    if mask is not None:
        flat = xp.where(mask, flat, 0.0)
        measure = cast(mask, flat.dtype)
    if sample_weight is not None:
        own = cast(stop_gradient(_beside("sample_weight", sample_weight, losses)), flat.dtype)
        measure = own if measure is None else xp.where(mask, own, 0.0)
    if flat.shape[0] == 0 and measure is None and xp is np:
        raise ValueError("losses must have at least one entry, got none.")
    return flat, measure


def raise_if_not_finite(flat: Array, mask: Array | None) -> None:
    """Say how many losses are NaN or infinite, and where the first one is."""
    xp = namespace(flat)
    if is_traced(flat):
        raise ValueError(
            "nonfinite='raise' needs the values of the losses, which do not exist while a program is traced. "
            "Use nonfinite='skip' or 'propagate' there, and let reweigh.Monitor report."
        )
    bad = ~xp.isfinite(stop_gradient(flat))
    if mask is not None:
        bad = bad & mask
    number = int(bad.sum())
    if number:
        where = int(xp.argmax(cast(bad, xp.int32)))
        raise ValueError(
            f"losses must be finite, got {number} of {flat.shape[0]} that are NaN or infinite, the first at index "
            f"{where}. Find out why, or pass nonfinite='skip' to leave such units out (and keep NaN out of what "
            "their losses are computed from, or gradients are NaN all the same)."
        )


def warn_if_mostly_negative(losses: Array, offset: Any, measure: Array | None) -> None:
    """Say on NumPy that a lower clip at zero makes most units look equally easy."""
    if not isinstance(losses, np.ndarray):
        return
    real = losses if measure is None else losses[measure != 0]
    share = np.mean(real < offset) if real.size else 0.0
    if share > 0.5:
        floor = "negative" if offset == 0 else f"below the offset {offset:g}"
        warnings.warn(
            f"{share:.0%} of the losses are {floor}, and all of those get the same weight, that of a loss of zero. "
            "If the loss has a floor below zero, pass it as `offset`.",
            UserWarning,
            stacklevel=5,
        )


def _beside(name: str, given: Any, losses: Array) -> Array:
    """What is given beside the losses, entry by entry, as a vector of their framework."""
    given = as_array_like(given, losses)
    if given.shape != losses.shape:
        raise ValueError(
            f"`{name}` must have the shape of the losses, {tuple(losses.shape)}, got {tuple(given.shape)}. "
            "Shapes are not broadcast here, because a silent (B, B) would be worse than an error."
        )
    return flatten(given)
