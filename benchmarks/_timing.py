"""Timing in turns, and what every benchmark does with its numbers: a table, and a file with versions."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

Call = Callable[[], object]


def _keep_memory() -> None:
    """Let glibc keep what is freed.

    Otherwise the form whose last matrix happens to end the heap gives it back at each call, and pays a page fault for
    every 4 kB of the next one; in a training program, other tensors lie above it.
    """
    if platform.system() == "Linux":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD of malloc.h
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


_keep_memory()

#: Turns shorter than what a scheduler gives another process.
TURN_SECONDS = 0.002


def in_turns(
    calls: Mapping[str, Call], seconds: float, *, turns: tuple[int, int] = (7, 300), turn_seconds: float = TURN_SECONDS
) -> dict[str, float]:
    """The lower quartile of each call's processor time in microseconds, all calls taking turns.

    A busy machine slows all of them alike, so that ratios hold where microseconds do not. `seconds` is spent in all,
    within the least and the most number of `turns`.
    """
    once = {name: _warm(call) for name, call in calls.items()}
    repeats = {name: max(1, int(turn_seconds / t)) for name, t in once.items()}
    whole = sum(once[name] * repeats[name] for name in calls)
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    gc.collect()
    gc.disable()  # a collection in one call's turn would be charged to it
    try:
        for turn in range(int(np.clip(seconds / whole, *turns))):
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                call = calls[name]
                start = time.process_time()
                for _ in range(repeats[name]):
                    call()
                times[name].append((time.process_time() - start) / repeats[name] * 1e6)
    finally:
        gc.enable()
    return {name: float(np.quantile(values, 0.25)) for name, values in times.items()}


def _warm(call: Call) -> float:
    """Seconds of a call once what it needs the first time is there."""
    call()
    call()
    start = time.process_time()
    call()
    return max(time.process_time() - start, 1e-7)


def console() -> Console:
    """A console wide enough for a table that is not written to a terminal."""
    return Console(width=max(110, Console().width))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Rows of text; the first column names the row."""
    found = Table(title=title)
    for i, name in enumerate(columns):
        found.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        found.add_row(*row)
    return found


def write(out: Path, packages: Sequence[str], content: Mapping[str, Any]) -> None:
    """The numbers as JSON, with when, where and with which versions they were measured."""
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("reweigh", *packages)},
        },
        **content,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
