"""Where trainings run: a process has one device, the processor unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from reweigh import _validate as validate

Precision = Literal["float32", "bfloat16", "float16"]
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
#: Share of a device's free memory that data may take; the rest is for models, gradients and activations.
_SHARE = 0.4

_current = torch.device("cpu")


def resolve(name: str) -> torch.device:
    """The device of a name: `auto` is an accelerator where there is one, and the processor otherwise.

    Examples
    --------
    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"`device` must be auto, cpu or an accelerator of this machine, got {name!r}: {str(error).splitlines()[0]}"
        ) from None
    return device


def use(device: torch.device | str) -> None:
    """Run all further trainings of this process there."""
    global _current
    _current = resolve(device) if isinstance(device, str) else device


def current() -> torch.device:
    """Where trainings of this process run."""
    return _current


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """The context in which a forward pass runs in a precision; losses are computed in float32 outside of it."""
    validate.one_of("precision", precision, ("float32", "bfloat16", "float16"))
    return nullcontext() if precision == "float32" else torch.autocast(device.type, _DTYPES[precision])


def moved(value: Any, device: torch.device) -> Any:
    """Tensors, in whatever containers, on a device; everything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one, device) for one in value)
    return value


class Rows:
    """Rows of data that are asked for by their numbers, on the device where they fit and streamed where they do not.

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
        if self.resident:
            data = data.to(device)
        elif torch.accelerator.is_available():
            data = data.pin_memory()
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Some rows, on the device; `rows` may be on either side."""
        rows = rows.to(self.data.device, non_blocking=True)
        return self.data.index_select(0, rows).to(self.device, non_blocking=True)

    def split(self, size: int) -> Any:
        """All rows in order, so many at a time, on the device."""
        return (part.to(self.device, non_blocking=True) for part in self.data.split(size))


def _fits(data: Tensor, device: torch.device) -> bool:
    if device.type != "cuda":  # host and device share their memory, or it cannot be asked for
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return data.nbytes < _SHARE * free
