"""A scikit-learn estimator as a training: every seed splits the rows again, and the method weighs them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reweigh.bench.errors import UserError
from reweigh.bench.own.training import Training

#: Shares of the rows that choose, and that are tested on.
VALIDATION, TEST = 0.2, 0.25


def is_estimator(subject: Any) -> bool:
    """Whether something is fitted and predicts, as scikit-learn's estimators do."""
    return hasattr(subject, "fit") and hasattr(subject, "get_params") and not isinstance(subject, type)


def training_of(estimator: Any, rows: Any, target: Any) -> Callable[[Training], Mapping[str, float]]:
    """A training function for an estimator and its data."""
    from sklearn.base import is_classifier

    target = np.asarray(target)
    if len(target) != _height(rows):
        raise UserError(f"X has {_height(rows)} rows and y has {len(target)}: they must be the same rows.")
    classes = is_classifier(estimator)

    def train(run: Training) -> Mapping[str, float]:
        train_rows, validation, test = _split(target, run.seed, by_class=classes)
        fitted = _reweighted(estimator, run, classes=classes).fit(_take(rows, train_rows), target[train_rows])
        scores = {"val": validation, "test": test}
        return {
            f"{part}/{name}": value
            for part, chosen in scores.items()
            for name, value in _scores(target[chosen], fitted.predict(_take(rows, chosen)), classes=classes).items()
        }

    train.fingerprint = _fingerprint(estimator, rows, target)  # pyright: ignore[reportFunctionMemberAccess]
    return train


def default_metric(estimator: Any) -> str:
    """The score an estimator is judged by unless another is named."""
    from sklearn.base import is_classifier

    return "balanced_accuracy" if is_classifier(estimator) else "rmse"


def _reweighted(estimator: Any, run: Training, *, classes: bool) -> Any:
    from sklearn.base import clone

    from reweigh.integrations.sklearn import ReweightedClassifier, ReweightedRegressor

    others = [slot for slot, _ in run.method.parts() if slot != "objective"]
    if others:
        raise UserError(
            f"an estimator of scikit-learn takes objectives, and {str(run.method)!r} has a {others[0]} as well. Leave "
            "that method out."
        )
    kind = ReweightedClassifier if classes else ReweightedRegressor
    objective = run.method.objective
    plain = type(objective).__name__ == "Mean"
    return clone(estimator) if plain else kind(clone(estimator), objective=objective)


def _split(target: Any, seed: int, *, by_class: bool) -> tuple[Any, Any, Any]:
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(target))
    strata = target if by_class else None
    rest, test = train_test_split(rows, test_size=TEST, random_state=seed, stratify=strata)
    strata = target[rest] if by_class else None
    chosen, validation = train_test_split(rest, test_size=VALIDATION / (1 - TEST), random_state=seed, stratify=strata)
    return chosen, validation, test


def _scores(truth: Any, predicted: Any, *, classes: bool) -> dict[str, float]:
    from sklearn import metrics

    if classes:
        recalls: Any = metrics.recall_score(truth, predicted, average=None, zero_division=0.0)  # pyright: ignore
        return {
            "accuracy": float(metrics.accuracy_score(truth, predicted)),
            "balanced_accuracy": float(metrics.balanced_accuracy_score(truth, predicted)),
            "worst_class": float(min(recalls)),
        }
    return {
        "rmse": float(metrics.root_mean_squared_error(truth, predicted)),
        "mae": float(metrics.mean_absolute_error(truth, predicted)),
    }


def _fingerprint(estimator: Any, rows: Any, target: Any) -> str:
    """The estimator's settings and the data: other rows are other trainings."""
    values = np.asarray(rows)
    content = values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
    parts = (repr(estimator.get_params()).encode(), str(values.shape).encode(), content, target.tobytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _take(rows: Any, chosen: Any) -> Any:
    """Some rows of an array or a frame."""
    if hasattr(rows, "iloc"):
        return rows.iloc[chosen]
    return rows[chosen]


def _height(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)
