"""A run on disk: what was asked, what came out line by line, and whether it finished.

```
runs/longtail/3f9c21d07a44/
    spec.json       what was asked; the directory's name is its hash
    records.jsonl   what the recipe yielded, one JSON object a line, as it came
    arrays/*.npy    larger results, whole or not there at all
    checkpoint.pt   where to go on from, if the recipe keeps one
    sharded/        the same of a training on several processes
    done            written last: only a run that has it counts
    trial.json      which trial of a study the run is, if it is one
    pruned          written instead of `done` when the study gave the run up
    error.txt       why the last attempt failed, if it did
    lock            held while a process works on the run
```

Everything is written to a temporary name and renamed, or appended and flushed line by line; a torn last line is
dropped when the run resumes. A checkpoint ends with its own hash: one that does not match is not trusted, and neither
are records that are not JSON. Then the run starts again. The operating system lets go of the lock of a process that
dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reweigh.bench.files import write_atomically
from reweigh.bench.train.records import Record

#: Bytes of the hash at the end of a checkpoint.
_DIGEST = hashlib.sha256().digest_size


class RunTakenError(RuntimeError):
    """Another process is working on this run."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a run is. Equal specs are the same run; any difference makes another one.

    `settings` are the recipe's resolved settings, `method` the method's text, `scale_from` the id of the run whose
    recorded mean weights multiply this run's loss (the scale control of plain training).
    """

    recipe: str
    #: The column and the row of the recipe's table that the run belongs to.
    column: str
    label: str
    settings: Mapping[str, Any]
    method: str
    seed: int
    scale_from: str | None = None
    #: What the run is for: "tune" runs choose hyper-parameters and are never reported as results.
    stage: Literal["tune", "final"] = "final"

    @property
    def id(self) -> str:
        """The first twelve hex digits of the hash of the canonical spec."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]

    def text(self) -> str:
        """The canonical JSON of the spec."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))

    def as_dict(self) -> dict[str, Any]:
        """The spec as plain values."""
        return {
            "recipe": self.recipe,
            "column": self.column,
            "label": self.label,
            "settings": dict(self.settings),
            "method": self.method,
            "seed": self.seed,
            "scale_from": self.scale_from,
            "stage": self.stage,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Spec:
        """The inverse of `as_dict`."""
        return cls(**values)


@dataclass(frozen=True)
class Run:
    """A spec and its directory under a folder of runs."""

    spec: Spec
    root: Path
    directory: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", self.root / self.spec.recipe / self.spec.id)

    @property
    def done(self) -> bool:
        """Whether the run has finished."""
        return (self.directory / "done").exists()

    @property
    def pruned(self) -> bool:
        """Whether a study gave the run up: it is no result, and there is nothing left to do."""
        return (self.directory / "pruned").exists()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.done or self.pruned

    def revive(self) -> None:
        """Make a run that is or was a trial of a study an ordinary one, to be done to its end."""
        for name in ("trial.json", "pruned"):
            (self.directory / name).unlink(missing_ok=True)

    def records(self) -> list[Record]:
        """What has been recorded so far, without a torn last line."""
        return _read_lines(self.directory / "records.jsonl")

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """A larger result by name."""
        return np.load(self.directory / "arrays" / f"{name}.npy", allow_pickle=False)

    def has_array(self, name: str) -> bool:
        """Whether a larger result of this name was kept."""
        return (self.directory / "arrays" / f"{name}.npy").exists()

    def summary(self) -> dict[str, Any]:
        """What `done` says: number of records, wall time, versions."""
        return json.loads((self.directory / "done").read_text())

    @contextmanager
    def open(self) -> Generator[Writer]:
        """Take the run for writing; raises `RunTakenError` if another process has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunTakenError(f"another process is working on run {self.spec.id}") from None
            write_atomically(self.directory / "spec.json", json.dumps(self.spec.as_dict(), indent=1, sort_keys=True))
            yield Writer(self)


class Writer:
    """The only way to put something into a run directory."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._lines = run.directory / "records.jsonl"
        self._checkpoint = run.directory / "checkpoint.pt"
        self._count = 0

    @property
    def directory(self) -> Path:
        """The run's own folder."""
        return self.run.directory

    def resume(self) -> Any | None:
        """The last checkpoint's state, or None; records written after it are dropped either way."""
        saved: dict[str, Any] | None = None
        if self._checkpoint.exists():
            saved = _load_checkpoint(self._checkpoint)
        if not self.rewind(0 if saved is None else int(saved["records"])):
            saved = None  # the records are the truth: without them the checkpoint cannot be trusted
        return None if saved is None else saved["state"]

    def rewind(self, count: int) -> bool:
        """Drop all records but the first so many; False, and all are dropped, if there are not so many to be read."""
        kept = _readable_lines(self._lines)[:count]
        whole = len(kept) == count
        kept = kept if whole else []
        self._count = len(kept)
        write_atomically(self._lines, "".join(_line(record) for record in kept))
        return whole

    def record(self, record: Record, *, synced: bool = True) -> None:
        """Append one record; `synced` waits until it is on the disk itself."""
        line = _line(record).encode()
        # Unbuffered: what a full disk refused must not come after all, half of it, when a buffer is closed.
        with self._lines.open("ab", buffering=0) as lines:
            before = lines.tell()
            try:
                written = 0
                while written < len(line):
                    written += lines.write(line[written:]) or 0
                if synced:
                    os.fsync(lines.fileno())
            except OSError:  # a full disk: take back the half line, so that the file stays readable
                os.ftruncate(lines.fileno(), before)
                raise
        self._count += 1

    def checkpoint(self, state: Any) -> None:
        """Keep `state` (tensors, numbers, containers) as the place to go on from."""
        import torch

        content = io.BytesIO()
        torch.save({"records": self._count, "state": state}, content)
        content.write(hashlib.sha256(content.getbuffer()).digest())
        write_atomically(self._checkpoint, content.getbuffer(), synced=False)

    def array(self, name: str, values: np.ndarray[Any, Any]) -> None:
        """Keep a larger result."""
        folder = self.run.directory / "arrays"
        folder.mkdir(exist_ok=True)
        content = io.BytesIO()
        np.save(content, values, allow_pickle=False)
        write_atomically(folder / f"{name}.npy", content.getbuffer(), synced=False)

    @property
    def count(self) -> int:
        """How many records there are."""
        return self._count

    def prune(self) -> None:
        """Mark the run as given up; it will not be resumed."""
        write_atomically(self.run.directory / "pruned", json.dumps({"records": self._count}))
        self._checkpoint.unlink(missing_ok=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the run as done; its checkpoint is no longer needed."""
        write_atomically(self.run.directory / "done", json.dumps({"records": self._count, **summary}, indent=1))
        self._checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.run.directory / "sharded", ignore_errors=True)
        (self.run.directory / "error.txt").unlink(missing_ok=True)


def load_runs(root: Path) -> list[Run]:
    """Every run under a folder, finished or not, in a stable order."""
    runs: list[Run] = []
    for path in sorted(root.glob("*/*/spec.json")):
        run = Run(_read_spec(path), root)
        if run.directory == path.parent:  # a renamed or edited directory is not the run it says it is
            runs.append(run)
    return runs


def _line(record: Record) -> str:
    return json.dumps(record, default=_plain, allow_nan=True) + "\n"


def _plain(value: Any) -> Any:
    """NumPy and torch numbers as plain ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a record holds numbers, strings and lists of them, got {type(value).__name__}")


def _read_spec(path: Path) -> Spec:
    try:
        return Spec.from_dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} does not say what the run is ({error}). Something else changed the file; delete the run's "
            "directory to run it again."
        ) from None


def _read_lines(path: Path) -> list[Record]:
    if not path.exists():
        return []
    records: list[Record] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except ValueError:
                if line.endswith(b"\n"):
                    raise ValueError(
                        f"line {number} of {path} is not JSON. Something else changed the file; delete the "
                        "run's directory to run it again."
                    ) from None
                break  # torn by a crash: everything before it stands
    return records


def _readable_lines(path: Path) -> list[Record]:
    """The records of a run that is not done yet; none if one of them is damaged."""
    try:
        return _read_lines(path)
    except ValueError:
        return []


def _load_checkpoint(path: Path) -> dict[str, Any] | None:
    import torch

    content = path.read_bytes()
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:  # torch reads changed numbers without a word
        return None
    try:
        return torch.load(io.BytesIO(body), weights_only=True)
    except Exception:  # a foreign file: starting again is always right
        return None
