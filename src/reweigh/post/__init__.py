"""Corrections after training: one file each; the file name is the name on the command line.

What is done to a trained classifier's outputs, fitted on validation rows only. Two calls: `post.fit(outputs, targets,
context)` gives a :class:`Correction`, which is called with any outputs. Outputs are logits or log-probabilities of
shape `(n, classes)`, from any framework; a correction is made of plain numbers: `state()` can be written as JSON, and
`load` reads it back.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reweigh.post._base import Correction, Post, load

if TYPE_CHECKING:  # for editors and type checkers; a test keeps this list and the folder the same
    from reweigh.post.isotonic import Isotonic
    from reweigh.post.prior import Prior
    from reweigh.post.tau_norm import TauNorm
    from reweigh.post.temperature import Temperature
    from reweigh.post.threshold import Threshold

__all__ = ["Post", "Correction", "load", "Prior", "Threshold", "Temperature", "Isotonic", "TauNorm"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # The folder is the registry: a class is found in the file that has it first in its `__all__`.
    if not name.startswith("_"):
        from pathlib import Path

        for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
            if path.stem.replace("_", "") == name.lower():
                return getattr(importlib.import_module(f"{__name__}.{path.stem}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
