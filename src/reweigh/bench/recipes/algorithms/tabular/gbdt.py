"""GBDT: scikit-learn's boosted trees on histograms, with early stopping."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils.validation import check_is_fitted, validate_data

from reweigh import _validate as validate

__all__ = ["GBDT"]


class GBDT(ClassifierMixin, BaseEstimator):
    """Boosted trees that stop when a tenth of the training rows, held out for that, gains no more.

    Parameters
    ----------
    trees
        Most trees per class.
    lr
        Learning rate.
    random_state
        Seeds what is held out.
    """

    def __init__(self, *, trees: int = 500, lr: float = 0.1, random_state: Any = None) -> None:
        self.trees = trees
        self.lr = lr
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Grow the trees."""
        validate.whole("trees", self.trees, 1)
        validate.positive("lr", self.lr)
        rows, y = validate_data(self, X, y, dtype=np.float32)
        # Stratified holding out needs two rows of every class.
        enough: Any = bool(np.unique(y, return_counts=True)[1].min() > 1 and len(y) >= 40)
        model = HistGradientBoostingClassifier(
            learning_rate=self.lr, max_iter=self.trees, early_stopping=enough, random_state=self.random_state
        )
        self.model_ = model.fit(rows, y)
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
