"""`torchrun` and the command: process 0 is the command, and all others join the runs it starts.

Process 0 makes the plan, takes runs and writes records. Before each run it sends the others its name, and after each
record whether to continue. A process that dies takes the others with it: `torchrun` ends and restarts them all, and the
run resumes from its last checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reweigh.bench.errors import UserError
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import PendingRuns, prepare, records_of, summary
from reweigh.bench.lab.runs import Run, RunTakenError, RunWriter, Spec
from reweigh.bench.lab.tuning import optuna as tuning_optuna
from reweigh.bench.train import device as devices
from reweigh.bench.train import distributed as processes

#: How often `torchrun` restarts all processes after one has died.
_RESTARTS = 10


def launch(arguments: Sequence[str], nproc: int) -> int:
    """Run the command on `nproc` processes of this machine; returns its exit code."""
    if nproc < 1:
        raise UserError(f"`--nproc` must be a positive number, got {nproc}.")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    command = [*torchrun, f"--max-restarts={_RESTARTS}", "-m", "reweigh", *without_launcher(arguments)]
    with subprocess.Popen(command, env={"OMP_NUM_THREADS": "1", **os.environ}) as process:
        try:
            return process.wait()
        except BaseException:  # whatever ends this command ends all of them, and `torchrun` ends those it started
            process.terminate()
            raise


def without_launcher(arguments: Sequence[str]) -> list[str]:
    """The arguments of each process: those of the command, less the options that say how to start it."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name in ("--launcher", "--nproc"):
            if not equals:
                next(rest, None)
            continue
        kept.append(argument)
    return kept


class Launched:
    """The processes that `torchrun` started, as an executor: one run at a time, on all of them."""

    jobs = 1

    def __init__(self, data_root: Path | None = None, *, device: str = "auto") -> None:
        if data_root is not None:
            os.environ["REWEIGH_DATA"] = str(data_root)
        _set_up(device)
        # A thread of its own, so that progress is shown meanwhile.
        self._pool = concurrent.futures.ThreadPoolExecutor(1)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:  # others wait for us in the middle of a step: only an end of all is an end
            os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)
        self._pool.submit(processes.broadcast, None).result()
        self._pool.shutdown()

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Do a group of runs, one after the other."""
        return self._pool.submit(_lead_all, list(group), root)


def follow(data_root: Path | None = None, *, device: str = "auto") -> int:
    """What every process but the first does: join the runs that the first one starts, until none is left."""
    if data_root is not None:
        os.environ["REWEIGH_DATA"] = str(data_root)
    _set_up(device)
    while (begun := processes.broadcast(None)) is not None:
        run = Run(Spec.from_dict(begun["spec"]), Path(begun["root"]))
        for _ in _records(run, RunWriter(run)):
            if processes.broadcast(None):
                break
        processes.barrier()
    return 0


def _lead_all(group: Sequence[Spec], root: Path) -> list[tuple[dict[str, Any], str]] | None:
    try:
        for spec in group:
            _lead(Run(spec, root))
    except RunTakenError:
        return None
    except Exception:
        reason = traceback.format_exc(limit=8)
        for spec in group:
            if not Run(spec, root).over:
                write_atomically(Run(spec, root).directory / "error.txt", reason)
        print(reason, file=sys.stderr, flush=True)
        os._exit(1)  # the others wait for us: `torchrun` ends and restarts them all
    return []


def _lead(run: Run) -> None:
    """Do one run together with the others."""
    with run.open() as writer:
        if run.over:
            return
        processes.broadcast({"spec": run.spec.as_dict(), "root": str(run.root.resolve())})
        hopeless, stopped, started = tuning_optuna.watch(run), False, time.monotonic()
        for record in _records(run, writer):
            writer.record(record)
            stopped = hopeless is not None and hopeless(writer.count, record)
            if processes.broadcast(stopped):
                break
        processes.barrier()
        if stopped:
            writer.prune()
        else:
            writer.finish(summary(time.monotonic() - started, processes=processes.world()))


def _records(run: Run, writer: RunWriter) -> Any:
    recipe = recipes.trainable(run.spec.recipe)
    if not recipe.DISTRIBUTED:
        raise UserError(
            f"recipe {run.spec.recipe!r} trains in one process. Leave torchrun out: `reweigh run` uses all processors "
            "by doing several runs at once."
        )
    return records_of(run, writer)


def _set_up(device: str) -> None:
    prepare()
    devices.use(device)
    processes.join()
