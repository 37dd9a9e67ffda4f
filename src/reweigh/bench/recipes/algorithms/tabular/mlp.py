"""MLP: a multi-layer perceptron on the columns as they are."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["RawColumns"]


class RawColumns(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The columns themselves, in single precision: what a plain network on a table sees."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Look at the number of columns."""
        validate_data(self, X, dtype=np.float32)
        return self

    def transform(self, X: Any) -> Any:
        """The columns, float32."""
        check_is_fitted(self, "n_features_in_")
        return validate_data(self, X, dtype=np.float32, reset=False)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # whatever comes in, single precision goes out
        return tags
