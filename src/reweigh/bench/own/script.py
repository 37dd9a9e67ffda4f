"""A user's program as a training: how it learns its method, and how its scores are read.

`REWEIGH_METHOD`, `REWEIGH_SEED`, `REWEIGH_LR_FACTOR` and `REWEIGH_DIRECTORY` are in its environment, where
`reweigh.from_environment()` reads them, and words in braces in its command are filled in. It prints its scores, or
writes them to `scores.jsonl` in that directory: one JSON object per line.
"""

from __future__ import annotations

import collections
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from reweigh.bench.train.records import Writer
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.own.recipe import Settings

METHOD, SEED, LR_FACTOR = "REWEIGH_METHOD", "REWEIGH_SEED", "REWEIGH_LR_FACTOR"
DIRECTORY, SCALE, DEVICE = "REWEIGH_DIRECTORY", "REWEIGH_SCALE", "REWEIGH_DEVICE"
#: Files in the directory: scores that are not printed, the mean weights, and the factors of a scale control.
SCORES, MEAN_WEIGHTS, FACTORS = "scores.jsonl", "mean_weight.npy", "scale.npy"
#: Lines of a failed program's output that its error shows.
_TAIL = 20

Floats = np.ndarray[Any, np.dtype[np.float64]]


def run(
    settings: Settings, template: str, method: Method, seed: int, writer: Writer, scale: Any
) -> Generator[Mapping[str, Any], None, Floats | None]:
    """Start the program and yield every set of scores it reports; returns the mean weights that it recorded."""
    directory = writer.directory / "own"
    directory.mkdir(exist_ok=True)
    for stale in (SCORES, MEAN_WEIGHTS, FACTORS):  # of an attempt that was killed
        (directory / stale).unlink(missing_ok=True)
    values = {
        "seed": seed,
        "method": str(method),
        "lr": f"{settings.base_lr * settings.lr:.6g}",
        "lr_factor": f"{settings.lr:.6g}",
        "directory": directory,
    }
    environment = {METHOD: str(method), SEED: str(seed), DIRECTORY: str(directory)}
    environment[LR_FACTOR] = str(values["lr_factor"])
    if settings.device is not None:
        environment[DEVICE] = settings.device
    if scale is not None:
        np.save(directory / FACTORS, np.asarray(scale), allow_pickle=False)
        environment[SCALE] = str(directory / FACTORS)
    words = filled(template, values)
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield from _printed(process.stdout, tail)
        code = process.wait()
    finally:
        _end(process)
    if code:
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise RuntimeError(f"{shlex.join(words)} ended with {reason}. Its last lines:\n" + "".join(tail))
    if (directory / SCORES).exists():
        with (directory / SCORES).open(encoding="utf-8") as lines:
            yield from _printed(lines, tail)
    recorded = directory / MEAN_WEIGHTS
    return np.load(recorded, allow_pickle=False) if recorded.exists() else None


def filled(template: str, values: Mapping[str, Any]) -> list[str]:
    """The words of a command, with the words in braces replaced; `python` is this interpreter.

    Examples
    --------
    >>> filled("train --seed {seed} --out '{directory}'", {"seed": 3, "directory": "my runs"})
    ['train', '--seed', '3', '--out', 'my runs']
    """
    words = shlex.split(template)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return [sys.executable if words[0] in ("python", "python3") else words[0], *words[1:]]


def _printed(lines: IO[str], tail: collections.deque[str]) -> Generator[Mapping[str, Any]]:
    """Every line that is a JSON object; the other lines are the program's own words."""
    for line in lines:
        tail.append(line[:2000])
        text = line.strip()
        if not (text.startswith("{") and text.endswith("}")):
            continue
        try:
            scores = json.loads(text)
        except ValueError:
            continue
        if isinstance(scores, dict):
            yield scores  # pyright: ignore[reportUnknownVariableType]


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing that the program started outlives it."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def scores_directory() -> Path | None:
    """The directory that the environment names, if this process is a training of a comparison."""
    return Path(os.environ[DIRECTORY]) if DIRECTORY in os.environ else None
