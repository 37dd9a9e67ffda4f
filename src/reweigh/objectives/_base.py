"""The contract of every objective: a vector of losses in, one number to descend out."""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from reweigh import _validate as validate
from reweigh._array import (
    Array,
    ArrayT,
    as_array_like,
    cast,
    clip,
    constant_like,
    dot,
    flatten,
    is_array,
    is_floating,
    is_readable,
    is_torch,
    is_traced,
    namespace,
    stop_gradient,
    tensor_of,
    widen,
    with_gradient,
    world_size,
)

State = Any  # `()` for most objectives; otherwise a dict of names to 0-d or 1-d arrays
Nonfinite = Literal["raise", "skip", "propagate"]


#: Where each weight is made from its own loss, torch is as fast as NumPy beyond so many.
_FEW = 4096


class Weighed(NamedTuple):
    """What an objective makes of a batch.

    `weights` has one entry per unit and is scaled so that the objective's gradient is the *mean* of `w · grad l`.
    `value` is the objective's own value where that is not the mean of `w · l`: a 0-d array or a number.
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
    #: Whether `weigh` takes NumPy arrays as well as tensors, and gives weights in memory of their own. Tensors in the
    #: processor's memory are then weighed by NumPy, which selects, sorts and makes small steps several times as fast.
    neutral: ClassVar[bool] = False
    #: What `weigh` needs besides the losses, as keywords: `"signal"`, a second number per unit, or `"index"`,
    #: which unit of the data each is. Objectives that name none are never given either; one that does is not `neutral`.
    takes: ClassVar[tuple[str, ...]] = ()
    #: What the signal is, and how to pass it, for the error where it is missing.
    signal_is: ClassVar[str] = ""

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

    @functools.cached_property
    def made_of_numbers(self) -> bool:
        """Whether no hyper-parameter is an array, such as a traced or mapped one, or an axis of a JAX mesh."""
        values = [*vars(self).values(), *vars(getattr(self, "weight", object)).values()]
        return not any(is_array(value) for value in values) and not isinstance(getattr(self, "sync", True), str)

    @functools.cached_property
    def on_host(self) -> bool:
        """Whether NumPy weighs losses that lie in the processor's memory for this objective."""
        return self.neutral and self.made_of_numbers

    @functools.cached_property
    def bounded(self) -> bool:
        """Whether nothing on the way to a weight overflows or is undefined, whatever the losses: NumPy has no warning.

        So it is where a weight is made from one loss, clipped, and where losses are only compared with one another.
        """
        return self.separable and self.clip_level is not None

    @property
    def clip_level(self) -> float | None:
        """The loss from which on every unit has the same weight; None where no fixed loss does that."""
        return None

    def integral(self, losses: Array, state: State) -> Array | None:
        """The function of each loss whose derivative is its weight, if the mean of that is the loss to descend.

        None, the default, descends the mean of `w · l` with constant weights. Differentiable, second derivative
        included.
        """
        return None

    def warn(self, losses: Array, measure: Array | None) -> None:
        """Say what looks wrong about losses in NumPy, where looking does not make a device wait."""
        return

    def apply(
        self,
        losses: ArrayT,
        state: State,
        *,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
        count: Any = None,
        nonfinite: Nonfinite | None = None,
    ) -> tuple[ArrayT, State]:
        """The loss to descend, and the state for the next step.

        Parameters
        ----------
        losses
            One loss per unit, not reduced; any shape with at least one axis.
        state
            What `init()` or the previous `apply` returned.
        mask
            Which units are real, in the shape of the losses: pads and ignored labels are `False`.
        sample_weight
            The user's own weights, in the shape of the losses. They multiply after the objective's weight, and
            the mean divides by their sum.
        groups
            Integer group of each unit, for objectives over groups.
        signal
            A second number per unit, for objectives that weigh by more than the loss: a reference model's loss, an
            entropy. No gradient flows through it; others ignore it.
        index
            Which unit of the data each is, for objectives that remember units; others ignore it.
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
        if self.neutral and mask is None and sample_weight is None and count is None and nonfinite is None:
            here = self._apply_here(losses, state, groups)
            if here is not None:
                return here
        checked = check_losses(losses)
        flat, measure = measured(checked, mask, sample_weight, nonfinite)
        if groups is not None:
            groups = _beside("groups", groups, checked)
        if count is not None:
            validate.positive("count", count, "It is the number of units to divide by.")
        if isinstance(flat, np.ndarray):
            self.warn(flat, measure)
        state = state_like(state, flat)
        integral = self.integral(flat, state)
        if integral is not None and not state:  # the weights are its derivative, and nothing else needs them
            return cast(_average(integral, measure, count), checked.dtype), state
        seen = beside(self, flat, signal, index, checked) if self.takes else {}
        weighed = weigh(self, stop_gradient(flat), state, measure, groups, **seen)
        if integral is None:
            loss = descend(flat, weighed, measure, count, own=self.neutral)
        else:
            loss = _average(integral, measure, count)
        return cast(loss, checked.dtype), weighed.state

    def _apply_here(self, losses: Array, state: State, groups: Array | None) -> tuple[Array, State] | None:
        """The same for a plain vector in the processor's memory: in few steps, as each costs as much as 256 losses."""
        if (
            not is_readable(losses)
            or isinstance(losses, np.ndarray)
            or losses.ndim != 1
            or not losses.shape[0]
            or losses.dtype.itemsize < 4
            or not losses.is_floating_point()
            or not self.on_host
            or (self.separable and losses.shape[0] > _FEW)
            or world_size(losses) > 1
        ):
            return None
        if groups is not None:
            given: Any = _beside("groups", groups, losses)
            if not given.is_cpu:
                return None
            groups = given.numpy()
        host: Any = losses.detach().numpy()
        if state:
            known: dict[str, Any] = {}
            for name, x in state.items():
                if is_torch(x) and not x.is_cpu:
                    return None
                known[name] = x.numpy() if is_torch(x) else constant_like(x, host)
            state = known
        if self.bounded:  # nothing to be quiet about
            weights, state, value = self.weigh(host, state, groups=groups)
        else:
            with np.errstate(all="ignore"):  # what is not a number is the caller's to look for, as on every device
                weights, state, value = self.weigh(host, state, groups=groups)
        weights /= losses.shape[0]
        loss = losses.dot(tensor_of(weights))
        if value is not None:
            loss.detach().fill_(float(value))  # in place: the product is not needed to differentiate it
        return loss, {name: tensor_of(x) for name, x in state.items()} if state else state

    def __call__(
        self,
        losses: ArrayT,
        *,
        mask: Array | None = None,
        sample_weight: Array | None = None,
        groups: Array | None = None,
        signal: Array | None = None,
        index: Array | None = None,
        count: Any = None,
        nonfinite: Nonfinite | None = None,
    ) -> ArrayT:
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
            signal=signal,
            index=index,
            count=count,
            nonfinite=nonfinite,
        )[0]


def beside(objective: Objective, losses: Array, signal: Any, index: Any, shaped: Array | None = None) -> dict[str, Any]:
    """What an objective takes besides the losses, as keywords of its `weigh`: vectors of their framework, constant.

    `losses` are the flat ones, `shaped` those that the caller's arrays have the shape of. Objectives that take nothing
    get nothing.
    """
    given = {"signal": signal, "index": index}
    vectors: dict[str, Any] = {}
    for name in objective.takes:
        flat = _beside(name, required(objective, name, given[name]), losses if shaped is None else shaped)
        vectors[name] = stop_gradient(cast(flat, losses.dtype) if name == "signal" else flat)
    return vectors


def required(objective: Objective, name: str, given: Any) -> Any:
    """What an objective cannot weigh without, or the error that says how to pass it."""
    if given is None:
        what = objective.signal_is if name == "signal" else "the number of each unit in the data, index=indices"
        raise ValueError(f"{objective!r} needs `{name}`, got None. It is {what}.")
    return given


def check_losses(losses: Any) -> Array:
    """`losses` as an array with a unit axis and floating-point entries, or an error that names the fix."""
    if is_torch(losses) and losses.is_floating_point() and losses.ndim:
        return losses
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


def weigh(
    objective: Objective, losses: Array, state: State, measure: Array | None, groups: Array | None, **seen: Any
) -> Weighed:
    """What `objective.weigh` says of constants, computed where that is fastest; `seen` is what it takes beside them."""
    if seen:
        return objective.weigh(losses, state, measure=measure, groups=groups, **seen)
    if not (objective.neutral and is_torch(losses) and _on_host(objective, losses, state, measure, groups)):
        return objective.weigh(losses, state, measure=measure, groups=groups)
    return _weigh_here(objective, losses, state, measure, groups)


def _weigh_here(
    objective: Objective, losses: Array, state: State, measure: Array | None, groups: Array | None
) -> Weighed:
    """The weights of tensors in the processor's memory, by NumPy: a call into torch costs as much as 256 losses."""
    host: Array = losses.numpy()
    measure = None if measure is None else measure.numpy()
    groups = None if groups is None else groups.numpy()
    if state:
        state = {name: x.numpy() for name, x in state.items()}
    with np.errstate(all="ignore"):  # what is not a number is the caller's to look for, as on every device
        weights, state, value = objective.weigh(host, state, measure=measure, groups=groups)
    if state:
        state = {name: tensor_of(x) for name, x in state.items()}
    return Weighed(tensor_of(weights), state, None if value is None else float(value))


def _on_host(objective: Objective, losses: Array, state: State, measure: Array | None, groups: Array | None) -> bool:
    """Whether all that the weights are made of is a number or in the processor's memory, and of this rank alone."""
    return (
        is_readable(losses)
        and objective.on_host
        and not (objective.separable and losses.shape[0] > _FEW)
        and world_size(losses) == 1
        and (measure is None or measure.is_cpu)
        and (groups is None or groups.is_cpu)
        and (not state or all(x.is_cpu for x in state.values()))
    )


def state_like(state: State, losses: Array) -> State:
    """The state as arrays of the framework of the losses; a fresh state is made of NumPy arrays."""
    if not state:
        return state
    return {name: constant_like(value, losses) for name, value in state.items()}


def total(measure: Array | None, losses: Array) -> Any:
    """How much the batch counts: the number of units, or the sum of their measure (never zero)."""
    if measure is None:
        return losses.shape[0] or 1
    amount = measure.sum()
    # Where nothing counts, the sum above the line is zero too: any positive number below it gives zero.
    return clip(amount, float(namespace(amount).finfo(amount.dtype).tiny), None)


def mean(values: Array, measure: Array | None) -> Array:
    """The mean of `values` under the measure; zero if there are none."""
    if measure is None and values.shape[0]:
        return values.mean()
    return (values if measure is None else values * measure).sum() / total(measure, values)


def _average(integral: Array, measure: Array | None, count: Any) -> Array:
    """The mean of what is the loss to descend, unit by unit."""
    if count is None:
        return mean(integral, measure)
    return (integral if measure is None else integral * measure).sum() / count


def descend(losses: Array, weighed: Weighed, measure: Array | None, count: Any, *, own: bool = False) -> Array:
    """One number whose gradient is the weighted one and whose value is the objective's.

    `own` says that the weights are not needed again.
    """
    weights = weighed.weights if measure is None else weighed.weights * measure
    denominator = total(measure, losses) if count is None else count
    weights = weights.div_(denominator) if own and is_torch(weights) and is_readable(weights) else weights / denominator
    if weighed.value is None:
        return dot(weights, losses)
    value = weighed.value if count is None else weighed.value * (total(measure, losses) / count)
    # The weights are constants, so the value they give is not the objective's own: keep the gradient of the
    # one and the value of the other.
    return with_gradient(value, weights, losses)


def measured(losses: Array, mask: Any, sample_weight: Any, nonfinite: Nonfinite | None) -> tuple[Array, Array | None]:
    """The losses as a wide vector with zeros where nothing counts, and how much each entry counts."""
    flat = widen(flatten(losses))
    if mask is None and sample_weight is None and (nonfinite == "propagate" or (nonfinite is None and is_torch(flat))):
        return flat, None
    xp = namespace(losses)
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
    """Say that a lower clip at zero makes most units look equally easy."""
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
    """What is given besides the losses, entry by entry, as a vector of their framework."""
    given = as_array_like(given, losses)
    if given.shape != losses.shape:
        raise ValueError(
            f"`{name}` must have the shape of the losses, {tuple(losses.shape)}, got {tuple(given.shape)}. "
            "Shapes are not broadcast here, because a silent (B, B) would be worse than an error."
        )
    return flatten(given)
