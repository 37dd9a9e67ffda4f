"""Train models that do not ignore their hard examples.

`loss = reweigh.rgd(losses, tau=1.0)` re-weights a vector of per-unit losses, in NumPy, PyTorch and JAX alike.
"""

from __future__ import annotations

from reweigh.objectives.rgd import RGD, rgd
from reweigh.weights import KL, ChiSquare, ReverseKL

__all__ = ["rgd", "RGD", "KL", "ReverseKL", "ChiSquare"]
