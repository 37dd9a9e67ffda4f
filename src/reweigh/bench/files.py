"""Files that are complete or absent, and hashes that prove what they hold."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def write_atomically(path: Path, content: str | bytes | memoryview, *, synced: bool = True) -> None:
    """Write a file so that it is either complete or as it was before; `synced` waits until it has reached the disk."""
    temporary = new_temporary(path)
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if synced:
        sync(path.parent)


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """A temporary path in the same folder that replaces `path` if nothing goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = new_temporary(path)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


@contextmanager
def locked(path: Path) -> Generator[None, None, None]:
    """Only one process at a time is inside, others wait; the lock of a process that is killed ends with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_temporary(path: Path) -> Path:
    """An empty file next to `path`, made now and under a name that nobody can have guessed.

    In a folder that others may write to, a name known beforehand could be a symbolic link to any file of the user's.
    """
    temporary = temporary_name(path)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    return temporary


def temporary_name(path: Path) -> Path:
    """A name next to `path` that nobody can guess, and that `sweep` recognises."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; nobody else may be writing to it."""
    for left in folder.glob(".*.tmp"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until what is in a file, or which names are in a folder, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def reserve(path: Path) -> None:
    """Take a file's room on the disk now: a full disk is an error here, and would kill a process that fills a map."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


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


def sha256_of_arrays(arrays: Sequence[np.ndarray[Any, Any]]) -> str:
    """One hash for several arrays: of their types, shapes and values."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
