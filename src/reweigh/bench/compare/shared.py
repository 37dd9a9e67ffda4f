"""Encoded rows that all processes of a comparison share: one of them writes a split, and all map the same file.

A large table encoded by each process for itself would be in memory once for each. A mapped file is in memory once,
and the system may drop it when memory is short.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.files import sweep, temporary_name

Array = np.ndarray[Any, Any]
#: The folder next to the runs; removed when the comparison ends.
FOLDER = "encoded"


class EncodedRows:
    """The encoded parts of one split, in a folder of files.

    Parameters
    ----------
    folder
        Where files are shared.
    identity
        Everything that the rows follow from.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder = folder
        self.key = hashlib.sha256(identity.encode()).hexdigest()[:16]

    def get(self, part: str, shape: tuple[int, int], fill: Callable[[Array], object]) -> Array:
        """A float32 matrix of this shape: mapped if it is there, else written by `fill` and then mapped.

        Splits are gone through one after the other: a new one takes the place of those before it. A process that still
        works with an old one keeps it, since a file that is mapped outlives its name.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.key}-{part}.npy"
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits, and finds the file
            if not path.exists():
                sweep(self.folder)
                for old in self.folder.glob("*.npy"):
                    if not old.name.startswith(self.key):
                        old.unlink()
                temporary = temporary_name(path)
                matrix = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
                _reserve(temporary)
                fill(matrix)
                matrix.flush()
                temporary.replace(path)
        # Private pages only where somebody writes, which nobody does.
        return np.load(path, mmap_mode="c", allow_pickle=False)


def _reserve(path: Path) -> None:
    """Take the room on the disk now: a full disk is an error here, and would kill the process that writes to a map."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def remove(root: Path) -> None:
    """Remove what the processes of a comparison shared."""
    shutil.rmtree(root / FOLDER, ignore_errors=True)
