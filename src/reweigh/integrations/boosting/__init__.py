"""Re-weighting for gradient boosting: XGBoost, LightGBM and CatBoost.

Gradients and hessians are multiplied by the weight of the row's own loss. The estimators (`RGDXGBClassifier` …) are the
libraries' own, with `tau` and `objective` for what re-weights; the functions are objectives for the libraries' training
calls, with what they need: the initial score, the plain metric, probabilities.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from reweigh.integrations._missing import missing
from reweigh.integrations.boosting._rows import row_objective as row_objective
from reweigh.integrations.boosting._rows import variance_of as variance_of

if TYPE_CHECKING:
    from reweigh.integrations.boosting._catboost import RGDCatBoostClassifier, RGDCatBoostRegressor, catboost
    from reweigh.integrations.boosting._lightgbm import (
        RGDLGBMClassifier,
        RGDLGBMRegressor,
        init_score,
        lightgbm,
        lightgbm_metric,
        standalone,
    )
    from reweigh.integrations.boosting._xgboost import RGDXGBClassifier, RGDXGBRegressor, xgboost, xgboost_params

__all__ = [
    "RGDXGBClassifier",
    "RGDXGBRegressor",
    "xgboost",
    "xgboost_params",
    "RGDLGBMClassifier",
    "RGDLGBMRegressor",
    "lightgbm",
    "lightgbm_metric",
    "init_score",
    "standalone",
    "RGDCatBoostClassifier",
    "RGDCatBoostRegressor",
    "catboost",
]

_LIBRARY = {
    "xgboost": ("RGDXGBClassifier", "RGDXGBRegressor", "xgboost", "xgboost_params"),
    "lightgbm": ("RGDLGBMClassifier", "RGDLGBMRegressor", "lightgbm", "lightgbm_metric", "init_score", "standalone"),
    "catboost": ("RGDCatBoostClassifier", "RGDCatBoostRegressor", "catboost"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # Three libraries, and most people have one of them: each is imported when one of its names is used.
    for library, names in _LIBRARY.items():
        if name in names:
            for package in (library, "sklearn"):
                if find_spec(package) is None:
                    raise missing(package, "boosting")
            return getattr(importlib.import_module(f"{__name__}._{library}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
