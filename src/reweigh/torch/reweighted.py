"""The one-line change for PyTorch: a criterion that re-weights itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh._array import are_readable, as_array_like, dot, flatten, widen, world_size
from reweigh._carry import carried, with_hyper_parameters
from reweigh.method import Context, Method, ObjectiveLike
from reweigh.monitor import Monitor
from reweigh.objectives._base import (
    Nonfinite,
    Objective,
    Weighed,
    beside,
    check_losses,
    raise_if_not_finite,
    total,
    weigh,
)
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.mean import Mean
from reweigh.objectives.rgd import RGDOptions
from reweigh.post import Correction, Post
from reweigh.torch._criterion import Criterion, Elements, is_hooked
from reweigh.torch._entropy import entropy
from reweigh.torch._fused import MANY, one_pass, rows
from reweigh.torch._passes import STEPS, in_backward, is_wrapped, unwrapped
from reweigh.torch._segments import sum_by_segment
from reweigh.torch.losses import CrossEntropy, Loss

__all__ = ["Reweighted", "global_count"]

Level = Literal["sample", "token", "sequence"] | Callable[[Tensor], Tensor]
#: Why parts of a method are not a criterion's.
_NOT_A_CRITERION = {
    "sampler": "a criterion sees batches that are drawn already",
    "step": "a criterion gives the loss and leaves the update to its caller",
    "average": "a criterion does not see the model's weights",
}


#: torch.nn.functional.cross_entropy without its checks of old arguments, and its number for no reduction.
_cross_entropy: Any = torch._C._nn.cross_entropy_loss  # pyright: ignore
_NONE = 0


class Units(NamedTuple):
    """The elements of a loss gathered into the units that get a weight each.

    `own` has the class weights in it and `measure` is what its mean divides by; `seen` is what the objective looks at.
    """

    own: Tensor
    seen: Tensor
    measure: Tensor | None


class Reweighted(nn.Module):
    r"""A torch criterion with re-weighting: `Reweighted(nn.CrossEntropyLoss(), tau=1.0)`.

    Takes any criterion, module or function, averaged or not, and uses its unreduced losses. The weight of a unit
    comes from the loss *without* class weights and multiplies the loss *with* them, divided by what the
    criterion's own mean divides by. Evaluation is plain: in `eval()` mode, or with gradients disabled, the criterion's
    own value comes out, whatever the level.

    Parameters
    ----------
    criterion
        A loss module (`nn.CrossEntropyLoss(weight=..., ignore_index=..., label_smoothing=...)`,
        `nn.BCEWithLogitsLoss(...)`, `nn.MSELoss()` …), a function such as `F.cross_entropy`, any callable that
        returns a loss per unit, or a method that names loss, objective and correction at once,
        `"class_balanced+rgd:tau=3+prior"`.
    objective
        What turns unit losses into weights: an objective, a weight function such as `KL()`, or a method or its text
        (`"cvar:alpha=0.1"`); `RGD(**hyper_parameters)` unless given.
    level
        Which unit gets a weight, when the loss has more than one axis:
        `"sample"`: the mean over b of :math:`w_b` times the mean over the rest;
        `"token"`: each element on its own, :math:`\sum w\,\ell\,m / \sum m`;
        `"sequence"`: :math:`\sum_b w_b \sum_t \ell\,m / \sum m` with :math:`w_b` from the sequence mean; or
        a callable from the unreduced losses to a vector of unit losses, such as a mean over some axes. Ignored
        elements are zeros there; the callable is applied to masks and class weights too, so that they keep their
        meaning.
    floor
        Whether to subtract the smallest value the loss can take for its target (the target's entropy, with
        label smoothing, mixup or soft targets) from what the *weight* sees. Without it a smoothed loss of 1000
        classes never falls below tau = 1, and re-weighting would silently be plain training.
    nonfinite
        `"propagate"`, `"raise"` or `"skip"` units whose loss is NaN or infinite. Skipped units leave no trace in the
        gradient either, as long as the model made their outputs from numbers: NaN targets and overflowing losses can
        be skipped, NaN features cannot.
    class_counts
        Training examples of each class, for losses and corrections that need them. `"auto"` leaves the counting to the
        host (`WeightLog` in Lightning and skorch, `watch` in the Hugging Face Trainer), or to a call of `bind`.
    accumulation
        Micro-batches per optimiser step. A stateful objective then updates once per step, from the losses of all of
        them.
    **hyper_parameters
        `tau`, `divergence` and the other keywords of :class:`~reweigh.RGD`, in place of `objective`.

    Returns
    -------
    Tensor
        `criterion(output, target)` gives a scalar; the criterion's own keywords (`input=`, `target=`,
        `target_lengths=`) work as well. Per call: `count` (denominator), `groups`, `signal` and `index` for objectives
        that weigh by more than the loss (:class:`~reweigh.objectives.entropy.Entropy` needs none where the criterion
        takes logits of classes), `sample_weight`, one per unit or one per element of the loss, through which no
        gradient flows, and `segments`, for `level="sequence"` with several sequences per row: the sequence that each
        element belongs to, :func:`reweigh.torch.segments`. Units are then these; their vectors have room for as many
        as there are elements, with measure zero beyond the last. A `signal` in the shape of the losses is averaged over
        each sequence.

    Examples
    --------
    >>> import torch
    >>> criterion = Reweighted(torch.nn.CrossEntropyLoss(), tau=1.0)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> loss = criterion(logits, torch.tensor([0, 0]))
    >>> [round(w, 3) for w in criterion.weights.tolist()]
    [1.066, 1.649]

    Notes
    -----
    After a call in training, `losses` and `weights` hold the detached unit losses and weights, `mask` says which units
    counted, and `stats()` summarises them on demand; `Monitor.update(criterion)` takes all three. With the default
    level and ignored labels every sample counts alike in training, however many of its labels are ignored, while the
    criterion's own mean, and so evaluation, counts labels: `level="sequence"` trains by that mean too.

    The state of stateful objectives lives in buffers. It advances once per optimiser step: a forward pass that
    activation checkpointing repeats, and every further closure of one `optimizer.step(closure)`, sees the state that
    the first one saw and leaves it alone. Checkpoints of the bare criterion load into the wrapped one, and
    micro-batches that wait for the rest of their step are saved. With `surrogate` the value is Phi's and the gradient
    that of the weighted sum; for the second derivative of Phi use `rgd(losses, surrogate=True)`. For regression, tau is
    in units of the loss, so standardise targets, and mind that `nn.MSELoss` has no factor 1/2.
    """

    def __init__(
        self,
        criterion: Callable[..., Any] | str | Method,
        objective: ObjectiveLike | None = None,
        *,
        level: Level = "sample",
        floor: bool = True,
        nonfinite: Nonfinite = "propagate",
        class_counts: Sequence[int] | Literal["auto"] | None = None,
        accumulation: int = 1,
        **hyper_parameters: Unpack[RGDOptions],
    ) -> None:
        super().__init__()
        if not callable(level):
            validate.one_of("level", level, ("sample", "token", "sequence"), "Or pass a callable.")
        validate.boolean("floor", floor)
        validate.one_of("nonfinite", nonfinite, ("propagate", "raise", "skip"))
        validate.whole("accumulation", accumulation, 1)
        chosen = _method(criterion, objective, hyper_parameters)
        self.criterion = Criterion(chosen.loss, floor=floor)
        self.objective: Objective = chosen.objective
        self.post: Post | None = chosen.post
        self.class_counts: Sequence[int] | Literal["auto"] | None = None
        if isinstance(class_counts, str):
            validate.one_of("class_counts", class_counts, ("auto",), "Or pass the number of examples of each class.")
            self.class_counts = class_counts
        elif class_counts is not None:
            self.bind(class_counts)
        self.level: Level = level
        self.nonfinite: Nonfinite = nonfinite
        self.accumulation = accumulation
        self._state_names: tuple[str, ...] = ()
        for name, value in (self.objective.init() or {}).items():
            self.register_buffer(f"state_{name}", torch.as_tensor(value))
            self._state_names += (name,)
        self._pooled: list[_Micro] = []
        self._before: dict[str, Tensor] = {}  # the state that the last step started from
        self._moved_in = -1  # the call of `optimizer.step` in which the state moved last
        self._without_gradient = False  # whether the last call in training mode had gradients disabled
        self._last: tuple[Units, Tensor] | None = None
        self._elements: tuple[Tensor, Tensor | None] | None = None
        if self._state_names:
            STEPS.watch()

    @property
    def losses(self) -> Tensor | None:
        """The unit losses of the last training call, detached: what the weights were made from."""
        return None if self._last is None else self._last[0].seen

    @property
    def weights(self) -> Tensor | None:
        """The unit weights of the last training call."""
        return None if self._last is None else self._last[1]

    @property
    def units(self) -> Units | None:
        """The units of the last training call, detached: losses with and without class weights, and their amounts."""
        return None if self._last is None else self._last[0]

    @property
    def mask(self) -> Tensor | None:
        """Which units of the last training call counted; None when all did."""
        measure = None if self._last is None else self._last[0].measure
        return None if measure is None else measure > 0

    @property
    def plain(self) -> tuple[Tensor, Tensor | int] | None:
        """The criterion's own loss of the last training call, summed, and what its mean divides that by."""
        if self._elements is None:
            return None
        own, measure = self._elements
        return own.sum(), own.numel() if measure is None else measure.sum()

    @property
    def progress(self) -> float:
        """The share of training done, from 0 to 1, for losses whose class weights start late (LDAM)."""
        return self.criterion.progress

    @progress.setter
    def progress(self, share: float) -> None:
        self.criterion.progress = share

    def forward(
        self,
        *inputs: Any,
        sample_weight: Tensor | None = None,
        groups: Tensor | None = None,
        signal: Tensor | None = None,
        index: Tensor | None = None,
        segments: Tensor | None = None,
        count: Tensor | float | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The loss to descend in training; the criterion's own value otherwise."""
        trains = self.training and torch.is_grad_enabled()
        bare = trains and sample_weight is groups is signal is index is segments is count is None
        if bare and len(inputs) == 2 and not keywords:
            loss = self._of_rows_here(*inputs)
            if loss is not None:
                return loss
        criterion = self.criterion
        if self.class_counts == "auto":
            _refuse_to_guess(criterion.inner)
        if keywords:
            inputs, keywords = criterion.bind(inputs, keywords)
        if self.nonfinite == "skip":
            inputs = tuple(_NoNanBackward.apply(x) if _takes_gradient(x) else x for x in inputs)
        alone = sample_weight is segments is None and self.nonfinite == "propagate" and not callable(self.level)
        fused = one_pass(criterion, inputs) if trains and alone else None
        # No hooks on a part of our own; the caller's criterion has its own.
        elements = criterion.forward(*inputs, **keywords) if fused is None else fused.elements
        if bare and fused is None:
            loss = self._of_plain(elements)
            if loss is not None:
                return loss
        dtype = elements.own.dtype
        sample_weight, groups, signal, index = (
            None if given is None else as_array_like(given, elements.own)
            for given in (sample_weight, groups, signal, index)
        )
        if sample_weight is not None:
            sample_weight = sample_weight.detach()
            if elements.own.ndim > 1 and sample_weight.shape == elements.own.shape:
                elements, sample_weight = _weighted(elements, sample_weight), None
        level = self._level(trains, sample_weight, count)
        if segments is not None:
            _check_segments(segments, elements, self.level)
        if trains and signal is None and isinstance(self.objective, Entropy) and criterion.takes_logits:
            signal = _entropies(criterion.logits(inputs[0]), elements, level)
        if level == "sequence":
            signal = _mean_signal(signal, elements, segments)
        units = self._units(_gather(elements, level, segments), sample_weight)
        count = criterion.total if count is None else count
        if not trains:
            self._last = self._elements = None
            self._without_gradient = self.training
            weighed = Weighed(torch.ones_like(units.seen))
        else:
            weighed = self._weigh(units, groups, signal, index)
            self._last = (Units(units.own.detach(), units.seen, units.measure), weighed.weights)
            counted = elements if sample_weight is None else units  # weights of units are the caller's, and count
            self._elements = (counted.own.detach(), counted.measure)
            if not torch.compiler.is_compiling() and is_wrapped(weighed.weights):
                self._unwrap()
        loss = _descend(units, weighed, count)
        if fused is not None:
            loss = fused.descend(inputs[0], loss, _shares(elements, units, weighed, level, count))
        return loss.to(dtype)

    def _of_plain(self, elements: Elements) -> Tensor | None:
        """The loss where every element is a unit that counts one and nothing is remembered: in the fewest steps.

        Each step costs as much as the weights of a small batch.
        """
        own, seen, measure, _ = elements
        if (
            measure is not None
            or own.ndim != 1
            or own.dtype.itemsize < 4
            or self._state_names
            or self.objective.takes
            or self.nonfinite != "propagate"
            or self.criterion.total is not None
            or not own.shape[0]
            or callable(self.level)
        ):
            return None
        weighed = weigh(self.objective, seen, (), None, None)
        constant = own.detach()
        self._last = (Units(constant, seen, None), weighed.weights)
        self._elements = (constant, None)
        if not torch.compiler.is_compiling() and is_wrapped(weighed.weights):
            self._unwrap()
        loss = own.dot(weighed.weights / own.shape[0])
        return loss if weighed.value is None else loss + (weighed.value - loss).detach()

    def _of_rows_here(self, output: Any, target: Any) -> Tensor | None:
        """The cross entropy of rows that all count, where nothing is remembered: in the fewest steps.

        On the processor each step costs as much as the weights of a small batch. None for everything else.
        """
        objective = self.objective
        criterion: Any = self._modules["criterion"]  # `self.criterion` is a search in Python
        inner = criterion._modules.get("inner")
        if (
            type(inner) is not nn.CrossEntropyLoss
            or not are_readable(output, target)
            or output.ndim != 2
            or output.dtype.itemsize < 4
            or target.dtype != torch.int64
            or inner.label_smoothing
            or criterion.total is not None
            or self.nonfinite != "propagate"
            or callable(self.level)
            or self._state_names
            or objective.takes
            or not objective.on_host
            or is_hooked(inner)
            or (not objective.separable and world_size(output) > 1)
        ):
            return None
        class_weight = inner._buffers["weight"]
        if class_weight is not None and (not are_readable(class_weight) or class_weight.dtype != output.dtype):
            return None
        many = rows(output, target, inner.ignore_index) if output.numel() >= MANY else None
        if many is not None:
            own = seen = many.losses
            losses = seen.numpy()
        else:
            own = _cross_entropy(output, target, None, _NONE, inner.ignore_index, 0.0)
            seen = own.detach()
            losses = seen.numpy()
            # An ignored label has a loss of zero. So has one that is certain: both are left to the long way.
            if not own.shape[0] or losses.itemsize < 4 or np.count_nonzero(losses) < losses.shape[0]:
                return None
        measure = None if class_weight is None else class_weight.detach().numpy()[target.numpy()]
        if objective.bounded:
            weights, _, value = objective.weigh(losses, (), measure=measure)
        else:
            with np.errstate(all="ignore"):  # what is not a number is the caller's to look for, as on every device
                weights, _, value = objective.weigh(losses, (), measure=measure)
        if measure is None:
            shares = torch.from_numpy(weights / losses.shape[0])
            units = Units(seen, seen, None)
        else:
            shares = torch.from_numpy(weights * (measure / total(measure, losses)))
            units = Units(torch.from_numpy(losses * measure), seen, torch.from_numpy(measure))
        loss = own.dot(shares)
        if value is not None:
            loss.detach().fill_(float(value))  # in place: the product is not needed to differentiate it
        if many is not None:
            loss = many.descend(output, loss, shares)
        kept = self.__dict__  # `nn.Module` looks for parameters in all that is set
        kept["_last"], kept["_elements"] = (units, torch.from_numpy(weights)), (units.own, units.measure)
        return loss

    def _level(self, trains: bool, sample_weight: Tensor | None, count: Any) -> Level:
        """How elements become units in this call."""
        if not trains and count is None and sample_weight is None:
            return "token"  # whatever the units, the plain sum over all elements is the criterion's own
        # The plain mean of sequences is the criterion's own, and so is the sum of samples where it sums.
        if self.level == "sample" and (self.criterion.total or not (trains or count is not None)):
            return "sequence"
        return self.level

    def bind(self, class_counts: Sequence[int]) -> None:
        """Tell loss and correction how many training examples each class has."""
        self.class_counts = tuple(class_counts)
        if isinstance(self.criterion.inner, Loss):
            self.criterion.inner = self.criterion.inner.bind(self.class_counts)

    def correction(self, outputs: Any, targets: Any, *, classifier: tuple[Any, Any] | None = None) -> Correction:
        """What the method does after training, fitted to held-out rows.

        Parameters
        ----------
        outputs, targets
            Logits of held-out rows, `(n, classes)`, from any framework, and their classes. Corrections that learn from
            none, such as `prior`, take any rows.
        classifier
            Weight and bias of the model's last layer, for `tau_norm`.

        Returns
        -------
        Correction
            Call it with the logits of any rows; see :mod:`reweigh.post`.
        """
        if self.post is None:
            raise ValueError(
                "the method has no correction after training. Name one, as in Reweighted('rgd:tau=3+prior', "
                "class_counts=[...])."
            )
        counts = None if isinstance(self.class_counts, str) else self.class_counts
        post = self.post.after([self.criterion.inner], counts)
        return post.fit(outputs, targets, Context(class_counts=counts, classifier=classifier))

    def stats(self) -> dict[str, float]:
        """Statistics of the last training call: clip share, mean weight, effective sample size and so on."""
        if self._last is None:
            return {}
        monitor = Monitor.of(self.objective)
        monitor.update(self)
        return monitor.stats()

    def flush(self) -> None:
        """Advance a stateful objective by the micro-batches so far, where a step has fewer than `accumulation`.

        For trainers that end an epoch with a shorter step: call it before the optimiser's step. Nothing happens when
        the step was complete.
        """
        if self._pooled:
            self._move(self._state(), self._pool())

    def extra_repr(self) -> str:
        """The options, as one would write them."""
        level = self.level if isinstance(self.level, str) else getattr(self.level, "__name__", repr(self.level))
        return f"objective={self.objective!r}, level={level!r}, floor={self.criterion.floor}"

    def _units(self, units: Units, sample_weight: Tensor | None) -> Units:
        """The units with the caller's own weights, and without losses that are not numbers."""
        own, seen, measure = units
        check_losses(own)
        if sample_weight is not None:
            if sample_weight.shape != own.shape:
                raise ValueError(
                    f"`sample_weight` must have one entry per unit, shape {tuple(own.shape)}, got "
                    f"{tuple(sample_weight.shape)}."
                )
            sample_weight = sample_weight.to(own.dtype)
            own = own * sample_weight
            measure = sample_weight if measure is None else measure * sample_weight
        if self.nonfinite == "raise":
            raise_if_not_finite(seen, None)
        elif self.nonfinite == "skip":
            finite = torch.isfinite(seen)
            own, seen = torch.where(finite, own, 0.0), torch.where(finite, seen, 0.0)
            measure = finite.to(own.dtype) if measure is None else torch.where(finite, measure, 0.0)
        return Units(own, seen, measure)

    def _weigh(
        self, units: Units, groups: Tensor | None, signal: Tensor | None = None, index: Tensor | None = None
    ) -> Weighed:
        seen: dict[str, Any] = {}
        if self.objective.takes:
            signal, index = (
                given.flatten() if given is not None and given.numel() == units.seen.numel() else given
                for given in (signal, index)
            )
            seen = beside(self.objective, units.seen, signal, index)
        if groups is not None:
            groups = groups.flatten() if groups.numel() == units.seen.numel() else groups
            if groups.shape != units.seen.shape:
                raise ValueError(
                    f"`groups` must have one entry per unit, shape {tuple(units.seen.shape)}, got "
                    f"{tuple(groups.shape)}."
                )
        state = self._state()
        if state and (repeated := self._repeated()):
            return weigh(self.objective, units.seen, repeated, units.measure, groups, **seen)
        weighed = weigh(self.objective, units.seen, state, units.measure, groups, **seen)
        if self.accumulation == 1 and state:
            self._move(state, weighed.state)
        elif state:
            self._pooled.append(_Micro(units.seen, units.measure, groups, **seen))
            if len(self._pooled) >= self.accumulation:
                self._move(state, self._pool())
        return weighed

    def _repeated(self) -> dict[str, Tensor] | None:
        """The state that an earlier pass of this step saw, if this one repeats it: the weights are then the same."""
        if torch.compiler.is_compiling():
            return None
        # Activation checkpointing runs the forward pass again from within a backward pass.
        if in_backward():
            if self._without_gradient:  # the reentrant kind ran without gradients before: this is the first pass
                return None
            # Micro-batches that still wait have not moved the state.
            return self._state() if self._pooled or not self._before else self._before
        self._without_gradient = False
        return self._before if STEPS.inside and self._moved_in == STEPS.number else None

    def _state(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"state_{name}") for name in self._state_names}

    @torch.no_grad()
    def _pool(self) -> dict[str, Tensor]:
        """The state after the losses of all micro-batches together."""
        step = _joined(self._pooled)
        self._pooled.clear()
        seen = {name: getattr(step, name) for name in self.objective.takes}
        return weigh(self.objective, step.losses, self._state(), step.measure, step.groups, **seen).state

    @torch.no_grad()
    def _move(self, state: dict[str, Tensor], following: dict[str, Tensor]) -> None:
        if not torch.compiler.is_compiling():
            self._before = {name: buffer.clone() for name, buffer in state.items()}
            self._moved_in = STEPS.number if STEPS.inside else -1
        for name, buffer in state.items():
            buffer.copy_(following[name])

    def _unwrap(self) -> None:
        """Keep values and not the wrappers of `torch.func`, which are dead once its transform has returned."""
        assert self._last is not None
        assert self._elements is not None
        (own, seen, measure), weights = self._last
        measure = torch.ones_like(weights) if measure is None else measure
        # Members that share a batch share its measure.
        own, seen, measure, weights = torch.broadcast_tensors(*map(unwrapped, (own, seen, measure, weights)))
        self._last = (Units(own, seen, measure), weights)
        losses, amounts = self._elements
        self._elements = (unwrapped(losses), None if amounts is None else unwrapped(amounts))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the buffers, and the micro-batches that wait for the rest of their step."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._pooled:
            sizes = torch.tensor([len(micro.losses) for micro in self._pooled])
            waiting = {"sizes": sizes, **vars(_joined(self._pooled))}
            destination.update({f"{prefix}pooled_{name}": v for name, v in waiting.items() if v is not None})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load what was saved, also by the criterion itself before it was wrapped."""
        inner, own = f"{prefix}criterion.inner.", (f"{prefix}state_", f"{prefix}pooled_")
        names = [name for name in state_dict if name.startswith(prefix)]
        bare = not any(name.startswith((inner, *own)) for name in names)
        if bare:
            for name in names:
                state_dict[inner + name.removeprefix(prefix)] = state_dict.pop(name)
        waiting = {
            name.removeprefix(f"{prefix}pooled_"): state_dict.pop(name)
            for name in names
            if name.startswith(f"{prefix}pooled_")
        }
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys += [] if bare else missing  # a bare criterion has no state: the fresh one stays
        self._pooled = _separated(waiting)
        self._before, self._moved_in = {}, -1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Reweighted:
        """Move the module as torch does, but never the state to a narrower type: its small steps would round away."""
        before = self._state()
        self._before = {}
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = self._buffers[f"state_{name}"]
            if moved is not None and moved.dtype.itemsize < value.dtype.itemsize:
                self._buffers[f"state_{name}"] = value.to(moved.device)
        return self


@dataclass(frozen=True)
class _Micro:
    """A micro-batch whose step is not complete."""

    losses: Tensor
    measure: Tensor | None = None
    groups: Tensor | None = None
    signal: Tensor | None = None
    index: Tensor | None = None


_MICRO_PARTS = tuple(field.name for field in dataclasses.fields(_Micro))


def _joined(micros: list[_Micro]) -> _Micro:
    if any(micro.measure is not None for micro in micros):
        # A micro-batch without a measure is one in which all units count.
        micros = [
            dataclasses.replace(micro, measure=torch.ones_like(micro.losses)) if micro.measure is None else micro
            for micro in micros
        ]
    parts = {name: [getattr(micro, name) for micro in micros] for name in _MICRO_PARTS}
    return _Micro(**{name: torch.cat(each) for name, each in parts.items() if all(x is not None for x in each)})


def _separated(saved: Mapping[str, Tensor]) -> list[_Micro]:
    """The micro-batches that `_joined` joined."""
    if not saved:
        return []
    sizes = saved["sizes"].tolist()
    parts = {name: saved[name].split(sizes) for name in _MICRO_PARTS if name in saved}
    return [_Micro(**dict(zip(parts, micro, strict=True))) for micro in zip(*parts.values(), strict=True)]


def _method(criterion: Any, objective: Any, hyper_parameters: RGDOptions) -> Method:
    """Loss, objective and correction that the arguments of :class:`Reweighted` stand for; the loss is any criterion."""
    if isinstance(criterion, type):
        raise TypeError(
            f"`criterion` must be a module or a function, got the class {criterion.__name__}. Call it: "
            f"{criterion.__name__}()."
        )
    if criterion is None:
        raise TypeError(
            "`criterion` must be a module, a function or a method, got None. For example nn.CrossEntropyLoss()."
        )
    is_method = isinstance(criterion, (str, Method))
    named = _carried(criterion) if is_method else Method(loss=criterion)
    if named.loss is None:
        named = dataclasses.replace(named, loss=CrossEntropy())
    if objective is None:
        chosen = with_hyper_parameters(named if is_method else None, hyper_parameters)
        return dataclasses.replace(named, objective=chosen.objective)
    chosen = with_hyper_parameters(_carried(objective), hyper_parameters)
    if named.objective != Mean():
        raise TypeError(f"the method {str(named)!r} has an objective of its own, got {objective} as well. Keep one.")
    if chosen.loss is not None:
        raise ValueError(
            f"the method {str(chosen)!r} has a loss of its own, got {criterion!r} as well. Pass the method alone, "
            "Reweighted(method), or leave its loss out."
        )
    return dataclasses.replace(named, objective=chosen.objective, post=chosen.post or named.post)


def _carried(given: Any) -> Method:
    return carried(given, ("loss", "objective", "post"), "Reweighted", why=_NOT_A_CRITERION)


def _refuse_to_guess(inner: Any) -> None:
    if "class_counts" in getattr(inner, "needs", ()) and getattr(inner, "class_counts", None) is None:
        raise ValueError(
            f"{inner!r} needs the number of examples of each class, and class_counts='auto' leaves the counting to a "
            "host that has not done it. Add its callback (WeightLog in Lightning and skorch, watch(trainer) in the "
            "Hugging Face Trainer), or call criterion.bind(class_counts)."
        )


class _NoNanBackward(torch.autograd.Function):
    """The input itself; of its gradient, NaN becomes zero.

    A unit that is left out multiplies its gradient by zero, and zero times NaN is NaN. Infinite gradients pass: an
    overflow in half precision is for the gradient scaler to see.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.where(torch.isnan(gradients[0]), 0.0, gradients[0])


def _takes_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def global_count(
    count: Tensor | float,
    device: torch.device | str | None = None,
    *,
    group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """The denominator under data parallel: the number of units over all ranks, divided by the number of ranks.

    DDP and FSDP *average* gradients over ranks, so a sum divided by this is the mean over the global batch even
    when ranks hold different numbers of units. Without data parallel it is the count itself.

    Parameters
    ----------
    count
        This rank's units: a number, or a tensor such as `mask.sum()`.
    device
        Where to put the result when `count` is a number.
    group
        The process group over which gradients are averaged, where that is not all ranks: for a device mesh with a
        tensor-parallel axis, `mesh.get_group("data")`.

    Returns
    -------
    Tensor
        A 0-d tensor to pass as `count=`.

    Examples
    --------
    >>> global_count(32)
    tensor(32.)
    """
    amount = torch.as_tensor(count, dtype=torch.float32, device=device).clone()
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return amount
    ranks = distributed.get_world_size(group)
    if ranks > 1:
        distributed.all_reduce(amount, group=group)
    return amount / ranks


def _weighted(elements: Elements, sample_weight: Tensor) -> Elements:
    """The elements with a weight of the caller's own for each."""
    own, seen, measure, mask = elements
    sample_weight = sample_weight.to(widen(own).dtype)
    return Elements(own * sample_weight, seen, sample_weight if measure is None else measure * sample_weight, mask)


def _check_segments(segments: Tensor, elements: Elements, level: Level) -> None:
    if level != "sequence":
        raise ValueError(f"`segments` are the sequences of packed rows, for level='sequence'; got level={level!r}.")
    if segments.shape != elements.own.shape:
        raise ValueError(
            f"`segments` must have the shape of the losses, {tuple(elements.own.shape)}, got {tuple(segments.shape)}. "
            "They are those of the targets: shift them as labels are shifted."
        )


def _mean_signal(signal: Tensor | None, elements: Elements, segments: Tensor | None) -> Tensor | None:
    """The signal of each sequence, where there is one for each element."""
    own, mask = elements.own, elements.mask
    if signal is None or (own.ndim == 1 and segments is None) or signal.shape != own.shape:
        return signal
    return _gather(Elements(own.detach(), signal.detach(), None, mask), "sequence", segments).seen


def _entropies(logits: Tensor, elements: Elements, level: Level) -> Tensor:
    """How undecided the prediction of each element is; of each unit, where a unit is a mean over elements."""
    each = entropy(logits.movedim(1, -1))
    if each.ndim == 1 or level in ("token", "sequence"):
        return each
    return _gather(Elements(elements.own.detach(), each, None, elements.mask), level).seen


def _gather(elements: Elements, level: Level, segments: Tensor | None = None) -> Units:
    """Elements into units, so that the criterion's mean stays `own.sum() / measure.sum()`, in float32 at least."""
    own, seen, measure, mask = elements
    own, seen = widen(own), widen(seen)
    if callable(level):
        return _gather_by(level, own, seen, measure, mask)
    if level == "sequence" and segments is not None:
        numbers = flatten(segments)
        real = torch.ones_like(flatten(own)) if mask is None else flatten(mask).to(own.dtype)
        sizes = sum_by_segment(real, numbers)
        seen = sum_by_segment(flatten(seen) * real, numbers) / sizes.clamp(min=1)
        measure = sizes if measure is None else sum_by_segment(flatten(measure).to(own.dtype), numbers)
        return Units(sum_by_segment(flatten(own), numbers), seen, measure)
    if own.ndim == 1 or level == "token":
        return Units(flatten(own), flatten(seen), None if measure is None else flatten(measure))
    length = _lengths(own, mask)
    summed = own.flatten(1).sum(1)
    if seen is own:
        seen = summed / length
    else:
        seen = (seen if mask is None else torch.where(mask, seen, 0.0)).flatten(1).sum(1) / length
    if level == "sequence":
        share = own.new_full(own.shape[:1], own[0].numel()) if measure is None else measure.flatten(1).sum(1)
        return Units(summed, seen, share)
    return Units(summed / length, seen, None if measure is None else measure.flatten(1).sum(1) / length)


def _gather_by(
    level: Callable[[Tensor], Tensor], own: Tensor, seen: Tensor, measure: Tensor | None, mask: Tensor | None
) -> Units:
    """Units by the caller's own rule, which is applied to masks and class weights as well."""
    if measure is None and mask is None:
        return Units(flatten(level(own)), flatten(level(seen)), None)
    whole = level(torch.ones_like(seen))
    units = level(seen)
    if mask is not None:
        # What the weight sees is that of the real elements: a mean over three of five is three fifths too small.
        share = level(mask.to(seen.dtype)) / whole
        units = level(torch.where(mask, seen, 0.0)) / torch.where(share > 0, share, 1.0)
    amounts = None if measure is None else flatten(level(measure.to(own.dtype)) / whole)
    return Units(flatten(level(own)), flatten(units), amounts)


def _lengths(own: Tensor, mask: Tensor | None) -> Tensor | int:
    """How many elements of each sample are real."""
    return own[0].numel() if mask is None else mask.flatten(1).sum(1).clamp(min=1).to(own.dtype)


def _shares(elements: Elements, units: Units, weighed: Weighed, level: Level, count: Any) -> Tensor:
    """What each element counts in the loss, as its unit's weight has it."""
    own = elements.own
    each = weighed.weights / (total(units.measure, units.own) if count is None else count)
    if own.ndim == 1 or level == "token":
        return each.view_as(own)
    each = each / _lengths(own, elements.mask) if level == "sample" else each
    return each.view(-1, *[1] * (own.ndim - 1)).expand_as(own)


def _descend(units: Units, weighed: Weighed, count: Any) -> Tensor:
    """The weighted sum over what the criterion's mean divides by."""
    # The measure is already inside `own`, so it enters the denominator only.
    denominator = total(units.measure, units.own) if count is None else count
    loss = dot(weighed.weights / denominator, units.own)
    if weighed.value is None:
        return loss
    # As in every objective: the gradient of the weighted sum, the value of what is really minimised.
    value = weighed.value if count is None else weighed.value * (total(units.measure, units.own) / count)
    return loss + (value - loss).detach()
