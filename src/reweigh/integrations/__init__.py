"""Adapters to the trainers people already use, one file each; a file is imported when it is first asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def __getattr__(name: str) -> Any:
    # `reweigh.integrations.transformers.loss(...)` should need no import of its own.
    folder = Path(__file__).parent
    if not name.startswith("_") and ((folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
