"""scikit-learn estimators: a re-weighted neural network, and re-weighting around any other estimator.

`RGDClassifier(tau=1.0)` and `RGDRegressor(tau=1.0)` train a small network and need torch;
`ReweightedClassifier(estimator)` and `ReweightedRegressor(estimator)` need scikit-learn alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from reweigh.integrations._missing import missing

if TYPE_CHECKING:
    from reweigh.integrations.sklearn.network import RGDClassifier, RGDRegressor
    from reweigh.integrations.sklearn.refit import ReweightedClassifier, ReweightedRegressor

__all__ = ["RGDClassifier", "RGDRegressor", "ReweightedClassifier", "ReweightedRegressor"]

_HOME = {
    "RGDClassifier": "network",
    "RGDRegressor": "network",
    "ReweightedClassifier": "refit",
    "ReweightedRegressor": "refit",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Loaded when first used, so that re-weighting a logistic regression does not import torch.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("sklearn") is None:
        raise missing("scikit-learn", "sklearn")
    if _HOME[name] == "network" and importlib.util.find_spec("torch") is None:
        raise missing("torch", "sklearn")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
