"""The one-line change for PyTorch: a criterion that re-weights itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh._array import dot, flatten, widen, world_size
from reweigh.monitor import Monitor
from reweigh.objectives._base import Nonfinite, Objective, Weighed, check_losses, raise_if_not_finite, total
from reweigh.objectives.rgd import RGD
from reweigh.torch._criterion import Criterion, Elements

__all__ = ["Reweighted", "global_count"]

Level = Literal["sample", "token", "sequence"] | Callable[[Tensor], Tensor]


class Units(NamedTuple):
    """The elements of a loss gathered into the units that get a weight each.

    The criterion's mean is `own.sum() / measure.sum()`; `seen` is what the objective looks at.
    """

    own: Tensor
    seen: Tensor
    measure: Tensor | None


class Reweighted(nn.Module):
    r"""A torch criterion with re-weighting: `Reweighted(nn.CrossEntropyLoss(), tau=1.0)`.

    Takes any criterion, module or function, averaged or not, and uses its unreduced losses. The weight of a unit
    comes from the loss *without* class weights and multiplies the loss *with* them, divided by what the
    criterion's own mean divides by. Evaluation is plain: in `eval()` mode, or with gradients disabled, every weight
    is one.

    Parameters
    ----------
    criterion
        A loss module (`nn.CrossEntropyLoss(weight=..., ignore_index=..., label_smoothing=...)`,
        `nn.BCEWithLogitsLoss(...)`, `nn.MSELoss()` …), a function such as `F.cross_entropy`, or any callable that
        returns a loss per unit.
    objective
        What turns unit losses into weights; `RGD(**hyper_parameters)` unless given.
    level
        Which unit gets a weight, when the loss has more than one axis:
        `"sample"`: the mean over b of :math:`w_b` times the mean over the rest;
        `"token"`: each element on its own, :math:`\sum w\,\ell\,m / \sum m`;
        `"sequence"`: :math:`\sum_b w_b \sum_t \ell\,m / \sum m` with :math:`w_b` from the sequence mean; or
        a callable from the unreduced losses to a vector of unit losses.
    floor
        Whether to subtract the smallest value the loss can take for its target (the target's entropy, with
        label smoothing, mixup or soft targets) from what the *weight* sees. Without it a smoothed loss of 1000
        classes never falls below tau = 1, and re-weighting would silently be plain training.
    nonfinite
        `"propagate"`, `"raise"` or `"skip"` units whose loss is NaN or infinite. Skipped units leave no trace in the
        gradient either, as long as the model made their outputs from numbers: NaN targets and overflowing losses can
        be skipped, NaN features cannot.
    accumulation
        Micro-batches per optimiser step. A stateful objective then updates once a step, from the losses of all of
        them.
    **hyper_parameters
        `tau`, `divergence` and the other fields of :class:`~reweigh.RGD`, in place of `objective`.

    Returns
    -------
    Tensor
        `criterion(output, target)` gives a scalar. Per call: `count` (denominator), `sample_weight` and `groups`.

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
    counted, and `stats()` summarises them on demand. The state of stateful objectives lives in buffers. For regression,
    tau is in units of the loss, so standardise targets, and mind that `nn.MSELoss` has no factor 1/2.
    """

    def __init__(
        self,
        criterion: Callable[..., Any],
        objective: Objective | None = None,
        *,
        level: Level = "sample",
        floor: bool = True,
        nonfinite: Nonfinite = "propagate",
        accumulation: int = 1,
        **hyper_parameters: Any,
    ) -> None:
        super().__init__()
        if objective is not None and hyper_parameters:
            raise TypeError(
                f"give either an objective or hyper-parameters of RGD, got {objective!r} and "
                f"{', '.join(hyper_parameters)}. Put them into the objective."
            )
        if not callable(level):
            validate.one_of("level", level, ("sample", "token", "sequence"), "Or pass a callable.")
        validate.one_of("nonfinite", nonfinite, ("propagate", "raise", "skip"))
        validate.whole("accumulation", accumulation, 1)
        self.criterion = Criterion(criterion, floor=floor)
        self.objective: Objective = RGD(**hyper_parameters) if objective is None else objective
        self.level: Level = level
        self.nonfinite: Nonfinite = nonfinite
        self.accumulation = accumulation
        self._state_names: tuple[str, ...] = ()
        for name, value in (self.objective.init() or {}).items():
            self.register_buffer(f"state_{name}", torch.as_tensor(value))
            self._state_names += (name,)
        self._pooled: list[tuple[Tensor, Tensor | None, Tensor | None]] = []
        self._last: tuple[Units, Tensor] | None = None

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
        """The units of the last training call, detached: the plain loss is `own.sum() / measure.sum()`."""
        return None if self._last is None else self._last[0]

    @property
    def mask(self) -> Tensor | None:
        """Which units of the last training call counted; None when all did."""
        measure = None if self._last is None else self._last[0].measure
        return None if measure is None else measure > 0

    def forward(
        self,
        *inputs: Any,
        sample_weight: Tensor | None = None,
        groups: Tensor | None = None,
        count: Tensor | float | None = None,
    ) -> Tensor:
        """The loss to descend in training; the criterion's plain loss, at the same level, otherwise."""
        criterion = self.criterion
        if self.nonfinite == "skip":
            inputs = tuple(_NoNanBackward.apply(x) if _takes_gradient(x) else x for x in inputs)
        elements = criterion.forward(*inputs)  # no hooks on a part of our own; the caller's criterion has its own
        # Where the criterion sums, a sample counts with the sum over its elements.
        level = "sequence" if criterion.total and self.level == "sample" else self.level
        units = self._units(_gather(elements, level), sample_weight)
        count = criterion.total if count is None else count
        if not self.training or not torch.is_grad_enabled():
            self._last = None
            weighed = Weighed(torch.ones_like(units.seen))
        else:
            weighed = self._weigh(units, groups)
            self._last = (Units(units.own.detach(), units.seen, units.measure), weighed.weights)
        return _descend(units, weighed, count).to(elements.own.dtype)

    def stats(self) -> dict[str, float]:
        """Statistics of the last training call: clip share, mean weight, effective sample size and so on."""
        if self._last is None:
            return {}
        units, weights = self._last
        monitor = Monitor.of(self.objective)
        monitor.update(units.seen, weights, mask=self.mask)
        return monitor.stats()

    def flush(self) -> None:
        """Let a stateful objective move on from the micro-batches so far, where a step has fewer than `accumulation`.

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
        """The units with the caller's own weights, and without losses that are no numbers."""
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

    def _weigh(self, units: Units, groups: Tensor | None) -> Weighed:
        if groups is not None and groups.shape != units.seen.shape:
            raise ValueError(
                f"`groups` must have one entry per unit, shape {tuple(units.seen.shape)}, got {tuple(groups.shape)}."
            )
        state = self._state()
        weighed = self.objective.weigh(units.seen, state, measure=units.measure, groups=groups)
        if self.accumulation == 1 and state:
            self._move(state, weighed.state)
        elif state:
            self._pooled.append((units.seen, units.measure, groups))
            if len(self._pooled) >= self.accumulation:
                self._move(state, self._pool())
        return weighed

    def _state(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"state_{name}") for name in self._state_names}

    @torch.no_grad()
    def _pool(self) -> dict[str, Tensor]:
        """The state after the losses of all micro-batches together."""
        losses, measures, groups = zip(*self._pooled, strict=True)
        self._pooled.clear()
        if all(measure is None for measure in measures):
            measure = None
        else:  # a micro-batch without a measure is one in which all units count
            measure = torch.cat([torch.ones_like(x) if m is None else m for x, m in zip(losses, measures, strict=True)])
        together = None if any(part is None for part in groups) else torch.cat(groups)
        return self.objective.weigh(torch.cat(losses), self._state(), measure=measure, groups=together).state

    @torch.no_grad()
    def _move(self, state: dict[str, Tensor], following: dict[str, Tensor]) -> None:
        for name, buffer in state.items():
            buffer.copy_(following[name])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Reweighted:
        """Move the module as torch does, but never the state to a narrower type: its small steps would round away."""
        before = self._state()
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = self._buffers[f"state_{name}"]
            if moved is not None and moved.dtype.itemsize < value.dtype.itemsize:
                self._buffers[f"state_{name}"] = value.to(moved.device)
        return self


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


def global_count(count: Tensor | float, device: torch.device | str | None = None) -> Tensor:
    """The denominator under data parallel: the number of units over all ranks, divided by the number of ranks.

    DDP and FSDP *average* gradients over ranks, so a sum divided by this is the mean over the global batch even
    when ranks hold different numbers of units. Without data parallel it is the count itself.

    Parameters
    ----------
    count
        This rank's units: a number, or a tensor such as `mask.sum()`.
    device
        Where to put the result when `count` is a number.

    Returns
    -------
    Tensor
        A 0-d tensor to pass as `count=`.

    Examples
    --------
    >>> global_count(32)
    tensor(32.)
    """
    total = torch.as_tensor(count, dtype=torch.float32, device=device).clone()
    ranks = world_size(total)
    if ranks > 1:
        torch.distributed.all_reduce(total)
    return total / ranks


def _gather(elements: Elements, level: Level) -> Units:
    """Elements into units, so that the criterion's mean stays `own.sum() / measure.sum()`, in float32 at least."""
    own, seen, measure, mask = elements
    own, seen = widen(own), widen(seen)
    if callable(level):
        return Units(level(own), level(seen), None)
    if own.ndim == 1 or level == "token":
        return Units(flatten(own), flatten(seen), None if measure is None else flatten(measure))
    own, seen = own.flatten(1), seen.flatten(1)
    real = None if mask is None else mask.flatten(1).to(own.dtype)
    length = own.shape[1] if real is None else real.sum(1).clamp(min=1)
    seen = (seen if real is None else seen * real).sum(1) / length
    if level == "sequence":
        share = own.new_full(own.shape[:1], own.shape[1]) if measure is None else measure.flatten(1).sum(1)
        return Units(own.sum(1), seen, share)
    return Units(own.sum(1) / length, seen, None if measure is None else measure.flatten(1).sum(1) / length)


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
