"""One temperature for all outputs: calibrated confidence, unchanged predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh.method import Context
from reweigh.post._base import Affine, Correction, Floats, Post, softmax

__all__ = ["Temperature"]

#: The coldest and hottest temperature: validation rows that are all right, or no better than chance, have no optimum.
_RANGE = (1e-3, 1e3)


@dataclass(frozen=True, kw_only=True)
class Temperature(Post):
    r"""Outputs over the temperature with the smallest log-loss on validation rows.

    .. math:: f \mapsto f / T, \qquad T = \arg\min_T \frac1n \sum_i -\log \mathrm{softmax}(f_i / T)_{y_i}

    The loss is convex in :math:`1/T`, so there is one minimum. Predictions, and the order of rows in each pair of
    classes, stay as they are.

    Returns
    -------
    Correction
        From `fit(outputs, targets)`.

    Examples
    --------
    >>> import numpy as np
    >>> outputs = np.array([[2.0, 0.0]] * 4)  # sure to 88 %, right to 75 %
    >>> correction = Temperature().fit(outputs, np.array([0, 0, 0, 1]))
    >>> odds = np.exp(correction(outputs))
    >>> print((odds / odds.sum(axis=1, keepdims=True))[0].round(4))
    [0.75 0.25]

    Notes
    -----
    Bisection of the derivative instead of the authors' L-BFGS; temperatures are kept between 0.001 and 1000.
    References: Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        own = outputs[np.arange(len(targets)), targets].mean()
        low, high = (np.log(1.0 / t) for t in reversed(_RANGE))
        for _ in range(60):  # halves the interval to less than one part in 10^16
            middle = (low + high) / 2
            expected = (softmax(outputs * np.exp(middle)) * outputs).sum(axis=1).mean()
            low, high = (middle, high) if expected < own else (low, middle)
        factor, classes = float(np.exp((low + high) / 2)), outputs.shape[1]
        return Affine(scale=(factor,) * classes, offset=(0.0,) * classes)
