"""Re-weighting in gradient boosting, on scikit-learn's own data: XGBoost, LightGBM and CatBoost.

    python examples/boosting_table.py

Prints held-out mean loss and the mean loss of the worst tenth of the rows: each library's own objective, and
re-weighted.
"""

from __future__ import annotations

import numpy as np
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from xgboost import XGBClassifier

from reweigh.integrations.boosting import RGDCatBoostClassifier, RGDLGBMClassifier, RGDXGBClassifier

LIBRARIES = {
    "XGBoost": (XGBClassifier, RGDXGBClassifier, {"n_estimators": 60, "max_depth": 3, "n_jobs": 1}),
    "LightGBM": (LGBMClassifier, RGDLGBMClassifier, {"n_estimators": 60, "num_leaves": 8, "n_jobs": 1, "verbose": -1}),
    "CatBoost": (
        CatBoostClassifier,
        RGDCatBoostClassifier,
        {"iterations": 60, "learning_rate": 0.1, "thread_count": 1, "verbose": False, "allow_writing_files": False},
    ),
}


def row(name: str, model, data) -> None:
    X, X_test, y, y_test = data
    probability = model.fit(X, y).predict_proba(X_test)[np.arange(len(y_test)), y_test]
    losses = np.sort(-np.log(np.clip(probability, 1e-12, 1)))
    print(f"{name:24s}{losses.mean():8.3f}{losses[-len(losses) // 10 :].mean():8.3f}")


if __name__ == "__main__":
    data = train_test_split(*load_breast_cancer(return_X_y=True), test_size=0.4, random_state=0)
    print(f"{'':24s}{'mean':>8s}{'worst':>8s}")
    for library, (plain, reweighted, options) in LIBRARIES.items():
        row(library, plain(**options), data)
        for tau in (0.3, 1.0):
            row(f"  re-weighted, tau={tau:g}", reweighted(tau=tau, **options), data)
