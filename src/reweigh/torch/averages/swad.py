"""Stochastic weight averaging, densely, where the validation loss is flat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from reweigh import _validate as validate
from reweigh.torch.averages._base import Average, Averager, AverageState, mix, narrow, tensors_of, wide

__all__ = ["SWAD"]


@dataclass(frozen=True, kw_only=True)
class SWAD(Average):
    r"""The mean of every step's weights between the start and the end of a valley of the validation loss.

    Training is cut into segments of `checkpoint_freq` steps, each closed by a validation loss :math:`v_i`.

    1. The valley starts at segment s once :math:`v_s = \min(v_s, \dots, v_{s+N-1})` with N = `n_converge`. The
       threshold is then :math:`r = (1 + \rho) \cdot \mathrm{mean}(v_s, \dots, v_{s+N-1})`, with the ratio rho.
    2. It has ended before segment e once :math:`\min(v_e, \dots, v_{e+M-1}) > r`, with M = `n_tolerance`.
    3. The result is the mean over all steps of the segments s to e - 1.

    If training stops in the valley, it ends with the last segment at or below the threshold. If no valley ever
    started, the result is the mean over the last full segment.

    Parameters
    ----------
    n_converge, n_tolerance
        N and M: how many segments decide about start and end.
    ratio
        How far above the start the loss may rise.
    checkpoint_freq
        Steps a segment; `due` says when it is full, and the training loop then calls `observe`.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> swad = SWAD(n_converge=2, n_tolerance=2, checkpoint_freq=1).start(model)
    >>> for step, validation_loss in enumerate([5.0, 1.0, 1.1, 1.2, 9.0, 9.0]):
    ...     _ = torch.nn.init.constant_(model.weight, step)
    ...     swad.update(model)
    ...     if swad.due:
    ...         swad.observe(validation_loss)
    >>> print(swad.start_step, swad.end_step, swad.average()["weight"].item())
    2 4 2.0

    Notes
    -----
    This is the algorithm as the paper states it, with segments in the place of single steps; defaults are those of
    the authors' code (segments of 100 steps; on VLCS 50 and a ratio of 0.2, on DomainNet 500). What that code averages
    is another set of segments. When n_tolerance exceeds n_converge, it also takes in the segments just before the
    start, up to `n_tolerance - n_converge - 1` of them, whose losses are at or below the threshold, and then counts
    the start twice; a valley that starts before n_tolerance segments are there counts some segments several times;
    and when n_tolerance is n_converge or less, the start itself is left out. Here every step of the valley counts once
    and no other step counts. Further departures: unequal segments count by their number of steps; the threshold uses
    the magnitude of the mean, so that negative losses work; at most `max(n_converge, n_tolerance)` segment means are
    kept. Floating-point buffers are averaged like weights, integer ones copied: freeze BatchNorm as the authors
    do, or run `torch.optim.swa_utils.update_bn` at the end. References: Cha et al., *SWAD: Domain Generalization
    by Seeking Flat Minima*, NeurIPS 2021.
    """

    n_converge: int = 3
    n_tolerance: int = 6
    ratio: float = 0.3
    checkpoint_freq: int = 100

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {"ratio": (0.2, 0.3)}
    cost: ClassVar[str] = "up to n_tolerance + 2 copies of the weights, one pass over them a step"
    needs_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.whole("n_converge", self.n_converge, 1)
        validate.whole("n_tolerance", self.n_tolerance, 1)
        validate.non_negative("ratio", self.ratio)
        validate.whole("checkpoint_freq", self.checkpoint_freq, 1)

    def start(self, model: nn.Module) -> LiveSWAD:
        """The live average, before the first step."""
        return LiveSWAD(self, model)


@dataclass
class _Span:
    """The mean over a run of consecutive steps, from `first` to `last`, and the validation loss at its end."""

    mean: AverageState
    first: int
    last: int
    loss: float = float("nan")

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    def add(self, other: _Span) -> None:
        mix(self.mean, other.mean, other.steps / (self.steps + other.steps))
        self.last = other.last

    def copy(self) -> _Span:
        return _Span({name: value.clone() for name, value in self.mean.items()}, self.first, self.last, self.loss)


class LiveSWAD(Averager):
    """The live form of :class:`SWAD`; steps are counted from 1."""

    def __init__(self, config: SWAD, model: nn.Module) -> None:
        self.config = config
        self.step = 0
        self.threshold: float | None = None
        self.ended = False
        own = tensors_of(model)
        self._dtypes = {name: value.dtype for name, value in own.items()}
        self._devices = {name: value.device for name, value in own.items()}
        self._segment: _Span | None = None  # the open one
        self._pending: list[_Span] = []  # closed, not decided about
        self._valley: _Span | None = None  # what is certain to be averaged

    @property
    def started(self) -> bool:
        """Whether the valley has begun."""
        return self.threshold is not None

    @property
    def due(self) -> bool:
        """Whether the open segment is full and wants its validation loss."""
        return self._segment is not None and self._segment.steps >= self.config.checkpoint_freq

    @property
    def start_step(self) -> int:
        """The first step of what `average` would return now."""
        return self._result().first

    @property
    def end_step(self) -> int:
        """The last step of what `average` would return now."""
        return self._result().last

    def update(self, model: nn.Module) -> None:
        """Take in the weights after one more step."""
        self.step += 1
        if self.ended:
            return
        own = tensors_of(model)
        if self._segment is None:
            self._segment = _Span(wide(own), self.step, self.step)
            return
        mix(self._segment.mean, own, 1.0 / (self._segment.steps + 1))
        self._segment.last = self.step

    def observe(self, validation_loss: float) -> None:
        """Close the open segment with its validation loss and see whether the valley starts or ends."""
        if self.ended:
            return
        if self._segment is None:
            raise ValueError("`observe` must follow at least one `update`, got none since the last call.")
        self._segment.loss = float(validation_loss)
        self._pending.append(self._segment)
        self._segment = None
        if not self.started:
            self._look_for_start()
        if self.started:
            self._look_for_end()

    def _look_for_start(self) -> None:
        self._pending = self._pending[-self.config.n_converge :]
        losses = [segment.loss for segment in self._pending]
        mean = sum(losses) / len(losses)
        if len(losses) == self.config.n_converge and losses[0] == min(losses) and math.isfinite(mean):
            # Rounding may put the mean of equal losses below them; the start itself is always inside.
            self.threshold = max(losses[0], mean + self.config.ratio * abs(mean))

    def _look_for_end(self) -> None:
        size = self.config.n_tolerance
        while len(self._pending) >= size:
            if all(self._is_above(segment) for segment in self._pending[:size]):
                self.ended = True
                self._pending = []
                return
            self._settle(self._pending.pop(0))

    def _is_above(self, segment: _Span) -> bool:
        assert self.threshold is not None
        # Written so that a loss that is not a number counts as above.
        return not segment.loss <= self.threshold

    def _settle(self, segment: _Span) -> None:
        if self._valley is None:
            self._valley = segment
        else:
            self._valley.add(segment)

    def average(self) -> AverageState:
        """The mean over the valley as far as it is known, for `model.load_state_dict`."""
        return narrow(self._result().mean, self._dtypes)

    def _result(self) -> _Span:
        if not self.started:
            closest = self._pending[-1] if self._pending else self._segment
            if closest is None:
                raise ValueError("`average` needs at least one `update`, got none.")
            return closest
        inside = [index for index, segment in enumerate(self._pending) if not self._is_above(segment)]
        parts = self._pending[: inside[-1] + 1] if inside else []
        if self._valley is not None:
            parts = [self._valley, *parts]
        whole = parts[0].copy()
        for part in parts[1:]:
            whole.add(part)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Counters, threshold and the segments at hand, in their own precision."""
        return {
            "step": self.step,
            "threshold": self.threshold,
            "ended": self.ended,
            "segment": _pack(self._segment),
            "pending": [_pack(segment) for segment in self._pending],
            "valley": _pack(self._valley),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, on the devices of the model whatever those of the state are."""
        self.step = int(state["step"])
        self.threshold = state["threshold"]
        self.ended = bool(state["ended"])
        self._segment = self._unpack(state["segment"])
        self._pending = [span for span in map(self._unpack, state["pending"]) if span is not None]
        self._valley = self._unpack(state["valley"])

    def _unpack(self, packed: Mapping[str, Any] | None) -> _Span | None:
        if packed is None:
            return None
        given: Mapping[str, torch.Tensor] = packed["mean"]
        # Names the model does not have stay where they are: the next update says which.
        mean = {name: value.to(self._devices.get(name, value.device), copy=True) for name, value in given.items()}
        return _Span(mean, int(packed["first"]), int(packed["last"]), float(packed["loss"]))


def _pack(span: _Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    copy = span.copy()
    return {"mean": copy.mean, "first": copy.first, "last": copy.last, "loss": copy.loss}
