"""The classifier's weight vectors brought nearer to one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reweigh import _validate as validate
from reweigh._array import to_numpy
from reweigh.method import Context
from reweigh.post._base import Affine, Correction, Floats, Post
from reweigh.post._metric import METRICS, PostMetric, best

__all__ = ["TauNorm"]

#: The authors' grid.
_GRID = tuple(round(0.1 * i, 1) for i in range(21))


@dataclass(frozen=True, kw_only=True)
class TauNorm(Post):
    r"""The last layer's weight vectors over a power of their length: rare classes have short ones.

    .. math:: f_k = w_k^\top h + b_k \;\mapsto\; \frac{w_k^\top h}{\lVert w_k \rVert^\tau}
              = \frac{f_k - b_k}{\lVert w_k \rVert^\tau}

    Parameters
    ----------
    tau
        The power: 0 drops the bias alone, 1 makes all vectors equally long. None chooses, among 0, 0.1, ..., 2, the one
        with the best `metric` on validation rows.
    metric
        What chooses: `"accuracy"`, `"balanced_accuracy"`, `"worst_class"`, `"f1"` or `"matthews"`.

    Returns
    -------
    Correction
        From `fit(outputs, targets, Context(classifier=(weight, bias)))`, with the last layer's weight
        `(classes, features)` and its bias `(classes,)` or None.

    Examples
    --------
    >>> import numpy as np, reweigh
    >>> weight, features = np.array([[4.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 2.0]])
    >>> outputs = features @ weight.T
    >>> correction = TauNorm(tau=1.0).fit(outputs, np.array([1]), reweigh.Context(classifier=(weight, None)))
    >>> print(outputs, correction(outputs))
    [[4. 2.]] [[1. 2.]]

    Notes
    -----
    Follows the authors' code, which drops the bias and tries this grid. References: Kang et al., *Decoupling
    Representation and Classifier for Long-Tailed Recognition*, ICLR 2020.
    """

    tau: float | None = None
    metric: PostMetric = "balanced_accuracy"

    def __post_init__(self) -> None:
        if self.tau is not None:
            validate.non_negative("tau", self.tau)
        validate.one_of("metric", self.metric, METRICS)

    @property
    def needs_rows(self) -> bool:
        """Only to choose `tau`."""
        return self.tau is None

    @property
    def needs_classifier(self) -> bool:
        """Always."""
        return True

    def _fit(self, outputs: Floats, targets: Floats, context: Context) -> Correction:
        if context.classifier is None:
            raise ValueError(
                "`classifier` must be given to tau_norm, got None. Pass Context(classifier=(layer.weight, layer.bias)) "
                "of the model's last layer, or `classifier=` to a host's `correction`."
            )
        weight, bias = context.classifier
        vectors = np.asarray(to_numpy(weight), np.float64)
        shift = np.zeros(len(vectors)) if bias is None else np.asarray(to_numpy(bias), np.float64)
        if vectors.ndim != 2 or shift.shape != (len(vectors),) or len(vectors) != outputs.shape[1]:
            raise ValueError(
                f"`classifier` must be a weight of shape ({outputs.shape[1]}, features) and a bias of one number per "
                f"class, or None, got shapes {vectors.shape} and {shift.shape}."
            )
        lengths = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float64).tiny)
        tau = self.tau
        if tau is None:
            tau = best(_GRID, lambda power: (outputs - shift) / lengths**power, targets, self.metric)
        factors = lengths**-tau
        return Affine(scale=tuple(factors.tolist()), offset=tuple((-shift * factors).tolist()))
