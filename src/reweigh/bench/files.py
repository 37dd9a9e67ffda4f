"""Files that are complete or absent, and hashes that prove what they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def write_atomically(path: Path, content: str | bytes | memoryview, *, synced: bool = True) -> None:
    """Write a file so that it is either complete or as it was before; `synced` waits until it has reached the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if synced:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Generator[Path, None, None]:
    """A temporary path in the same folder that replaces `path` if nothing goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
