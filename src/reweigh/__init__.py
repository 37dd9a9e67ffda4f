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
    from reweigh.bench.own.compare import compare
    from reweigh.bench.own.environment import from_environment
    from reweigh.bench.own.judge import judge

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
    "compare",
    "judge",
    "from_environment",
]

#: What is loaded when it is first used, and the extra that it needs.
_LATER = {
    "compare": "reweigh.bench.own.compare",
    "judge": "reweigh.bench.own.judge",
    "from_environment": "reweigh.bench.own.environment",
}

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # `reweigh.torch` imports torch, so it is loaded when it is first used and not before.
    if name in ("torch", "integrations", "objectives", "post"):
        return importlib.import_module(f"reweigh.{name}")
    if name in _LATER:
        try:
            return getattr(importlib.import_module(_LATER[name]), name)
        except ModuleNotFoundError as error:
            if error.name and error.name.split(".")[0] == "reweigh":
                raise
            raise ImportError(
                f'`reweigh.{name}` needs {error.name}. Install what it uses with: pip install "reweigh[bench]"'
            ) from error
    raise AttributeError(f"module 'reweigh' has no attribute {name!r}")
