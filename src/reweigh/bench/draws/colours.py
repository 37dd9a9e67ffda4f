"""A colour that goes with the label, most of the time."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh import _validate as validate

Array = np.ndarray[Any, Any]


def spurious_colours(labels: Array, agreement: float, rng: np.random.Generator) -> Array:
    """A colour, 0 or 1, for each label, 0 or 1: the label itself with this probability, else the other one.

    Examples
    --------
    >>> spurious_colours(np.array([0, 1, 1]), 1.0, np.random.default_rng(0))
    array([0, 1, 1])
    """
    validate.fraction("agreement", agreement, zero=True)
    return labels.astype(np.int64) ^ (rng.random(len(labels)) >= agreement)


def coloured(images: Array, colours: Array) -> Array:
    """Grey images (NHW) in the channel of their colour, 0 or 1, and nothing in the other one (NHWC)."""
    both = np.stack([images, images], -1)
    both[np.arange(len(both)), ..., 1 - colours.astype(np.int64)] = 0
    return both
