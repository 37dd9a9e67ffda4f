"""A disk under a page cache: what a folder may look like after the power failed at any moment of a program.

Python's calls that change names or wait for the disk are watched while a program works on a real folder. What a file
held when it was last synced, and which names a folder had when it was, is on the disk for certain. Everything since
then may or may not have reached it, each name and each file on its own: more disorder than real file systems allow.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: The names in a folder: number of what each stands for.
Names = Mapping[str, int]
#: What may be left of a file: what was synced, all of it, a part, or its length without its content.
_KINDS = ("old", "new", "half", "zeros")
_WATCHED = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir")


@dataclass(frozen=True)
class Moment:
    """What is in the page cache, and what is on the disk for certain, between two operations."""

    #: What the program was last known to have completed.
    completed: Any
    root: int
    names: Mapping[int, Names]
    contents: Mapping[int, bytes]
    synced_names: Mapping[int, Names]
    synced_contents: Mapping[int, bytes]

    def outcomes(self, seed: int, count: int) -> Iterator[Callable[[Path], None]]:
        """Functions that write what may be left after a power failure: four extremes, and `count` drawn at random."""
        for new_names in (False, True):
            for what in ("old", "zeros") if new_names else ("old", "new"):
                yield lambda to, n=new_names, w=what: self._write(to, self.root, lambda: n, lambda: w)
        for k in range(count):
            draw = random.Random(f"{seed} {k}")
            yield lambda to, d=draw: self._write(to, self.root, lambda: d.random() < 0.5, lambda: d.choice(_KINDS))

    def _write(self, to: Path, folder: int, newer: Callable[[], bool], kind: Callable[[], str]) -> None:
        to.mkdir(parents=True)
        now, synced = self.names.get(folder, {}), self.synced_names.get(folder, {})
        for name in sorted({*now, *synced}):
            same = now.get(name) == synced.get(name)
            number = (now if same or newer() else synced).get(name)
            if number is None:
                continue
            if number in self.names:
                self._write(to / name, number, newer, kind)
            else:
                (to / name).write_bytes(self._content(number, kind))

    def _content(self, number: int, kind: Callable[[], str]) -> bytes:
        now, synced = self.contents.get(number, b""), self.synced_contents.get(number, b"")
        if now == synced:
            return now
        start = next(
            (i for i, (a, b) in enumerate(zip(now, synced, strict=False)) if a != b), min(len(now), len(synced))
        )
        return {"old": synced, "new": now, "half": now[: (start + len(now)) // 2],
                "zeros": now[:start] + bytes(len(now) - start)}[kind()]  # fmt: skip


class Disk:
    """Watches a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Moment] = []
        self.completed: Any = None
        self._synced_names: dict[int, Names] = {}
        self._synced_contents: dict[int, bytes] = {}
        #: Held open, so that no number is given to another file.
        self._held: dict[int, int] = {}

    @contextmanager
    def watching(self) -> Iterator[Disk]:
        """Note every operation of this process on the folder."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _WATCHED:
                patch.setattr(os, name, self._noted(getattr(os, name)))
            patch.setattr(os, "fsync", self._fsync)
            try:
                yield self
            finally:
                for descriptor in self._held.values():
                    os.close(descriptor)

    def _noted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            result = operation(*arguments, **options)
            self._note()
            return result

        return noted

    def _fsync(self, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._synced_names[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._synced_contents[number] = path.read_bytes()
        self._note()

    def _note(self) -> None:
        names: dict[int, Names] = {}
        contents: dict[int, bytes] = {}
        for path in (self.root, *self.root.rglob("*")):
            if path.is_dir():
                names[self._number(path)] = {entry.name: entry.inode() for entry in os.scandir(path)}
            else:
                contents[self._number(path)] = path.read_bytes()
        # Folders and files that only the disk still has.
        for moment in self.moments[-1:]:
            names = {**moment.names, **names}
            contents = {**moment.contents, **contents}
        self.moments.append(
            Moment(
                self.completed, self.root.stat().st_ino, names, contents,
                dict(self._synced_names), dict(self._synced_contents),
            )
        )  # fmt: skip

    def _number(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self._held:
            self._held[number] = os.open(path, os.O_RDONLY)
        return number
