"""Calibration by a non-decreasing function of each probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from reweigh.method import Context
from reweigh.post._base import Correction, Floats, Knots, Post, softmax

__all__ = ["Isotonic"]


@dataclass(frozen=True, kw_only=True)
class Isotonic(Post):
    r"""Each class's probability through the non-decreasing function that fits validation rows best.

    .. math:: p_k \mapsto m_k(p_k) \Big/ \sum_j m_j(p_j), \qquad
              m_k = \arg\min_{m\ \text{non-decreasing}} \sum_i \big(m(p_{ik}) - [y_i = k]\big)^2

    With two classes there is one such function, of the second class's probability.

    Returns
    -------
    Correction
        From `fit(outputs, targets)`; corrected outputs are log-probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> outputs = np.log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8], [0.1, 0.9]])
    >>> correction = Isotonic().fit(outputs, np.array([0, 1, 0, 1, 1]))
    >>> print(np.exp(correction(outputs))[:, 1].round(4))
    [0.1 0.5 0.5 0.9 0.9]

    Notes
    -----
    scikit-learn's `IsotonicRegression`, and its way from one class against the rest to many. Departure: probabilities
    are kept 1/(2n) from 0 and 1, n the number of validation rows, or a single row of a region that had none would make
    the log-loss infinite. Takes hundreds of rows to be better than a temperature. References: Zadrozny and Elkan,
    *Transforming Classifier Scores into Accurate Multiclass Probability Estimates*, KDD 2002.
    """

    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        classes, edge = outputs.shape[1], 0.5 / len(targets)
        probabilities = softmax(outputs)
        x: list[tuple[float, ...]] = []
        y: list[tuple[float, ...]] = []
        for k in range(1, 2) if classes == 2 else range(classes):
            fitted = IsotonicRegression(y_min=edge, y_max=1.0 - edge, out_of_bounds="clip")
            fitted.fit(probabilities[:, k], (targets == k).astype(np.float64))
            x.append(tuple(np.asarray(fitted.X_thresholds_, np.float64).tolist()))
            y.append(tuple(np.asarray(fitted.y_thresholds_, np.float64).tolist()))
        return Knots(x=tuple(x), y=tuple(y), classes=classes)
