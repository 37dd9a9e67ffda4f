"""Every split there is, each once, as ascending indices: stratified, fixed, sampled, grouped and timed.

Indices on disk carry a hash that proves what they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.files import replacing

Array = np.ndarray[Any, Any]


def split(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A random stratified split: indices that stay, indices that are held out.

    Parameters
    ----------
    y
        Labels.
    fraction
        Share of each class that is held out, rounded to the nearest whole number, half up. A class of two or more
        has at least one example on either side; a class of one stays.
    rng
        The only source of randomness.

    Returns
    -------
    stay, held
        Ascending indices into `y`; together every index once.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.array([0] * 6 + [1] * 4)
    >>> stay, held = split(y, 0.5, np.random.default_rng(0))
    >>> np.bincount(y[stay]).tolist(), np.bincount(y[held]).tolist()
    ([3, 2], [3, 2])
    """
    return _split(y, fraction, rng.permutation)


def fixed_split(y: Array, fraction: float) -> tuple[Array, Array]:
    """The same split on every machine and with every version of NumPy: examples in the order of their hashes.

    Random generators may change their streams between releases; the sha256 of a position does not.
    """

    def shuffled(members: Array) -> Array:
        keys = [hashlib.sha256(str(int(index)).encode()).digest() for index in members]
        return members[sorted(range(len(keys)), key=keys.__getitem__)]

    return _split(y, fraction, shuffled)


def sampled_split(
    y: Array, fraction: float, rng: np.random.Generator, *, rows: int = 0, pool: Array | None = None
) -> tuple[Array, Array]:
    """A random stratified split of examples that are drawn first, in the order of the draw.

    Parameters
    ----------
    y, fraction, rng
        As for `split`; the generator draws the examples first.
    rows
        How many examples to draw; 0 for all.
    pool
        Indices of the examples to draw from; all of them unless given.
    """
    chosen = rng.permutation(len(y) if pool is None else pool)[: rows or None]
    stay, held = split(y[chosen], fraction, rng)
    return chosen[stay], chosen[held]


def subset(rows: Array, most: int, rng: np.random.Generator) -> Array:
    """At most so many of some rows, drawn at random and sorted; all of them as they are for 0."""
    return rows if not most or most >= len(rows) else np.sort(rng.permutation(rows)[:most])


def folds(y: Array, count: int, rng: np.random.Generator) -> Array:
    """The fold of each example: every class is dealt out evenly, in random order.

    Parameters
    ----------
    y
        Labels.
    count
        How many folds there are.
    rng
        The only source of randomness.

    Returns
    -------
    Array
        A number from 0 to `count - 1` for each example; folds differ in size by one at most.

    Examples
    --------
    >>> import numpy as np
    >>> dealt = folds(np.array([0] * 6 + [1] * 3), 3, np.random.default_rng(0))
    >>> [sorted(dealt[:6].tolist()), sorted(dealt[6:].tolist())]
    [[0, 0, 1, 1, 2, 2], [0, 1, 2]]
    """
    order = rng.permutation(len(y))
    order = order[np.argsort(np.asarray(y)[order], kind="stable")]
    dealt = np.empty(len(y), np.int64)
    dealt[order] = (np.arange(len(y)) + rng.integers(count)) % count
    return dealt


def grouped_folds(groups: Array, count: int, rng: np.random.Generator) -> Array:
    """The fold of each example where groups stay whole: in random order, each goes to the fold with fewest examples.

    >>> import numpy as np
    >>> dealt = grouped_folds(np.array([7, 7, 8, 8, 9, 9]), 3, np.random.default_rng(0))
    >>> dealt[::2].tolist() == dealt[1::2].tolist(), sorted(set(dealt.tolist()))
    (True, [0, 1, 2])
    """
    present, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    totals, fold_of = np.zeros(count), np.empty(len(present), np.int64)
    for group in rng.permutation(len(present)):
        fold_of[group] = int(totals.argmin())
        totals[fold_of[group]] += sizes[group]
    return fold_of[inverse]


def grouped_split(groups: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """A random split that keeps groups whole: they are held out in random order until the share is reached.

    Parameters
    ----------
    groups
        The group of each example: at least two different ones, of which one stays and one is held out.
    fraction
        Share of the examples that is held out, as nearly as the groups allow.
    rng
        The only source of randomness.

    Returns
    -------
    stay, held
        Ascending indices into `groups`; together every index once.

    Examples
    --------
    >>> import numpy as np
    >>> stay, held = grouped_split(np.array([7, 7, 8, 8, 9]), 0.4, np.random.default_rng(0))
    >>> stay.tolist(), held.tolist()
    ([0, 1, 2, 3], [4])
    """
    present, sizes = np.unique(groups, return_counts=True)
    if len(present) < 2:
        raise ValueError(f"`groups` must hold at least two different groups, got {len(present)}.")
    order = rng.permutation(len(present))
    before = np.cumsum(sizes[order]) - sizes[order]
    number = int(np.clip((before + sizes[order] / 2 < fraction * len(groups)).sum(), 1, len(present) - 1))
    is_held = np.isin(groups, present[order[:number]])
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def timed_split(moments: Array, fraction: float) -> tuple[Array, Array]:
    """A split that holds out the latest examples; those of one moment stay together, and nothing is random.

    Parameters
    ----------
    moments
        When each example was: at least two different moments.
    fraction
        Share of the examples that is held out, as nearly as the moments allow.

    Returns
    -------
    stay, held
        Ascending indices into `moments`; together every index once.

    Examples
    --------
    >>> import numpy as np
    >>> stay, held = timed_split(np.array([3.0, 1.0, 2.0, 3.0]), 0.3)
    >>> stay.tolist(), held.tolist()
    ([1, 2], [0, 3])
    """
    distinct = np.unique(moments)
    if len(distinct) < 2:
        raise ValueError(f"`moments` must hold at least two different moments, got {len(distinct)}.")
    after = 1.0 - np.searchsorted(np.sort(moments), distinct[1:]) / len(moments)
    is_held = moments >= distinct[1:][np.argmin(np.abs(after - fraction))]
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _split(y: Array, fraction: float, shuffled: Callable[[Array], Array]) -> tuple[Array, Array]:
    validate.fraction("fraction", fraction, "It is the share that is held out.", one=False)
    held_parts: list[Array] = []
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        number = int(np.floor(fraction * len(members) + 0.5))
        number = min(max(number, 1), len(members) - 1) if len(members) > 1 else 0
        # The shuffle does not depend on the number, so that a class's draw does not depend on how others were rounded.
        held_parts.append(shuffled(members)[:number])
    is_held = np.zeros(len(y), dtype=bool)
    is_held[np.concatenate(held_parts)] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def save_indices(path: Path, indices: Array) -> str:
    """Write indices as a `.npy` file with their number and sha256 in a `.json` next to it, and return the hash.

    Each file is whole or not there; `load_indices` refuses a pair that does not belong together.
    """
    values = np.ascontiguousarray(indices, dtype="<i8")
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)
    with replacing(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps({"count": len(values), "sha256": digest}, indent=1) + "\n")
    return digest


def load_indices(path: Path) -> Array:
    """Indices written by `save_indices`, checked against their hash."""
    values: Array = np.load(path, allow_pickle=False)
    expected = json.loads(path.with_suffix(".json").read_text())["sha256"]
    actual = hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).hexdigest()
    if actual != expected:
        raise ValueError(
            f"the indices in {path} have sha256 {actual}, but {path.with_suffix('.json').name} has {expected}. "
            "One of the two was changed; make them again."
        )
    return values.astype(np.int64)
