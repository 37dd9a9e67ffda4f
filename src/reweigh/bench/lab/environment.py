"""What a number was computed with: versions, commit, machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGES = ("reweigh", "torch", "numpy", "scipy", "scikit-learn")


@functools.cache
def environment() -> dict[str, Any]:
    """Versions, the commit of a source checkout, and the machine, as plain values."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"versions": versions, "commit": _commit(), "machine": f"{_processor()}, {platform.system()}"}


def _processor() -> str:
    """The processor's name and its number of cores."""
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = (line.partition(":") for line in described.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), name)
    return f"{name}, {os.cpu_count()} cores"


def _commit() -> str | None:
    """The commit of the checkout this file is in, marked if files differ from it; None in an installed package."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)  # someone else's checkout does not count
        return f"{commit}, with changes" if _git(folder, "status", "--porcelain", ".") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
