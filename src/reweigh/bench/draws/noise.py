"""Label noise: labels resampled once from a transition matrix."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from reweigh import _validate as validate

Noise = Literal["uniform", "flip", "flip2"]

Array = np.ndarray[Any, Any]


class NoisyLabels(NamedTuple):
    """Corrupted labels, which of them differ from the true ones, and the matrix they were drawn from."""

    labels: Array
    changed: Array
    transition: Array


def noisy_labels(y: Array, kind: Noise, rate: float, classes: int, rng: np.random.Generator) -> NoisyLabels:
    r"""Labels with noise of a known kind and rate.

    Each label is resampled from its row of a transition matrix T:

    - `"uniform"`: :math:`T = (1-p) I + \frac pC 11^\top`. A label may be drawn again as itself, so that a share
      :math:`p\,(C-1)/C` changes.
    - `"flip"`: each class sends the share p to one other class, chosen once.
    - `"flip2"`: each class sends p/2 to each of two other classes, chosen once.

    Parameters
    ----------
    y
        True labels 0..C-1.
    kind
        One of the above.
    rate
        The share p, from 0 to 1.
    classes
        Number of classes C.
    rng
        Draws the matrix first, then the labels.

    Returns
    -------
    NoisyLabels
        `labels` (the dtype of `y`), `changed` (boolean, where they really differ) and `transition` (C, C).

    Examples
    --------
    >>> import numpy as np
    >>> noisy = noisy_labels(np.zeros(1000, np.int64), "flip", 0.4, 10, np.random.default_rng(0))
    >>> np.unique(noisy.labels).size, noisy.transition[0, 0]
    (2, np.float64(0.6))

    Notes
    -----
    The kinds are those of the Meta-Weight-Net code; its tables call the share p the noise rate for all three,
    although uniform noise changes fewer labels.
    References: Shu et al., Meta-Weight-Net, NeurIPS 2019.
    """
    validate.one_of("kind", kind, get_args(Noise))
    validate.fraction("rate", rate, zero=True)
    validate.whole("classes", classes, 3 if kind == "flip2" else 2)
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and not (y.min() >= 0 and y.max() < classes)):
        raise ValueError(
            f"`y` must be a vector of whole labels from 0 to {classes - 1}, got shape {y.shape}, dtype {y.dtype}"
            f"{f' and labels from {y.min()} to {y.max()}' if y.size else ''}."
        )
    transition = _transition(kind, rate, classes, rng)
    # Inverse transform: the new label is the number of cumulative probabilities at or below a uniform draw.
    cumulative = np.cumsum(transition, axis=1)
    draws = rng.random(len(y))
    labels = (draws[:, None] >= cumulative[y]).sum(axis=1)
    # A row may sum to a hair less than one; a draw beyond it belongs to the last class the row can reach.
    last = classes - 1 - (transition[:, ::-1] > 0).argmax(axis=1)
    labels = np.minimum(labels, last[y]).astype(y.dtype)
    return NoisyLabels(labels, labels != y, transition)


def _transition(kind: Noise, rate: float, classes: int, rng: np.random.Generator) -> Array:
    """The matrix whose row is the distribution of the noisy label given the true one."""
    identity = np.eye(classes)
    if kind == "uniform":
        return (1 - rate) * identity + rate / classes
    targets = 1 if kind == "flip" else 2
    transition = (1 - rate) * identity
    for label in range(classes):
        others = np.delete(np.arange(classes), label)
        transition[label, rng.choice(others, targets, replace=False)] = rate / targets
    return transition
