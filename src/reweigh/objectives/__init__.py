"""Objectives: one file each; the file name is the name on the command line.

The classes can be had from here too, `from reweigh.objectives import TERM`; a file is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from reweigh.objectives._base import Objective, State, Weighed

__all__ = ["Objective", "State", "Weighed"]


def __getattr__(name: str) -> Any:
    # The folder is the registry: a class is found in the file that has it first in its `__all__`.
    if not name.startswith("_"):
        for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
            module = importlib.import_module(f"{__name__}.{path.stem}")
            if module.__all__[0] == name:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
