"""What does the runs: processes on this machine, one thread each.

One thread a process keeps small models from waiting at barriers, and keeps numbers equal whatever else runs: a run
that is resumed with fewer companions still ends with the same bits.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from reweigh.bench.files import write_atomically
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.environment import environment
from reweigh.bench.lab.runs import Record, Run, RunTakenError, RunWriter, Spec
from reweigh.bench.lab.tuning import optuna as tuning_optuna
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.records import UnusableCheckpointError
from reweigh.method import method

#: More members than this in one batched program gain nothing and cost memory.
_LARGEST_GROUP = 50
#: Seconds between two looks at runs that another command is working on.
_PATIENCE = 1.0
#: How often a group is tried whose process is killed from outside; the last time alone.
_ATTEMPTS = 3

#: How a series of runs ended: all done, decided early, out of time, or stopped by the user.
Ended = Literal["finished", "decided", "time", "interrupted"]
#: What a process answers: its failures as (spec, reason), or None where another process has the runs.
PendingRuns = concurrent.futures.Future[list[tuple[dict[str, Any], str]] | None]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that did not finish, and why."""

    spec: Spec
    reason: str
    #: Whether its process was killed from outside, which says nothing about the run.
    killed: bool = False


class Display(Protocol):
    """Where progress is shown."""

    def stage(self, title: str, groups: Sequence[Sequence[Spec]], finished: int) -> None:
        """A stage begins: these groups are to do, so many runs are done already."""

    def update(self, running: Sequence[tuple[Sequence[Spec], Record | None]], finished: int) -> None:
        """What is running now, with the newest record of each, and how many runs are done."""

    def failed(self, failure: Failure) -> None:
        """A run failed."""

    def damaged(self, run: Run, reason: str) -> None:
        """The results of a finished run were changed since; it is done again."""


def grouped(specs: Iterable[Spec], jobs: int) -> list[list[Spec]]:
    """Runs that can be trained as one program, together; all others on their own.

    The composition depends on the whole plan and never on what is finished, so that a resumed group is the group
    that was interrupted.
    """
    together: dict[str, list[Spec]] = {}
    groups: list[list[Spec]] = []
    for spec in specs:
        recipe = recipes.trainable(spec.recipe)
        key = recipe.group(settings_of(recipe.Settings, spec), method(spec.method))
        if key is None:
            groups.append([spec])
        else:
            together.setdefault(key, []).append(spec)
    for members in together.values():
        parts = max(-(-len(members) // _LARGEST_GROUP), min(jobs, len(members) // 8), 1)
        size = -(-len(members) // parts)
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def settings_of(kind: Callable[..., Any], spec: Spec) -> Any:
    """A run's settings as a value of the recipe's `Settings`; JSON has lists where they have tuples."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.settings.items()}
    return kind(**values)


class Workers:
    """Processes that wait for runs to do: started when first needed, ended when the block is left.

    Parameters
    ----------
    jobs
        Processes at once.
    data_root
        Folder of official data files, if one was given.
    device
        Where they train, by name. Where it names a kind of accelerator, processes take turns with those there are.
    environment
        Variables that the processes see.
    """

    def __init__(
        self,
        jobs: int,
        data_root: Path | None = None,
        *,
        device: str = "cpu",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.jobs, self.device = max(1, jobs), device
        self._environment = {**(environment or {}), **({} if data_root is None else {"REWEIGH_DATA": str(data_root)})}
        self._pool = self._start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:  # interrupted: what was checkpointed stays, the rest is not waited for
            for process in list(self._pool._processes.values()):  # pyright: ignore[reportPrivateUsage]
                process.terminate()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Give a group of runs to the next free process."""
        arguments = ([spec.as_dict() for spec in group], str(root))
        try:
            return self._pool.submit(work, *arguments)
        except BrokenProcessPool:  # a process was killed from outside, and took all others with it
            self._pool = self._start()
            return self._pool.submit(work, *arguments)

    def _start(self) -> concurrent.futures.ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return concurrent.futures.ProcessPoolExecutor(
            max_workers=self.jobs,
            mp_context=spawn,
            initializer=_prepare,
            initargs=(self._environment, self.device, _accelerators(self.device), spawn.Value("i", 0)),
        )


class Executor(Protocol):
    """What does runs: `Workers`, or a cluster."""

    @property
    def jobs(self) -> int:
        """How many groups are worked on at once."""
        ...

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Give a group of runs to the next free worker."""
        ...


class OutOfTimeError(RuntimeError):
    """The budget has run out; what had finished is on disk."""


def execute(
    specs: Sequence[Spec],
    root: Path,
    *,
    workers: Executor,
    display: Display,
    title: str,
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Failure]:
    """Do every run that is not done yet; returns those that failed.

    Runs that another command is working on are waited for, and taken over if it dies: what follows may depend on them.
    At the `deadline`, a moment of the `clock`, an `OutOfTimeError` leaves the rest undone.
    """
    runs = {s.id: Run(s, root) for s in specs}
    over = {name for name, run in runs.items() if run.over}
    for run in runs.values():
        if (reason := run.damage()) is not None:
            display.damaged(run, reason)
        elif run.littered:
            run.tidy()

    def to_do(group: list[Spec]) -> list[Spec]:
        return [s for s in group if s.id not in over]

    groups = [g for g in grouped(specs, workers.jobs) if to_do(g)]
    # A group is done as a whole, although some of it may be over; those runs are not shown as still to do.
    display.stage(title, [to_do(g) for g in groups], len(over))
    failures: list[Failure] = []
    waiting = {workers.submit(g, root): g for g in groups}
    held_elsewhere: list[list[Spec]] = []
    deaths = _Deaths()
    ended = set(over)  # to count what is over, without a look at thousands of runs that have not begun
    while waiting or held_elsewhere or deaths.alone:
        if deadline is not None and clock() > deadline:
            raise OutOfTimeError(f"time ran out during: {title}")
        if not waiting and deaths.alone:
            group = deaths.alone.pop()
            waiting = {workers.submit(group, root): group}
        elif not waiting:
            time.sleep(_PATIENCE)
            waiting = {workers.submit(g, root): g for g in held_elsewhere if not _done(g, root)}
            held_elsewhere = []
        finished, _ = concurrent.futures.wait(waiting, timeout=0.5, return_when="FIRST_COMPLETED")
        for group in deaths.sort(waiting, finished, workers.jobs):
            waiting[workers.submit(group, root)] = group
        for future in finished & waiting.keys():
            group = waiting.pop(future)
            ended.update(s.id for s in group if runs[s.id].over)
            if future.exception() is None and future.result() is None:
                held_elsewhere.append(group)
            else:
                failures += _failures(future, group, display)
        # A cluster does not say which of the futures it has begun with; it begins with the first.
        running = [g for future, g in waiting.items() if future.running()] or list(waiting.values())
        running += held_elsewhere
        running = running[: workers.jobs]
        ended.update(s.id for g in running for s in g if s.id not in ended and runs[s.id].over)
        display.update([(to_do(g), _newest(g[0], root)) for g in running], len(ended))
    return failures


class _Deaths:
    """Groups whose process was killed, by the system when memory ran out or by a user, and how often each was.

    One death ends the whole pool. Groups that were still in the queue go back into it; those that may have been at
    work are tried again, the last time on their own, so that one that is deadly does not take its neighbours along.
    """

    def __init__(self) -> None:
        self.alone: list[list[Spec]] = []
        self._counts: dict[str, int] = {}

    def sort(self, waiting: dict[PendingRuns, list[Spec]], finished: set[PendingRuns], jobs: int) -> list[list[Spec]]:
        """Take groups out of `waiting` whose process died and that have attempts left; returns those to submit."""
        if not any(_killed(future) for future in finished):
            return []
        concurrent.futures.wait(waiting, timeout=_PATIENCE)  # the pool is gone, and tells each of them in a moment
        broken = [future for future in waiting if future.done() and _killed(future)]
        at_work = set(broken[:jobs])  # processes take groups in the order in which they were handed in
        again: list[list[Spec]] = []
        for future in broken:
            first = waiting[future][0].id
            count = self._counts[first] = self._counts.get(first, 0) + (future in at_work)
            if count < _ATTEMPTS - 1:
                again.append(waiting.pop(future))
            elif count < _ATTEMPTS:
                self.alone.append(waiting.pop(future))
        return again


def _killed(future: PendingRuns) -> bool:
    return isinstance(future.exception(), BrokenProcessPool)


def work(specs: Sequence[dict[str, Any]], root: str) -> list[tuple[dict[str, Any], str]] | None:
    """Do one group of runs in this process; returns the failures as (spec, reason), or None if another one has it."""
    runs = [Run(Spec.from_dict(s), Path(root)) for s in specs]
    try:
        if len(runs) == 1:
            _work_alone(runs[0])
        else:
            _work_together(runs)
    except RunTakenError:
        return None
    except Exception:
        reason = traceback.format_exc(limit=8)
        failed = [run for run in runs if not run.done]
        for run in failed:
            with contextlib.suppress(OSError):  # the disk may be full, which must not hide the reason
                write_atomically(run.directory / "error.txt", reason)
        return [(run.spec.as_dict(), reason) for run in failed]
    return []


def _work_alone(run: Run) -> None:
    with run.open() as writer:
        if run.over:
            return
        hopeless = tuning_optuna.watch(run)
        started = time.monotonic()
        for record in records_of(run, writer):
            writer.record(record)
            if hopeless is not None and hopeless(writer.count, record):
                writer.prune()
                return
        writer.finish(summary(time.monotonic() - started))


def records_of(run: Run, writer: RunWriter) -> Iterator[Record]:
    """What the recipe yields for a run; from the start if its checkpoint is another version's."""
    recipe = recipes.trainable(run.spec.recipe)
    arguments = settings_of(recipe.Settings, run.spec), method(run.spec.method), run.spec.seed, writer, scale_of(run)
    try:
        yield from recipe.train(*arguments)
    except UnusableCheckpointError:
        if processes.rank() == 0:
            writer.forget()
        yield from recipe.train(*arguments)


def _work_together(runs: Sequence[Run]) -> None:
    """Train a whole group, and write the runs of it that are not done yet."""
    recipe = recipes.trainable(runs[0].spec.recipe)
    with _all_open([run for run in runs if not run.done]) as opened:
        # Looked at again now that nobody else can finish them.
        writers = {runs.index(writer.run): writer for writer in opened if not writer.run.done}
        if not writers:
            return
        for writer in writers.values():
            writer.resume()
        members = [
            (settings_of(recipe.Settings, run.spec), method(run.spec.method), run.spec.seed, scale_of(run))
            for run in runs
        ]
        started = time.monotonic()
        for records in recipe.train_group(members):
            for i, writer in writers.items():
                for name, values in records[i].pop("arrays", {}).items():
                    writer.array(name, values)
                writer.record(records[i], synced=False)
        seconds = (time.monotonic() - started) / len(runs)
        for writer in writers.values():
            writer.finish(summary(seconds, together=len(runs)))


def summary(seconds: float, **more: Any) -> dict[str, Any]:
    """What `done` records of a run that took this long."""
    from reweigh.bench.train.device import current, described

    return {
        "seconds": seconds,
        "finished": time.time(),
        "environment": environment(),
        "device": described(current()),
        **more,
    }


@contextlib.contextmanager
def _all_open(runs: Sequence[Run]) -> Generator[list[RunWriter]]:
    """Every run of a group taken, or none of them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(run.open()) for run in runs]


def scale_of(run: Run) -> Any:
    """The recorded mean weights this run's loss is multiplied with, if it is a scale control."""
    if run.spec.scale_from is None:
        return None
    source = run.root / run.spec.recipe / run.spec.scale_from
    return np.load(source / "arrays" / "mean_weight.npy", allow_pickle=False)


def _accelerators(device: str) -> int:
    """How many accelerators processes may share; not asked where they need none, since it imports torch."""
    if device == "cpu":
        return 0
    from reweigh.torch import devices

    return devices.count()


def _prepare(environment: dict[str, str], device: str, accelerators: int, started: Any) -> None:
    """Set a worker process up: signals of the terminal are for the parent, and it does not outlive the parent.

    `started` counts the processes of the pool.
    """
    for stop in (signal.SIGINT, signal.SIGHUP):
        signal.signal(stop, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    with started.get_lock():
        number = started.value
        started.value += 1
    prepare(device, accelerators, number)


def prepare(device: str = "cpu", accelerators: int = 0, number: int = 0) -> None:
    """Set a process up for runs: one thread, the same bits every time, and the device of the process of that number."""
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    import torch

    torch.set_num_threads(1)
    # With the variable above, what `use_deterministic_algorithms` does, without loading a compiler few runs need.
    torch.set_deterministic_debug_mode("warn")
    if device != "cpu":
        from reweigh.bench.train.device import use_one_of

        use_one_of(device, accelerators, number)


def _end_with_parent() -> None:
    """A killed command must not leave processes behind that hold its runs; what they had checkpointed stays."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _done(group: Sequence[Spec], root: Path) -> bool:
    return all(Run(spec, root).over for spec in group)


def _newest(spec: Spec, root: Path) -> Record | None:
    try:
        records = Run(spec, root).records()
    except ValueError:  # damaged, and not yet started again
        return None
    return records[-1] if records else None


def _failures(future: concurrent.futures.Future[Any], group: Sequence[Spec], display: Display) -> list[Failure]:
    error = future.exception()
    if error is not None:  # the process itself died
        failures = [Failure(spec=spec, reason=repr(error), killed=True) for spec in group]
    else:
        failures = [Failure(spec=Spec.from_dict(s), reason=reason) for s, reason in future.result()]
    for failure in failures:
        display.failed(failure)
    return failures
