"""Splits that all processes of a comparison share: one process encodes them, and all others map the same files.

A large table encoded by each process for itself would be in memory once for each, and the table itself as well. The
process that has read the table writes each split that is about to be trained on, once for all models and methods. A
mapped file is in memory once, and the system may drop it when memory is short. The others never read the table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.compare.dealt import Array, DealtSplit, Room, SplitFacts
from reweigh.bench.files import locked, reserve, sweep, temporary_name
from reweigh.bench.lab.table import with_tuples
from reweigh.bench.train.scores import ScoringRules

#: The folder next to the runs; removed when the comparison ends.
FOLDER = "encoded"
#: Tells the processes of a comparison where that folder is.
VARIABLE = "REWEIGH_ENCODED"
#: Bytes of splits that stay although others are about to be trained on.
_MOST = 1_000_000_000
_PARTS = ("train", "val", "test")


def from_environment() -> SharedSplits | None:
    """The splits of the comparison that this process works for; None if it works for none."""
    folder = os.environ.get(VARIABLE)
    return None if folder is None else SharedSplits(Path(folder))


def key(identity: str) -> str:
    """The name of a split in the folder, from everything that it follows from."""
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


class SharedSplits:
    """The encoded splits of a comparison, each a folder of arrays.

    Parameters
    ----------
    folder
        Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return (self.folder / name).is_dir()

    def put(self, name: str, make: Callable[[Room], DealtSplit]) -> None:
        """Write a split, unless it is there; `make` is given room in files for the numbers of its rows."""
        with locked(self.folder / "lock"):  # whoever comes second waits, and finds the folder
            if name in self:
                return
            temporary = temporary_name(self.folder / name)
            temporary.mkdir()
            try:
                _write(temporary, make)
                temporary.replace(self.folder / name)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)

    def get(self, name: str) -> DealtSplit | None:
        """A split whose rows are mapped; None if it is not there."""
        folder = self.folder / name
        try:
            facts = json.loads((folder / "facts.json").read_text())
            x = {part: np.load(folder / f"x_{part}.npy", mmap_mode="c", allow_pickle=False) for part in _PARTS}
            y, groups = (
                {p: np.load(path, allow_pickle=False) for p in _PARTS if (path := folder / f"{what}_{p}.npy").exists()}
                for what in ("y", "groups")
            )
        except FileNotFoundError:
            return None
        judging = ScoringRules(**with_tuples(facts.pop("judging")))
        return DealtSplit(x=x, y=y, groups=groups, facts=SplitFacts(**with_tuples(facts), judging=judging))

    def make_room(self, wanted: Collection[str]) -> None:
        """Remove other splits than these if they take much room; who still works with one of them keeps it mapped."""
        with locked(self.folder / "lock"):
            sweep(self.folder)
            others = [path for path in self.folder.iterdir() if path.is_dir() and path.name not in wanted]
            if sum(file.stat().st_size for path in others for file in path.iterdir()) > _MOST:
                for path in others:
                    shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, make: Callable[[Room], DealtSplit]) -> None:
    matrices: list[Any] = []

    def room(part: str, shape: tuple[int, ...]) -> Array:
        path = folder / f"x_{part}.npy"
        matrix = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
        reserve(path)
        matrices.append(matrix)
        return matrix

    split = make(room)
    for part in _PARTS:
        np.save(folder / f"y_{part}.npy", split.y[part], allow_pickle=False)
        if split.groups:
            np.save(folder / f"groups_{part}.npy", split.groups[part], allow_pickle=False)
    for matrix in matrices:
        matrix.flush()
    (folder / "facts.json").write_text(json.dumps(dataclasses.asdict(split.facts)))


def remove(root: Path) -> None:
    """Remove what the processes of a comparison shared."""
    shutil.rmtree(root / FOLDER, ignore_errors=True)
