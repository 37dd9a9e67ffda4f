"""Checkpoints that many processes write together and any number of processes reads.

```
sharded/step-00000200/
    .metadata, __0_0.distcp …   torch.distributed.checkpoint: each process writes its own share
    whole.pt                    what all processes hold alike
    progress.json               how many records there were, and the hash of every file
```

A checkpoint is written next to the others and renamed when all of it is there. The last two are kept: one whose files
are not what they were is skipped.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from reweigh.bench.files import sync, write_atomically
from reweigh.bench.train import device as devices
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.driver import Checkpoints, Driver
from reweigh.bench.train.records import UnusableCheckpointError, Writer

FOLDER = "sharded"
_KEPT = 2
#: The parts of a driver's state that may be spread over processes; the others are the same on all.
_SPREAD = ("program", "average")


class ShardedCheckpoints(Checkpoints):
    """Checkpoints at any step of a training on many processes, for any other number of them to resume.

    Parameters
    ----------
    writer
        The run's writer; only process 0 writes through it.
    every
        Steps between two checkpoints; one is also kept after each epoch.
    """

    def __init__(self, writer: Writer, every: int) -> None:
        self.writer, self.every = writer, every

    def save(self, driver: Driver) -> None:
        """Write a checkpoint, all processes together."""
        driver.tally.pool()
        spread, whole = _parted(driver.state())
        save(self.writer.directory, driver.step, spread, whole, records=driver.epoch)

    def load(self, driver: Driver) -> None:
        """Resume from the newest checkpoint, and note where this start began and on how many processes."""
        directory = self.writer.directory
        checkpoint = newest(directory)
        path, records = checkpoint or (None, 0)
        # The records are the truth: without them the checkpoint cannot be trusted.
        complete = processes.broadcast(self.writer.rewind(records) if processes.rank() == 0 else None)
        if path is not None and complete:
            fits = True
            try:
                spread, _ = _parted(driver.state())
                whole = load(path, spread)
                driver.load({**dict.fromkeys(_SPREAD), **whole, **spread})
            except Exception:
                fits = False
            if not all(processes.gathered(fits)):  # one process that starts again alone would wait for ever
                raise UnusableCheckpointError(f"{path.name} does not fit the training")
        if processes.rank() == 0:
            with (directory / "starts.jsonl").open("a") as starts:
                starts.write(json.dumps({"step": driver.step, "processes": processes.world()}) + "\n")


def _parted(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    spread = {name: state[name] for name in _SPREAD if state[name] is not None}
    return spread, {name: value for name, value in state.items() if name not in _SPREAD}


def save(run: Path, step: int, spread: dict[str, Any], whole: dict[str, Any], *, records: int) -> None:
    """Write a checkpoint; every process calls this, at the same step.

    Parameters
    ----------
    run
        The run's directory.
    step
        Optimiser steps taken.
    spread
        Tensors, sharded or not, in nested dictionaries.
    whole
        What all processes hold alike; that of process 0 is written.
    records
        Records that belong to it.
    """
    folder = run / FOLDER
    final, parts = folder / f"step-{step:08d}", folder / f".step-{step:08d}"
    if processes.rank() == 0:
        shutil.rmtree(parts, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)
        parts.mkdir(parents=True)
        torch.save(devices.moved(whole, "cpu"), parts / "whole.pt")
    processes.barrier()
    with _alone():
        state_dict_saver.save(spread, checkpoint_id=parts, no_dist=not processes.together())
    processes.barrier()
    hashes = _hashes(parts)
    if processes.rank() == 0:
        # Before the checkpoint has its name, and before an older one goes, all of it is on the disk itself.
        for name in hashes:
            sync(parts / name)
        write_atomically(parts / "progress.json", json.dumps({"records": records, "files": hashes}))
        parts.rename(final)
        for changed in (folder, run):
            sync(changed)
        for old in _steps(folder)[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    processes.barrier()


def newest(run: Path) -> tuple[Path, int] | None:
    """The newest checkpoint whose files are what they were, and its records; the same on every process."""
    for path in map(Path, processes.broadcast([str(path) for path in _steps(run / FOLDER)])):
        progress = processes.broadcast(_progress(path))
        if progress is not None and _hashes(path) == progress["files"]:
            return path, progress["records"]
    return None


def load(path: Path, spread: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint into the tensors of `spread`, which are changed in place; returns what was whole."""
    with _alone():
        state_dict_loader.load(spread, checkpoint_id=path, no_dist=not processes.together())
    return torch.load(path / "whole.pt", map_location="cpu", weights_only=True)


@contextmanager
def _alone() -> Generator[None]:
    """One process is meant to save and load alone where there is no other; torch warns each time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _steps(folder: Path) -> list[Path]:
    """Whole checkpoints, newest first."""
    return sorted(folder.glob("step-*"), reverse=True) if folder.exists() else []


def _progress(path: Path) -> dict[str, Any] | None:
    """What was written of a checkpoint, or None if it cannot be read: the checkpoint is then skipped."""
    try:
        progress = json.loads((path / "progress.json").read_bytes())
        return {"records": int(progress["records"]), "files": progress["files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _hashes(folder: Path) -> dict[str, str]:
    """The hash of every file, each process reading a part of them."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "progress.json")
    names = processes.broadcast(names)
    own: dict[str, str] = {}
    for name in names[processes.rank() :: processes.world()]:
        try:
            with (folder / name).open("rb") as file:
                own[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # unreadable: no hash, so it matches none
            own[name] = ""
    return {name: value for part in processes.gathered(own) for name, value in sorted(part.items())}
