"""RF: scikit-learn's random forest."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.utils.validation import check_is_fitted, validate_data

from reweigh import _validate as validate

__all__ = ["RandomForest"]


class RandomForest(ClassifierMixin, BaseEstimator):
    """A random forest whose one knob is how many columns a split looks at.

    Parameters
    ----------
    trees
        Number of trees.
    columns
        Columns that a split chooses from, in units of the square root of their number.
    random_state
        Seeds the trees.
    """

    def __init__(self, *, trees: int = 500, columns: float = 1.0, random_state: Any = None) -> None:
        self.trees = trees
        self.columns = columns
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Grow the trees."""
        validate.whole("trees", self.trees, 1)
        validate.positive("columns", self.columns)
        rows: Any
        rows, y = validate_data(self, X, y, dtype=np.float32)
        tried: Any = int(np.clip(round(self.columns * rows.shape[1] ** 0.5), 1, rows.shape[1]))
        forest = RandomForestClassifier(self.trees, max_features=tried, random_state=self.random_state, n_jobs=1)
        self.model_ = forest.fit(rows, y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class."""
        check_is_fitted(self, "model_")
        return self.model_.predict_proba(validate_data(self, X, dtype=np.float32, reset=False))

    def predict(self, X: Any) -> Any:
        """The most probable class."""
        probabilities = self.predict_proba(X)  # says so if there was no fit, before `classes_` is read
        return self.classes_[probabilities.argmax(1)]
