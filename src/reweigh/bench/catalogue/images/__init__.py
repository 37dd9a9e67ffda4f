"""Images and labels in memory. `read` gives `Arrays`.

A file's `read(files, **options)` takes the official files, and `read_package(path)` the registry package, whose arrays
are kept decoded in the cache.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from reweigh.bench.catalogue.cache import decoded_path
from reweigh.bench.catalogue.card import Array, Loaded, Package
from reweigh.bench.catalogue.places import Origin, verified
from reweigh.bench.errors import UserError
from reweigh.bench.files import replacing, sha256_of_arrays

__all__ = ["Arrays", "Dataset", "build"]


class Arrays(NamedTuple):
    """What a reader returns: examples, labels 0..C-1 (int64) and the names of the classes."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset(Loaded):
    """Images in memory.

    Parameters
    ----------
    x_train, x_test
        Images as uint8 in NHWC order (one channel included), or vectors of float32 that were made of them.
    y_train, y_test
        Labels from 0 to C-1, int64.
    classes
        The name of each class.
    """

    x_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    x_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                raise UserError(f"{self.name}: {len(x)} {part} examples but {len(y)} labels. The files do not match.")
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise UserError(
                    f"{self.name}: {part} labels run from {y.min()} to {y.max()}, but there are {len(self.classes)} "
                    "classes. The files do not match."
                )

    @property
    def summary(self) -> str:
        """Training and test examples."""
        return f"{len(self.x_train)} training and {len(self.x_test)} test examples"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example as a model takes it: (channels, height, width)."""
        *rest, last = self.x_train.shape[1:]
        return (last, *rest)

    def counts(self) -> Array:
        """Training examples of each class."""
        return np.bincount(self.y_train, minlength=len(self.classes))


VALUE = Dataset


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> Dataset:
    """Images from official files, a package or an installed library."""
    if origin.files:
        arrays: Arrays = module.read(origin.files, **options)
    elif origin.packages:
        arrays = _decoded(origin.name, origin.packages[0], module.read_package)
    else:
        arrays = module.read(**options)
    return Dataset(
        **origin.about(name),
        sha256=origin.sha256() or sha256_of_arrays(arrays[:4]),
        **arrays._asdict(),
    )


def _decoded(name: str, package: Package, reader: Callable[[Path], Arrays]) -> Arrays:
    """The arrays of a package, which are decoded once and then kept next to it."""
    decoded = decoded_path(name, package)
    if decoded.exists():
        try:
            with decoded.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                *parts, classes = (file[part] for part in Arrays._fields)
                return Arrays(parts[0], parts[1], parts[2], parts[3], tuple(classes.tolist()))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            decoded.unlink(missing_ok=True)  # damaged on disk: the package still has everything
    arrays = reader(verified(name, package))
    try:
        with replacing(decoded) as temporary, temporary.open("wb") as file:
            stored: dict[str, Any] = {**arrays._asdict(), "classes": np.array(arrays.classes)}
            np.savez(file, **stored)
    except OSError:
        pass  # a full disk or a read-only cache: slower next time, and still right
    return arrays
