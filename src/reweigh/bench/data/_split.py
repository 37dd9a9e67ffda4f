"""Splits that keep the share of every class, and indices on disk that prove what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.data._cache import replacing
from reweigh.bench.data._dataset import Array


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


def _split(y: Array, fraction: float, shuffled: Callable[[Array], Array]) -> tuple[Array, Array]:
    validate.fraction("fraction", fraction, "It is the share that is held out.", one=False)
    held_parts: list[Array] = []
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        number = int(np.floor(fraction * len(members) + 0.5))
        number = min(max(number, 1), len(members) - 1) if len(members) > 1 else 0
        # The shuffle is drawn whatever the number, so that a class's draw does not depend on how others were rounded.
        held_parts.append(shuffled(members)[:number])
    is_held = np.zeros(len(y), dtype=bool)
    is_held[np.concatenate(held_parts)] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def save_indices(path: Path, indices: Array) -> str:
    """Write indices as a `.npy` file with their number and sha256 in a `.json` beside it, and return the hash.

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
    found = hashlib.sha256(np.ascontiguousarray(values, dtype="<i8").tobytes()).hexdigest()
    if found != expected:
        raise ValueError(
            f"the indices in {path} have sha256 {found}, but {path.with_suffix('.json').name} says {expected}. "
            "One of the two was changed; make them again."
        )
    return values.astype(np.int64)
