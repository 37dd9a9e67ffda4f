"""The cache folder: downloaded packages and decoded arrays, each whole or not there at all."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from reweigh.bench.data._dataset import Arrays, Package, sha256_of

#: Raised by one whenever a reader's output changes, so that arrays decoded before are not used again.
FORMAT = 1


def cache_folder() -> Path:
    """`REWEIGH_CACHE`, or the user's cache folder of this platform."""
    if given := os.environ.get("REWEIGH_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "reweigh"


def package_path(package: Package) -> Path:
    """Where the file of a package lies, or will."""
    stem = package.name.strip("@").replace("/", "-")
    suffix = {"npm": ".tgz", "pip": _pip_suffix(package), "apt": ".deb"}[package.registry]
    return cache_folder() / package.registry / f"{stem}-{package.version}{suffix}"


def _pip_suffix(package: Package) -> str:
    return ".tar.gz" if any(option.startswith("--no-binary") for option in package.options) else ".whl"


def decoded(name: str, package: Package, path: Path, reader: Callable[[Path], Arrays]) -> Arrays:
    """The arrays of a package; from the second time on without decoding.

    They are kept beside the package under a name that has the hash of the package in it, so that another version
    can never be taken for this one.
    """
    kept = decoded_path(name, package)
    if kept.exists():
        try:
            with kept.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                *parts, classes = (file[part] for part in Arrays._fields)
                return Arrays(parts[0], parts[1], parts[2], parts[3], tuple(classes.tolist()))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            kept.unlink(missing_ok=True)  # damaged on disk: the package still has everything
    if not path.exists():
        raise FileNotFoundError(f"{kept} was damaged and {path} is gone. Get it again: `reweigh data get {name}`.")
    found = sha256_of(path)
    if found != package.sha256:
        raise ValueError(
            f"{path} has sha256 {found}, not {package.sha256}: it is damaged or was changed. Delete it and run "
            f"`reweigh data get {name}`."
        )
    arrays = reader(path)
    try:
        with replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                x_train=arrays.x_train,
                y_train=arrays.y_train,
                x_test=arrays.x_test,
                y_test=arrays.y_test,
                classes=np.array(arrays.classes),
            )
    except OSError:
        pass  # a full disk or a cache one may only read: slower next time, and no less right now
    return arrays


def decoded_path(name: str, package: Package) -> Path:
    """Where the decoded arrays of a package lie, or will."""
    return cache_folder() / package.registry / f"{name}-{package.sha256[:16]}-v{FORMAT}.npz"


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """A temporary name in the same folder that takes the place of `path` if nothing goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
