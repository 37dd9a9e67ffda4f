"""Long-tailed training sets: class sizes that fall geometrically."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reweigh import _validate as validate

Array = np.ndarray[Any, Any]


def longtail_counts(classes: int, imbalance: float, n_max: int) -> list[int]:
    r"""How many examples each class keeps.

    .. math:: n_j = \lfloor n_{\max}\, r^{-j/(C-1)} \rfloor, \qquad j = 0, \dots, C-1

    Parameters
    ----------
    classes
        Number of classes C.
    imbalance
        The ratio r of the largest to the smallest class, 1 for a balanced set.
    n_max
        Size of class 0, the largest.

    Returns
    -------
    list of int
        One count per class, never less than one.

    Examples
    --------
    >>> longtail_counts(10, 100, 5000)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]

    Notes
    -----
    Where the formula leaves nothing of a class, one example is kept: a class without examples has no class weight
    and no tail accuracy.
    References: Cui et al., Class-balanced loss based on effective number of samples, CVPR 2019.
    """
    validate.whole("classes", classes, 2)
    validate.whole("n_max", n_max, 1)
    validate.positive("imbalance", imbalance)
    if imbalance < 1:
        raise ValueError(
            f"`imbalance` must be at least 1, got {imbalance!r}. It is the size of the largest class divided by that "
            f"of the smallest; perhaps you mean {1 / imbalance:g}."
        )
    # A product that is a whole number on paper must not lose one to the last bit of a power.
    return [max(1, math.floor(n_max * imbalance ** (-j / (classes - 1)) + 1e-9)) for j in range(classes)]


def longtail_indices(y: Array, imbalance: float, rng: np.random.Generator, *, n_max: int | None = None) -> Array:
    """Which examples a long-tailed training set keeps.

    Parameters
    ----------
    y
        Labels 0..C-1; every class must occur.
    imbalance
        Largest over smallest class size: :func:`longtail_counts`.
    rng
        The only source of randomness. Equal generators give nested sets: what a higher imbalance keeps, a lower
        one keeps too.
    n_max
        Size of class 0; the size of the smallest class in `y` unless given.

    Returns
    -------
    Array
        Ascending indices into `y`.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1, 2], 100)
    >>> kept = longtail_indices(y, 25, np.random.default_rng(0))
    >>> np.bincount(y[kept]).tolist()
    [100, 20, 4]
    """
    sizes = np.bincount(y)
    if len(sizes) < 2 or sizes.min() == 0:
        raise ValueError(
            "`y` must hold labels 0..C-1 of at least two classes, each at least once, got class sizes "
            f"{sizes.tolist()}."
        )
    counts = longtail_counts(len(sizes), imbalance, int(sizes.min()) if n_max is None else n_max)
    kept: list[Array] = []
    for label, count in enumerate(counts):
        members = rng.permutation(np.flatnonzero(y == label))
        if count > len(members):
            raise ValueError(
                f"class {label} should keep {count} examples but has {len(members)}. Lower `n_max` (got {n_max})."
            )
        kept.append(members[:count])
    return np.sort(np.concatenate(kept))


def rank_within_class(y: Array) -> Array:
    """The position of each example among those of its class, in the order given."""
    by_class = np.argsort(y, kind="stable")
    sizes = np.bincount(y)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank = np.empty(len(y), dtype=np.int64)
    rank[by_class] = np.arange(len(y)) - starts
    return rank
