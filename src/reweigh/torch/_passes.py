"""Which pass of which step a forward call belongs to, as far as torch knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_C: Any = torch._C  # pyright: ignore[reportPrivateUsage]


class Steps:
    """Which call of an optimiser's `step` the program is in: a closure may be called many times in one."""

    def __init__(self) -> None:
        self.number = 0
        self.inside = False
        self._watching = False

    def watch(self) -> None:
        """Follow all optimisers from now on."""
        if not self._watching:
            self._watching = True
            register_optimizer_step_pre_hook(self._enter)
            register_optimizer_step_post_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self.number += 1
        self.inside = True

    def _leave(self, *_: Any) -> None:
        self.inside = False


STEPS = Steps()


def in_backward() -> bool:
    """Whether a backward pass is running, as it is when activation checkpointing repeats a forward pass."""
    return _C._current_graph_task_id() != -1


def is_wrapped(x: Tensor) -> bool:
    """Whether a transform of `torch.func` is running on `x`."""
    return _C._functorch.is_functorch_wrapped_tensor(x)


def is_batched(x: Tensor) -> bool:
    """Whether `x` stands for a batch of gradients, as `is_grads_batched=True` makes them without `torch.func`."""
    return _C._functorch.is_legacy_batchedtensor(x)


def unwrapped(x: Tensor) -> Tensor:
    """The tensor inside the wrappers of `torch.func`, with the axes of `vmap` in front."""
    while is_wrapped(x):
        axis = _C._functorch.maybe_get_bdim(x) if _C._functorch.is_batchedtensor(x) else 0
        x = _C._functorch.get_unwrapped(x)
        x = x.movedim(axis, 0) if axis else x
    return x.detach()
