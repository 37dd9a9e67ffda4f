"""Tasks made of classes: a fixed split of the classes, and tasks as indices that can be saved and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reweigh.bench.files import sha256_of_arrays

_PARTS = ("train", "val", "test")

Array = np.ndarray[Any, Any]


class ClassSplit(NamedTuple):
    """The classes to train on, to choose hyper-parameters on, and only to report on."""

    train: Array
    val: Array
    test: Array

    @property
    def sha256(self) -> str:
        """The hash that identifies this split."""
        return sha256_of_arrays([part.astype("<i8") for part in self])


def class_split(names: Sequence[str], sizes: tuple[int, int, int] | None = None) -> ClassSplit:
    """Split classes into three parts, the same on every machine and with every version of NumPy.

    Parameters
    ----------
    names
        The names of all classes. Where each starts with `train/`, `val/` or `test/`, that is the split.
    sizes
        Classes of the three parts; 64, 16 and 20 percent unless given. Classes come in the order of the sha256 of
        their names.

    Examples
    --------
    >>> [len(part) for part in class_split([f"class {i}" for i in range(10)])]
    [6, 2, 2]
    """
    own = [name.split("/")[0] for name in names]
    if set(own) <= set(_PARTS) and sizes is None:
        return ClassSplit(*(np.flatnonzero(np.array(own) == part) for part in _PARTS))
    count = len(names)
    train, val = round(0.64 * count), round(0.16 * count)
    chosen = sizes or (train, val, count - train - val)
    if sum(chosen) != count or min(chosen) < 1:
        raise ValueError(f"`sizes` must be three positive numbers with the sum {count}, the classes, got {chosen}.")
    keys = [hashlib.sha256(name.encode()).digest() for name in names]
    order = np.array(sorted(range(count), key=keys.__getitem__))
    first, second = chosen[0], chosen[0] + chosen[1]
    return ClassSplit(*(np.sort(part) for part in (order[:first], order[first:second], order[second:])))


def draw_tasks(sizes: Array, ways: int, images: int, count: int, rng: np.random.Generator) -> Array:
    """Tasks as indices: for each, `ways` different classes and `images` different examples of each.

    Parameters
    ----------
    sizes
        How many examples each class has.
    ways, images
        Classes per task, and examples per class: those to learn from first, then those to predict.
    count
        Tasks.
    rng
        The only source of randomness.

    Returns
    -------
    Array
        `(count, ways, 1 + images)`: the class, then the places of its examples within the class.
    """
    if ways > len(sizes):
        raise ValueError(f"`ways` must be at most {len(sizes)}, the classes there are, got {ways}.")
    if images > sizes.min():
        raise ValueError(
            f"a task needs {images} examples of a class, but one class has {sizes.min()}. Ask for fewer shots or "
            "queries."
        )
    tasks = np.empty((count, ways, 1 + images), np.int64)
    for task in tasks:
        task[:, 0] = rng.choice(len(sizes), ways, replace=False)
        for row in task:
            row[1:] = rng.choice(sizes[row[0]], images, replace=False)
    return tasks


def sha256_of_tasks(tasks: Array) -> str:
    """The hash that identifies this pool of tasks."""
    return sha256_of_arrays([tasks.astype("<i8")])
