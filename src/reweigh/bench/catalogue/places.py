"""Where data are: under the data root, in the cache, or in a registry package that may be fetched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from reweigh.bench import limits
from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.cache import cache_folder, decoded_path, package_path, unpacked_path
from reweigh.bench.catalogue.card import DataCard, Loaded, Package
from reweigh.bench.catalogue.fetching import DownloadProgress, FetchError, HashMismatchError, fetch_package
from reweigh.bench.errors import MissingFileError, UserError
from reweigh.bench.files import sha256_of, sha256_of_files


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the bytes of a data set are; all empty where it comes with an installed library.

    Parameters
    ----------
    name, card
        Of the data set.
    files
        The official files, by the short names that its reader knows them by.
    packages
        The registry packages to read, where there are no official files. They are in the cache.
    base
        The loaded data set that this one is made from.
    """

    name: str
    card: DataCard
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])
    packages: tuple[Package, ...] = ()
    base: Loaded | None = None

    @property
    def source(self) -> str:
        """Where the bytes came from, in words."""
        if self.base is not None:
            return self.base.source
        if self.files:
            return f"official files in {next(iter(self.files.values())).parent}"
        return ", ".join(str(package) for package in self.packages) or self.card.source

    @property
    def stand_in_for(self) -> str | None:
        """What these bytes replace: a package may be a stand-in where the official files are not."""
        given = [package.stand_in_for for package in self.packages] + [self.base and self.base.stand_in_for]
        return next(filter(None, given), self.card.stand_in_for)

    def about(self, name: str) -> dict[str, Any]:
        """What a data set loaded from here by this name knows about itself."""
        facts = {"licence": self.card.licence, "source": self.source, "stand_in_for": self.stand_in_for}
        return {"name": name, **facts}

    def sha256(self) -> str:
        """The hash of the official files or of the one package; empty where there is neither."""
        if self.base is not None:
            return self.base.sha256
        if self.files:
            return sha256_of_files(self.files.values())
        return self.packages[0].sha256 if len(self.packages) == 1 else ""


def data_root(root: Path | None) -> Path | None:
    """The folder of official files: the one given, that of `REWEIGH_DATA`, or None."""
    given = os.environ.get("REWEIGH_DATA") if root is None else root
    if not given:
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise MissingFileError(f"the data root {path} is not a folder. Give one that exists, or none.")
    return path


def locate(
    name: str,
    module: ModuleType,
    options: Mapping[str, Any],
    root: Path | None,
    download: bool,
    progress: DownloadProgress | None,
) -> Origin:
    """Look under the data root, then in the cache, and fetch a package if that is allowed."""
    card: DataCard = module.CARD
    if card.embedded:
        return Origin(name=name, card=card)
    root = data_root(root)
    if files := _official(module, root, options):
        return Origin(name=name, card=card, files=files)
    if not card.packages:
        raise MissingFileError(_not_found(name, card, root))
    choices = [(package,) for package in card.packages] if card.together else [card.packages]
    packages = tuple(_cached(name, card, choice, root, download, progress) for choice in choices)
    return Origin(name=name, card=card, packages=packages)


def present(name: str, module: ModuleType, root: Path | None) -> str | None:
    """Where a data set is, if it is anywhere; nothing is read."""
    card: DataCard = module.CARD
    if card.embedded:
        return "installed"
    try:
        files = _official(module, data_root(root), {})
    except FileNotFoundError:  # only some of the files: `load` reports which are missing
        files = {}
    if files:
        return str(next(iter(files.values())).parent)
    cached = [package_path(package) for package in card.packages if _is_cached(name, package)]
    if not cached or (card.together and len(cached) < len(card.packages)):
        return None
    return str(cached[0])


def contents(module: ModuleType, origin: Origin) -> dict[str, bytes]:
    """The bytes of a data set's files by their short names, unpacked.

    Its module has `LINES` if only so many lines of a large file are read, and names what it reads of its package by
    `MEMBERS`, `{short name: how the member's path ends}`, or by a function `member(path)` that gives the short name or
    None.
    """
    if origin.files:
        return {key: _unpacked(path, getattr(module, "LINES", None)) for key, path in origin.files.items()}
    members: Mapping[str, str] = getattr(module, "MEMBERS", {})

    def short(path: str) -> str | None:
        if hasattr(module, "member"):
            return module.member(path)
        return next((key for key, ending in members.items() if path.endswith(ending)), None)

    path = package_path(origin.packages[0])
    read = {str(short(name)): content for name, content in archive.members(path, lambda name: bool(short(name)))}
    for key, ending in members.items():
        if key not in read:
            raise UserError(f"{path} has no member {ending!r}, so it is not the expected archive. Delete it.")
    return read


def verified(name: str, package: Package) -> Path:
    """The file of a package in the cache, if it is the one that was pinned."""
    path = package_path(package)
    if not path.exists():
        raise MissingFileError(f"{path} is gone. Fetch it again with `reweigh data get {name}`.")
    if sha256_of(path) != package.sha256:
        raise UserError(f"{path} is damaged or was changed. Fetch it again with `reweigh data get {name}`.")
    return path


def _official(module: ModuleType, root: Path | None, options: Mapping[str, Any]) -> Mapping[str, Path]:
    """The official files, if all of them are there: what the module's `find` returns, or its `FILES`, raw or gzip."""
    if root is None:
        return {}
    if hasattr(module, "find"):
        return module.find(root, **options)
    files: dict[str, Path] = {}
    names: Mapping[str, str] = getattr(module, "FILES", {})
    for key, relative in names.items():
        path = next((path for path in (root / relative, root / f"{relative}.gz") if path.is_file()), None)
        if path is None:
            return {}
        files[key] = path
    return files


def _is_cached(name: str, package: Package) -> bool:
    """Whether the cache has the package, or what was made of it."""
    paths = (package_path(package), decoded_path(name, package), unpacked_path(name, package))
    return any(path.exists() for path in paths)


def _cached(
    name: str,
    card: DataCard,
    choice: tuple[Package, ...],
    root: Path | None,
    download: bool,
    progress: DownloadProgress | None,
) -> Package:
    """The first of some packages that the cache has, fetched if need be and allowed."""
    package = next((package for package in choice if _is_cached(name, package)), None)
    if package is None and not download:
        raise MissingFileError(_not_found(name, card, root))
    if package is not None:
        if decoded_path(name, package).exists() or unpacked_path(name, package).exists():
            return package  # checked when that was made
        try:
            verified(name, package)
        except ValueError:
            if not download:
                raise
        else:
            return package
    return _fetch_best(card, choice, progress)


def _fetch_best(card: DataCard, choice: tuple[Package, ...], progress: DownloadProgress | None) -> Package:
    """The first package that can be fetched; if none can, why not."""
    failures: list[str] = []
    for package in choice:
        try:
            fetch_package(package, progress)
        except HashMismatchError:
            raise  # not a reason to try elsewhere: somebody should look at it
        except FetchError as error:
            failures.append(str(error))
        else:
            return package
    raise FetchError("\n".join([*failures, *([f"Instead, put {card.official}"] if card.official else [])]))


def _not_found(name: str, card: DataCard, root: Path | None) -> str:
    """Where a data set was looked for, and every way to get it."""
    where = f"under the data root {root}" if root else "under a data root (none is set)"
    if not card.packages:
        return f"{name} is not {where}, and no registry has it. Put {card.official}"
    needed = card.packages if card.together else card.packages[:1]
    size = sum(package.size for package in needed) / 1e6
    return (
        f"{name} is neither {where} nor in the cache {cache_folder()}. Get it with `reweigh data get {name}` "
        f"({', '.join(map(str, needed))}, {size:.0f} MB){f', or put {card.official}' if card.official else '.'}"
    )


def _unpacked(path: Path, lines: int | None) -> bytes:
    if lines is not None:
        return limits.first_lines(path, lines)
    return limits.gunzip(path) if path.suffix == ".gz" else path.read_bytes()
