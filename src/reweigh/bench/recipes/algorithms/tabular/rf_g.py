"""RF-G: random Fourier features of a Gaussian kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.kernel_approximation import RBFSampler
from sklearn.utils.validation import check_is_fitted, validate_data

from reweigh import _validate as validate

__all__ = ["RandomFourier"]


class RandomFourier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # pyright: ignore[reportIncompatibleMethodOverride]
    r"""Random features whose inner products approximate a Gaussian kernel: scikit-learn's `RBFSampler`.

    .. math:: z(x) = \sqrt{2/D}\,\cos(W x + b), \qquad W_{kj} \sim N(0, 2\gamma),\ b_k \sim U(0, 2\pi)

    with gamma one over the number of columns times their variance. Features are multiplied by the square root of D/2,
    so that each is of the order of one, as networks like them.

    Parameters
    ----------
    features
        The number D.
    random_state
        Seeds the draw.

    Notes
    -----
    References: Rahimi and Recht, Random features for large-scale kernel machines, 2007.
    """

    def __init__(self, *, features: int = 1024, random_state: Any = None) -> None:
        self.features = features
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the features; of the rows their number of columns and variance matter."""
        validate.whole("features", self.features, 1)
        rows: Any = validate_data(self, X, dtype=np.float32)
        # A table without any variance has no scale to take gamma from.
        gamma: Any = "scale" if rows.var() > 0 else 1.0
        sampler = RBFSampler(gamma=gamma, n_components=self.features, random_state=self.random_state)
        self.sampler_ = sampler.fit(rows.astype(np.float64))
        self._n_features_out = self.features
        return self

    def transform(self, X: Any) -> Any:
        """The features of rows of numbers, float32, of shape (rows, features)."""
        check_is_fitted(self, "sampler_")
        rows: Any = validate_data(self, X, dtype=np.float32, reset=False)
        # In double precision and rounded once, so that a row's features do not depend on its neighbours.
        exact = self.sampler_.transform(rows.astype(np.float64))
        return (exact * (self.features / 2) ** 0.5).astype(np.float32)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # whatever comes in, single precision goes out
        return tags
