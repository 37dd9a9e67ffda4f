"""Who does the runs: processes on this machine, one thread each.

One thread a process keeps small models from waiting at barriers, and keeps numbers equal whatever else runs: a run
that is resumed with fewer companions still ends with the same bits.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reweigh.bench import recipes
from reweigh.bench.runs import Record, Run, RunTakenError, Spec, Writer
from reweigh.method import method

#: More members than this in one batched program gain nothing and cost memory.
_LARGEST_GROUP = 50


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that did not finish, and why."""

    spec: Spec
    reason: str


class Display(Protocol):
    """Where progress is shown."""

    def stage(self, title: str, groups: Sequence[Sequence[Spec]], finished: int) -> None:
        """A stage begins: these groups are to do, so many runs are done already."""

    def update(self, running: Sequence[tuple[Sequence[Spec], Record | None]], finished: int) -> None:
        """What is running now, with the newest record of each, and how many runs are done."""

    def failed(self, failure: Failure) -> None:
        """A run failed."""


def grouped(specs: Iterable[Spec], jobs: int) -> list[list[Spec]]:
    """Runs that can be trained as one program, together; all others on their own.

    The composition depends on the whole plan and never on what is finished, so that a resumed group is the group
    that was interrupted.
    """
    together: dict[str, list[Spec]] = {}
    groups: list[list[Spec]] = []
    for spec in specs:
        recipe: Any = recipes.load(spec.recipe)
        key = recipe.group(settings_of(recipe, spec), method(spec.method)) if hasattr(recipe, "group") else None
        if key is None:
            groups.append([spec])
        else:
            together.setdefault(key, []).append(spec)
    for members in together.values():
        parts = max(-(-len(members) // _LARGEST_GROUP), min(jobs, len(members) // 8), 1)
        size = -(-len(members) // parts)
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def settings_of(recipe: Any, spec: Spec) -> Any:
    """The recipe's settings as its own value; JSON has lists where they have tuples."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.settings.items()}
    return recipe.Settings(**values)


def execute(
    specs: Sequence[Spec], root: Path, *, jobs: int, display: Display, title: str, data_root: Path | None
) -> list[Failure]:
    """Do every run that is not done yet; returns those that failed."""
    groups = [g for g in grouped(specs, jobs) if not all(Run(s, root).done for s in g)]
    display.stage(title, groups, sum(Run(s, root).done for s in specs))
    failures: list[Failure] = []
    environment = {} if data_root is None else {"REWEIGH_DATA": str(data_root)}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=max(1, min(jobs, len(groups))), mp_context=context, initializer=_prepare, initargs=(environment,)
    ) as pool:
        waiting = {pool.submit(work, [s.as_dict() for s in g], str(root)): g for g in groups}
        try:
            while waiting:
                finished, _ = concurrent.futures.wait(waiting, timeout=0.5, return_when="FIRST_COMPLETED")
                for future in finished:
                    failures += _failures(future, waiting.pop(future), display)
                running = [g for future, g in waiting.items() if future.running()]
                display.update(
                    [(g, _newest(g[0], root)) for g in running[:jobs]], sum(Run(s, root).done for s in specs)
                )
        except KeyboardInterrupt:
            for process in list(pool._processes.values()):  # pyright: ignore[reportPrivateUsage]
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def work(specs: Sequence[dict[str, Any]], root: str) -> list[tuple[dict[str, Any], str]]:
    """Do one group of runs in this process; returns the failures as (spec, reason)."""
    runs = [Run(Spec.from_dict(s), Path(root)) for s in specs]
    try:
        if len(runs) == 1:
            _work_alone(runs[0])
        else:
            _work_together(runs)
    except RunTakenError:
        return []  # another process has it: it is being done
    except Exception:
        reason = traceback.format_exc(limit=8)
        return [(run.spec.as_dict(), reason) for run in runs if not run.done]
    return []


def _work_alone(run: Run) -> None:
    recipe: Any = recipes.load(run.spec.recipe)
    with run.open() as writer:
        if run.done:
            return
        started = time.time()
        for record in recipe.train(
            settings_of(recipe, run.spec), method(run.spec.method), run.spec.seed, writer, _scale(run)
        ):
            writer.record(record)
        writer.finish({"seconds": time.time() - started, "finished": time.time()})


def _work_together(runs: Sequence[Run]) -> None:
    """Train a whole group, and write the runs of it that are not done yet."""
    recipe: Any = recipes.load(runs[0].spec.recipe)
    unfinished = {i: run for i, run in enumerate(runs) if not run.done}
    with _all_open(list(unfinished.values())) as opened:
        writers = dict(zip(unfinished, opened, strict=True))
        for writer in opened:
            writer.resume()
        members = [(settings_of(recipe, run.spec), method(run.spec.method), run.spec.seed, _scale(run)) for run in runs]
        started = time.time()
        for records in recipe.train_group(members):
            for i, writer in writers.items():
                for name, values in records[i].pop("arrays", {}).items():
                    writer.array(name, values)
                writer.record(records[i], synced=False)
        seconds = (time.time() - started) / len(runs)
        for writer in opened:
            writer.finish({"seconds": seconds, "finished": time.time(), "together": len(runs)})


@contextlib.contextmanager
def _all_open(runs: Sequence[Run]) -> Generator[list[Writer]]:
    """Every run of a group taken, or none of them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(run.open()) for run in runs]


def _scale(run: Run) -> Any:
    """The recorded mean weights this run's loss is multiplied with, if it is a scale control."""
    if run.spec.scale_from is None:
        return None
    source = run.root / run.spec.recipe / run.spec.scale_from
    return np.load(source / "arrays" / "mean_weight.npy", allow_pickle=False)


def _prepare(environment: dict[str, str]) -> None:
    """Set a worker process up: one thread, and Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)


def _newest(spec: Spec, root: Path) -> Record | None:
    records = Run(spec, root).records()
    return records[-1] if records else None


def _failures(future: concurrent.futures.Future[Any], group: Sequence[Spec], display: Display) -> list[Failure]:
    error = future.exception()
    if error is not None:  # the process itself died
        found = [Failure(spec=spec, reason=repr(error)) for spec in group]
    else:
        found = [Failure(spec=Spec.from_dict(s), reason=reason) for s, reason in future.result()]
    for failure in found:
        display.failed(failure)
    return found
