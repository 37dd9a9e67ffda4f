"""A run on disk: what was asked, what was recorded line by line, and whether it finished.

```
runs/longtail/3f9c21d07a44/
    spec.json       what was asked; the directory's name is its hash
    records.jsonl   what the recipe yielded, one JSON object per line, as it came
    arrays/*.npy    larger results, complete or absent
    checkpoint.pt   where to resume from, if the recipe keeps one
    sharded/        the same of a training on several processes
    done            written last, with the hashes of records and arrays: only a run that has it counts
    trial.json      which trial of a study the run is, if it is one
    pruned          written instead of `done` when the study gave the run up
    error.txt       why the last attempt failed, if it did
    lock            held while a process works on the run
```

Everything is written to a temporary name and renamed, or appended and flushed line by line; a torn last line is
dropped when the run resumes. `done` is written when all it vouches for has reached the disk, names in folders included,
so that it cannot outlive its data when the power fails. Finished records and arrays that no longer match their hashes
are not trusted, nor is a `done` that cannot be read: the run is done again. A checkpoint ends with its own hash: one
that does not match, or that another version wrote, is not trusted either, and the run starts again. The operating
system lets go of the lock of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reweigh.bench.errors import UserError
from reweigh.bench.files import sha256_of, sweep, sync, write_atomically
from reweigh.bench.train.records import Record

#: Bytes of the hash at the end of a checkpoint.
_DIGEST = hashlib.sha256().digest_size
#: The key under which `done` holds the hash of all else that it says.
_OWN_HASH = "sha256 of this"


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

    @cached_property  # executors ask for it at every look at their runs
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
        """Whether the run has finished, and its results are what they were then."""
        return (self.directory / "done").exists() and self.damage() is None

    def damage(self) -> str | None:
        """Why a run that has finished cannot be trusted; None if it can, or has not finished.

        Files are hashed once per process, and again when size or time of one of them changes.
        """
        files = _result_files(self.directory)
        if self.directory / "done" not in files:
            return None
        state = (self.spec.id, *((str(path), *_stamp(path)) for path in files))
        cached = _judged.get(self.directory)
        if cached is None or cached[0] != state:
            cached = _judged[self.directory] = (state, _judge(self, files))
        return cached[1]

    @property
    def pruned(self) -> bool:
        """Whether a study gave up on the run: it has no result, and nothing is left to do."""
        return (self.directory / "pruned").exists()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.done or self.pruned

    def revive(self) -> None:
        """Make a run that is or was a trial of a study an ordinary one, to be done to its end."""
        for name in ("trial.json", "pruned"):
            path = self.directory / name
            if path.exists():  # a disk that cannot be written to refuses even to remove nothing
                path.unlink(missing_ok=True)

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
        """What `done` says: number and hashes of records and arrays, wall time, versions."""
        return json.loads((self.directory / "done").read_text())

    @contextmanager
    def open(self) -> Generator[RunWriter]:
        """Take the run for writing; raises `RunTakenError` if another process has it.

        What a killed process left is swept first, and a `done` that cannot be trusted is taken back.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunTakenError(f"another process is working on run {self.spec.id}") from None
            self._sweep()
            if self.damage() is not None:
                (self.directory / "done").unlink()
            write_atomically(self.directory / "spec.json", json.dumps(self.spec.as_dict(), indent=1, sort_keys=True))
            for folder in (self.directory.parent, self.root):  # a run whose folder has no name on the disk is lost
                sync(folder)
            with contextlib.suppress(OSError):  # not ours, and perhaps not ours to read
                sync(self.root.resolve().parent)
            yield RunWriter(self)

    @property
    def littered(self) -> bool:
        """Whether a killed process left something in the folder of a finished run that nobody will need."""
        left = any((self.directory / name).exists() for name in _OF_UNFINISHED)
        return self.done and (left or any(self.directory.glob(".*.tmp")))

    def tidy(self) -> None:
        """Remove what a killed process left in the folder of a finished run, unless somebody is working on it."""
        with contextlib.suppress(RunTakenError, OSError), self.open():
            pass

    def _sweep(self) -> None:
        for folder in (self.directory, self.directory / "arrays"):
            sweep(folder)
        for parts in (self.directory / "sharded").glob(".step-*"):
            shutil.rmtree(parts, ignore_errors=True)
        if self.done:
            _remove_unfinished(self.directory)


class RunWriter:
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
        if not self.rewind(0 if saved is None else saved["records"]):
            saved = None  # the records are the truth: without them the checkpoint cannot be trusted
        return None if saved is None else saved["state"]

    def rewind(self, count: int) -> bool:
        """Drop all records but the first so many; False, and all are dropped, if there are not so many to be read."""
        records = _readable_lines(self._lines)[:count]
        whole = len(records) == count
        records = records if whole else []
        self._count = len(records)
        write_atomically(self._lines, "".join(_line(record) for record in records))
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

    def forget(self) -> None:
        """Remove what the run would resume from: it starts again."""
        self._checkpoint.unlink(missing_ok=True)
        shutil.rmtree(self.run.directory / "sharded", ignore_errors=True)

    def checkpoint(self, state: Any) -> None:
        """Keep `state` (tensors, numbers, containers) as the place to resume from."""
        import torch

        from reweigh.bench.train.device import moved

        content = io.BytesIO()
        # In the processor's memory, so that any machine can resume.
        torch.save({"records": self._count, "state": moved(state, "cpu")}, content)
        content.write(hashlib.sha256(content.getbuffer()).digest())
        write_atomically(self._checkpoint, content.getbuffer())

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
        """Mark the run as done, once all of it is on the disk itself; its checkpoint is no longer needed."""
        directory = self.run.directory
        files = [path for path in _result_files(directory) if path.name not in ("done", "spec.json")]
        for path in (*files, directory / "arrays", directory):
            if path.exists():
                sync(path)
        hashes = {path.relative_to(directory).as_posix(): sha256_of(path) for path in files}
        complete = {"records": self._count, "sha256": hashes, **summary}
        complete[_OWN_HASH] = _hash_of_summary(complete)
        write_atomically(directory / "done", json.dumps(complete, indent=1))
        _remove_unfinished(directory)


def load_runs(root: Path) -> list[Run]:
    """Every run under a folder, finished or not, in a stable order, without those whose `spec.json` cannot be read."""
    runs: list[Run] = []
    for path in sorted(root.glob("*/*/spec.json")):
        spec = _read_spec(path)
        run = None if spec is None else Run(spec, root)
        if run is not None and run.directory == path.parent:  # a renamed or edited directory is not the run it says
            runs.append(run)
    return runs


def read_run(root: Path, recipe: str, identity: str) -> Run | None:
    """A run by its id, without a look at any other; None if its `spec.json` is not there or not what it was."""
    spec = _read_spec(root / recipe / identity / "spec.json")
    return Run(spec, root) if spec is not None and (spec.recipe, spec.id) == (recipe, identity) else None


#: What was found of the results of finished runs, and the state of the files it was found of.
_judged: dict[Path, tuple[tuple[Any, ...], str | None]] = {}
#: What only a run that is not done needs.
_OF_UNFINISHED = ("checkpoint.pt", "sharded", "error.txt")


def _remove_unfinished(directory: Path) -> None:
    for name in _OF_UNFINISHED:
        path = directory / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _result_files(directory: Path) -> list[Path]:
    """What a finished run consists of: `done`, what was asked, the records and the arrays."""
    files = [directory / name for name in ("done", "spec.json", "records.jsonl")]
    return [path for path in files if path.exists()] + sorted((directory / "arrays").glob("[!.]*.npy"))


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _judge(run: Run, files: Sequence[Path]) -> str | None:
    """What is wrong with the files of a finished run."""
    try:
        summary = run.summary()
        count, hashes = summary["records"], summary.get("sha256")
        if not _as_written(summary):
            return "its `done` is not what it was when the run finished"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its `done` cannot be read"
    stored = _read_spec(run.directory / "spec.json")
    if stored is None or stored.id != run.spec.id:
        return "its spec.json is not what was asked"
    if hashes is None:  # finished by a version that did not write them
        try:
            return None if len(run.records()) == count else f"it had {count} records, and has {len(run.records())}"
        except ValueError:
            return "its records.jsonl cannot be read"
    present = {path.relative_to(run.directory).as_posix(): path for path in files}
    for name, expected in hashes.items():
        if name not in present:
            return f"its {name} is missing"
        if sha256_of(present[name]) != expected:
            return f"its {name} is not what it was when the run finished"
    return None


def _as_written(summary: dict[str, Any]) -> bool:
    """Whether `done` holds what was written into it; raises if it does not even hold what a report needs.

    The first version wrote no hashes, the next one none of `done` itself.
    """
    for moment in ("seconds", "finished"):
        float(summary.get(moment, 0.0))
    environment = summary.get("environment")
    if environment is not None and not {"versions", "commit", "machine"} <= environment.keys():
        return False
    hashes = summary.get("sha256")
    if hashes is not None and summary["records"] and "records.jsonl" not in hashes.keys():  # noqa: SIM118 - may be a list
        return False
    own = summary.pop(_OWN_HASH, None)
    return own is None or own == _hash_of_summary(summary)


def _hash_of_summary(summary: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()


def _line(record: Record) -> str:
    return json.dumps(record, default=_plain, allow_nan=True) + "\n"


def _plain(value: Any) -> Any:
    """NumPy and torch numbers as plain ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a record holds numbers, strings and lists of them, got {type(value).__name__}")


def _read_spec(path: Path) -> Spec | None:
    """What a run is, or None if its file does not tell."""
    try:
        values: Any = json.loads(path.read_bytes())
        spec = Spec.from_dict(values)
        # Types are not checked when a spec is made; what cannot be written as one was none.
        return spec if isinstance(values["recipe"], str) and spec.text() else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _read_lines(path: Path) -> list[Record]:
    if not path.exists():
        return []
    records: list[Record] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    raise UserError(
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
        saved = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        return {"records": int(saved["records"]), "state": saved["state"]}
    except Exception:  # a foreign file, or that of another version: starting again is always right
        return None
