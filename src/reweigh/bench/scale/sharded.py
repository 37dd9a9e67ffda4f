"""Checkpoints that many processes write together and any number of processes reads.

```
sharded/step-00000200/
    .metadata, __0_0.distcp …   torch.distributed.checkpoint: each process writes its own share
    progress.json               where the training was, and the hash of every file
```

A checkpoint is written beside the others and renamed when all of it is there. The last two are kept: one whose files
are not what they were is passed over.
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

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from reweigh.bench.runs import write_atomically
from reweigh.bench.scale import processes

FOLDER = "sharded"
_KEPT = 2


def save(run: Path, step: int, state: dict[str, Any], progress: dict[str, Any]) -> None:
    """Write a checkpoint; every process calls this, at the same step.

    Parameters
    ----------
    run
        The run's directory.
    step
        Optimiser steps taken.
    state
        Tensors, sharded or whole, in nested dictionaries.
    progress
        Plain values, of which those of process 0 count.
    """
    folder = run / FOLDER
    whole, parts = folder / f"step-{step:08d}", folder / f".step-{step:08d}"
    if processes.rank() == 0:
        shutil.rmtree(parts, ignore_errors=True)
        shutil.rmtree(whole, ignore_errors=True)
        parts.mkdir(parents=True)
    processes.barrier()
    with _alone():
        state_dict_saver.save(state, checkpoint_id=parts, no_dist=not processes.together())
    processes.barrier()
    hashes = _hashes(parts)
    if processes.rank() == 0:
        write_atomically(parts / "progress.json", json.dumps({**progress, "files": hashes}))
        parts.rename(whole)
        for old in _steps(folder)[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
    processes.barrier()


def newest(run: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint whose files are what they were, and its progress; the same on every process."""
    found = processes.broadcast([str(path) for path in _steps(run / FOLDER)])
    for path in map(Path, found):
        progress = processes.broadcast(_progress(path))
        if progress is not None and _hashes(path) == progress["files"]:
            return path, progress
    return None


def load(path: Path, state: dict[str, Any]) -> None:
    """Read a checkpoint into the tensors of `state`, which are changed in place."""
    with _alone():
        state_dict_loader.load(state, checkpoint_id=path, no_dist=not processes.together())


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
    try:
        return json.loads((path / "progress.json").read_bytes())
    except (OSError, ValueError):
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
