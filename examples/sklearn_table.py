"""Re-weighting in scikit-learn, on its own data: around a logistic regression and a ridge, and as a network.

    python examples/sklearn_table.py

Prints cross-validated mean loss and the mean loss of the worst tenth of the rows, plain and re-weighted.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reweigh.integrations.sklearn import ReweightedClassifier, ReweightedRegressor, RGDClassifier, RGDRegressor

NETWORK = {"hidden_layer_sizes": (32,), "max_iter": 30, "random_state": 0}


def losses_of(model, X, y, classify: bool) -> np.ndarray:
    """Out-of-fold loss of each row: log loss, or squared error over the variance."""
    pipeline = make_pipeline(StandardScaler(), model)
    if classify:
        probability = cross_val_predict(pipeline, X, y, cv=3, method="predict_proba")
        return -np.log(np.clip(probability[np.arange(len(y)), y], 1e-12, 1))
    return (cross_val_predict(pipeline, X, y, cv=3) - y) ** 2 / y.var()


def show(data, models, classify: bool) -> None:
    X, y = data
    for model in models:
        losses = np.sort(losses_of(model, X, y, classify))
        name = repr(model).replace("\n", "").replace(" ", "")[:64]
        print(f"{name:66s}{losses.mean():8.3f}{losses[-len(losses) // 10 :].mean():8.3f}")


if __name__ == "__main__":
    print(f"{'model':66s}{'mean':>8s}{'worst':>8s}")
    classifiers = [
        LogisticRegression(),
        ReweightedClassifier(LogisticRegression(), tau=1.0),
        RGDClassifier(objective="mean", **NETWORK),
        RGDClassifier(tau=1.0, **NETWORK),
    ]
    show(load_breast_cancer(return_X_y=True), classifiers, classify=True)
    regressors = [
        Ridge(),
        ReweightedRegressor(Ridge(), tau=1.0),
        RGDRegressor(objective="mean", **NETWORK),
        RGDRegressor(tau=1.0, **NETWORK),
    ]
    show(load_diabetes(return_X_y=True), regressors, classify=False)
