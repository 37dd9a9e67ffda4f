"""Devices by name: an accelerator of this machine, or its processor."""

from __future__ import annotations

import torch

__all__ = ["count", "resolve"]


def resolve(name: str) -> torch.device:
    """The device of a name.

    Parameters
    ----------
    name
        `"auto"` for an accelerator where there is one and the processor otherwise; `"cpu"`; a kind of accelerator
        (`"cuda"`, `"mps"`, `"xpu"`), of which the current one is taken; or one by its number, such as `"cuda:1"`.

    Returns
    -------
    torch.device
        A device of this machine; an accelerator is not touched yet.

    Examples
    --------
    >>> resolve("cpu")
    device(type='cpu')
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "auto":
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"`device` must be auto, cpu, or an accelerator such as cuda, cuda:1 or mps, got {name!r}."
        ) from None
    if device.type == "cpu":
        return torch.device("cpu")
    here = "no accelerator" if accelerator is None else f"{count()} x {accelerator.type}"
    if accelerator is None or accelerator.type != device.type or (device.index or 0) >= count():
        raise ValueError(
            f"device {name!r} is not there: this machine has {here}. Use auto, which takes what there is, or cpu."
        )
    return device


def count() -> int:
    """How many accelerators this machine has."""
    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0
