"""A vision transformer of a few hundred numbers on handwritten digits: ten steps, with checkpoints on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.lab.runs import Run, RunWriter, Spec
from reweigh.bench.recipes import imagenet
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.driver import Driver
from reweigh.method import method

SETTINGS = imagenet.Settings(
    rows=400, test_rows=101, batch_size=64, epochs=2, save_every=2, augment="shift", mixup=0.2, lr=0.01
)
#: Everything that an average, a state, two passes or a normaliser over all processes could get wrong.
METHODS = ("mean", "rgd", "term:t=2", "absgd", "rgd+ema:decay=0.9", "rgd+sam", "rgd:normalize=mean")


class StoppedError(Exception):
    """The training was stopped on purpose."""


def stop_at(step: int) -> Any:
    """Make trainings of this process stop before this step; returns what undoes it."""
    original = Driver.take

    def take(self: Driver) -> None:
        if self.step == step:
            raise StoppedError
        original(self)

    Driver.take = take
    return lambda: setattr(Driver, "take", original)


def train(folder: Path, text: str, scale: Any = None, **changes: Any) -> list[dict[str, Any]]:
    """Train, or resume where the folder's run was stopped, on the processes there are; returns all records."""
    settings = dataclasses.replace(SETTINGS, **changes)
    kept = {**dataclasses.asdict(settings), "parallel": ""}  # one run, whichever way it is spread
    run = Run(Spec(recipe="imagenet", column="c", label=text, settings=kept, method=text, seed=0), folder)
    if processes.rank() == 0:
        with run.open() as writer:
            for record in imagenet.train(settings, method(text), 0, writer, scale):
                writer.record(record)
    else:
        for _ in imagenet.train(settings, method(text), 0, RunWriter(run), scale):
            pass
    processes.barrier()
    return run.records()


def starts(folder: Path) -> list[tuple[int, int]]:
    """Step and number of processes of each start of the folder's run."""
    import json

    (path,) = folder.glob("imagenet/*/starts.jsonl")
    return [(line["step"], line["processes"]) for line in map(json.loads, path.read_text().splitlines())]


def mean_weights(folder: Path) -> np.ndarray:
    (path,) = folder.glob("imagenet/*/arrays/mean_weight.npy")
    return np.load(path)
