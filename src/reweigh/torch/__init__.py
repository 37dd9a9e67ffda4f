"""PyTorch: the re-weighted criterion and the parts of the family that need tensors."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        'reweigh.torch needs PyTorch, which is not installed. Install it with `pip install "reweigh[torch]"`.',
        name="torch",
    )

from reweigh.torch._entropy import entropy
from reweigh.torch._segments import segments
from reweigh.torch.chunked import chunked_cross_entropy
from reweigh.torch.reweighted import Reweighted, global_count

if TYPE_CHECKING:
    from reweigh.torch import averages, losses, samplers, steps

_ROOMS = ("averages", "losses", "samplers", "steps")

__all__ = [
    "Reweighted",
    "chunked_cross_entropy",
    "entropy",
    "global_count",
    "segments",
    "averages",
    "losses",
    "samplers",
    "steps",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # `reweigh.torch.steps.SAM()` should need no import of its own.
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
