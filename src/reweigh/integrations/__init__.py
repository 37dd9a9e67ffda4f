"""Adapters to the trainers people already use, one file each; a file is loaded when it is first used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; a test keeps this list and the folder the same
    from reweigh.integrations import (
        axolotl,
        boosting,
        causal,
        cleanlab,
        jax,
        keras,
        lightning,
        llamafactory,
        logging,
        sklearn,
        skorch,
        swift,
        torchtune,
        transformers,
        trl,
    )

__all__ = [
    "axolotl",
    "boosting",
    "causal",
    "cleanlab",
    "jax",
    "keras",
    "lightning",
    "llamafactory",
    "logging",
    "sklearn",
    "skorch",
    "swift",
    "torchtune",
    "transformers",
    "trl",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # `reweigh.integrations.transformers.loss(...)` should need no import of its own.
    folder = Path(__file__).parent
    if not name.startswith("_") and ((folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
