"""The contract of every average of weights over time, and the arithmetic they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from reweigh._array import widen

__all__ = ["Average", "Averager", "AverageState"]

AverageState = dict[str, Tensor]


class Average(ABC):
    """What is kept at the end of training: a frozen value; `start(model)` gives the live one."""

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost beyond plain training, in words.
    cost: ClassVar[str] = ""
    #: Whether the training loop must call `observe` with a validation loss whenever `due`.
    needs_validation: ClassVar[bool] = False

    @abstractmethod
    def start(self, model: nn.Module) -> Averager:
        """The live average, before the first step."""


class Averager(ABC):
    """A live average: `update(model)` after every optimizer step, `average()` when it is wanted."""

    @abstractmethod
    def update(self, model: nn.Module) -> None:
        """Take in the weights after one more step."""

    @abstractmethod
    def average(self) -> AverageState:
        """The averaged weights and buffers, in the dtypes of the model, for `model.load_state_dict`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""

    @property
    def due(self) -> bool:
        """Whether a validation loss is wanted now; False for averages that need none."""
        return False

    def observe(self, validation_loss: float) -> None:
        """Take in a validation loss; ignored by averages that need none."""
        return

    @contextmanager
    def swapped(self, model: nn.Module) -> Generator[nn.Module]:
        """The model with the averaged weights in it, for evaluation; its own come back exactly, whatever happens."""
        own = {name: value.clone() for name, value in tensors_of(model).items()}
        put(model, self.average())
        try:
            yield model
        finally:
            put(model, own)


def tensors_of(model: nn.Module) -> AverageState:
    """The tensors of a model's state without their graph: parameters and persistent buffers."""
    return {name: value.detach() for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def buffers_of(model: nn.Module) -> frozenset[str]:
    """The names in a model's state that are buffers."""
    return frozenset(name for name, _ in model.named_buffers())


def wide(state: Mapping[str, Tensor]) -> AverageState:
    """A copy of a state in float32 at least: in half precision a small share of a step would round to nothing."""
    return {name: widen(value).clone() if value.is_floating_point() else value.clone() for name, value in state.items()}


def mix(mean: AverageState, new: Mapping[str, Tensor], share: float, copied: frozenset[str] = frozenset()) -> None:
    """Move `mean` by `share` towards `new`, in place; integers and the names in `copied` are overwritten."""
    _check_names(mean, new)
    taken = {name for name, value in mean.items() if name in copied or not value.is_floating_point()}
    moved = [name for name in mean if name not in taken]
    with torch.no_grad():
        for name in taken:
            mean[name].copy_(new[name])
        if moved:
            old = [mean[name] for name in moved]
            step = get_ema_multi_avg_fn(1.0 - share)  # one fused kernel for all tensors
            step(old, [new[name].to(mean[name].dtype) for name in moved], 0)


def put(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write a state into a model's own tensors."""
    own = tensors_of(model)
    _check_names(state, own)
    for name, value in own.items():
        value.copy_(state[name])


def _check_names(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    if ours.keys() != theirs.keys():
        raise ValueError(
            "`model` must have the parameters and buffers the average started with, got a difference in "
            f"{sorted(ours.keys() ^ theirs.keys())[:3]}. Start a new average after changing the model."
        )


def narrow(state: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> AverageState:
    """A copy of a state in the dtypes of the model."""
    return {name: value.to(dtypes[name], copy=True) for name, value in state.items()}
