"""Where trainings run, and in which precision: a process has one device, the processor by default."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.errors import UserError
from reweigh.bench.train.precision import Precision
from reweigh.torch.devices import resolve

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
#: Share of a device's free memory that data may take; the rest is for models, gradients and activations.
_SHARE = 0.4
#: The factor on losses in float16, whose smallest numbers would otherwise swallow small gradients.
_LOSS_SCALE = 1024.0

_current = torch.device("cpu")


def use(device: torch.device | str) -> None:
    """Run all further trainings of this process there."""
    global _current
    _current = resolve(device) if isinstance(device, str) else device
    if ":" in str(_current):
        # The first releases that have it call it otherwise.
        choose = getattr(torch.accelerator, "set_device_index", None) or torch.accelerator.set_device_idx
        choose(_current.index)


def use_one_of(name: str, accelerators: int, number: int) -> None:
    """Run the trainings of this process on its share of the machine's accelerators.

    Parameters
    ----------
    name
        As `resolve` takes it. A kind of accelerator without a number stands for all of them.
    accelerators
        How many there are, counted by the process that started this one: counting them here would come before this
        process is shown its own.
    number
        Which of the processes this is; they take turns.
    """
    if name == "cpu" or accelerators < 2:
        use(name)
        return
    kind, _, index_text = name.partition(":")
    index = int(index_text) if index_text else number % accelerators
    if kind == "cuda":  # so that no library that is called here can reach for the device of another process
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[index] if len(visible) == accelerators else str(index)
        index = 0
    use(f"{kind}:{index}")


def current() -> torch.device:
    """Where trainings of this process run."""
    return _current


def described(device: torch.device) -> str:
    """A device in words, with its name where it has one.

    Examples
    --------
    >>> described(torch.device("cpu"))
    'cpu'
    """
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def check_precision(device: torch.device, precision: Precision) -> None:
    """Refuse a precision that a device does not have."""
    validate.one_of("precision", precision, ("float32", "bfloat16", "float16"))
    if precision == "float32":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns, and computes in float32
            with torch.autocast(device.type, _DTYPES[precision]):
                square = torch.ones(2, 2, device=device)
                computed = (square @ square).dtype
    except (RuntimeError, TypeError, UserWarning, NotImplementedError):
        computed = None
    if computed != _DTYPES[precision]:
        raise UserError(
            f"device {str(device)!r} does not compute in {precision}. Use float32, or another device."
        ) from None


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """The context in which a forward pass runs in a precision; losses are computed in float32 outside of it."""
    validate.one_of("precision", precision, ("float32", "bfloat16", "float16"))
    return nullcontext() if precision == "float32" else torch.autocast(device.type, _DTYPES[precision])


def loss_scale(precision: Precision) -> float:
    """The factor that losses have in a precision, for `unscale` to take out of the gradients again."""
    return _LOSS_SCALE if precision == "float16" else 1.0


def unscale(optimizer: torch.optim.Optimizer, precision: Precision) -> None:
    """Have an optimiser divide gradients by `loss_scale` before each step.

    Where a gradient overflowed, all of them count as zero: the step adds nothing to what momentum and decay do. Nothing
    is read from the device for it.
    """
    scale = loss_scale(precision)
    if scale == 1.0:
        return

    def divide(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            return
        finite = torch.stack([torch.isfinite(gradient).all() for gradient in gradients]).all()
        for gradient in gradients:
            gradient.copy_(torch.where(finite, gradient / scale, 0.0))

    optimizer.register_step_pre_hook(divide)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point numbers that a device has: not all have double precision."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64


def moved(value: Any, device: torch.device | str) -> Any:
    """Tensors, in whatever containers, on a device; everything else as it is.

    What comes to the processor is there when this returns; what goes to an accelerator may still be under way.
    """
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=torch.device(device).type != "cpu")
    if isinstance(value, dict):
        there = copy.copy(value)  # a module's state has notes on its version beside its entries
        there.update({name: moved(one, device) for name, one in value.items()})
        return there
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one, device) for one in value)
    return value


class DeviceRows:
    """Rows of data, read by index, on the device where they fit and streamed where they do not.

    Parameters
    ----------
    data
        All rows, in the processor's memory.
    device
        Where batches are wanted.
    """

    def __init__(self, data: Tensor, device: torch.device) -> None:
        self.device = device
        self.resident = device.type == "cpu" or _fits(data, device)
        self.data = data.to(device) if self.resident else data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Some rows, on the device; `rows` may be on either side."""
        if self.resident:
            return self.data.index_select(0, rows.to(self.device, non_blocking=True))
        # Gathered into pinned memory, from which the device copies while the processor goes on.
        batch = torch.empty((len(rows), *self.data.shape[1:]), dtype=self.data.dtype, pin_memory=True)
        torch.index_select(self.data, 0, rows.cpu(), out=batch)
        return batch.to(self.device, non_blocking=True)

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows in order, so many at a time, on the device."""
        if self.resident:
            return iter(self.data.split(size))
        return (part.pin_memory().to(self.device, non_blocking=True) for part in self.data.split(size))


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where host and device share their memory, or where it cannot be asked."""
    if device.type != "cuda":
        return None
    return torch.cuda.mem_get_info(device)[0]


def _fits(data: Tensor, device: torch.device) -> bool:
    free = free_memory(device)
    return free is None or data.nbytes < _SHARE * free
