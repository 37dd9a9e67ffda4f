"""Train models that do not ignore their hard examples.

`loss = reweigh.rgd(losses, tau=1.0)` re-weights a vector of per-unit losses, in NumPy, PyTorch and JAX alike.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reweigh.method import Context, Method, method
from reweigh.monitor import Monitor, suggest_tau
from reweigh.objectives.rgd import RGD, rgd
from reweigh.weights import KL, ChiSquare, ReverseKL

if TYPE_CHECKING:
    from reweigh import integrations, objectives, post, torch

__all__ = [
    "rgd",
    "RGD",
    "KL",
    "ReverseKL",
    "ChiSquare",
    "Monitor",
    "suggest_tau",
    "method",
    "Method",
    "Context",
    "objectives",
    "post",
    "torch",
    "integrations",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # `reweigh.torch` imports torch, so it is loaded when it is first used and not before.
    if name in ("torch", "integrations", "objectives", "post"):
        return importlib.import_module(f"reweigh.{name}")
    raise AttributeError(f"module 'reweigh' has no attribute {name!r}")
