"""Runs on a Slurm cluster, by submitit: one job per group of runs, in an array as wide as it is allowed to be.

Every node must see the folder of runs and the data under the same paths (a shared file system). A job that is preempted
or runs into its time limit is put into the queue again and resumes from the run's checkpoint. A finished run is not
done twice, because a job looks for `done` once it holds the run's lock.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from reweigh.bench.errors import MissingPackageError, UserError
from reweigh.bench.lab.executors.local import PendingRuns, prepare, work
from reweigh.bench.lab.runs import Spec

#: Seconds between two looks at the queue.
_PATIENCE = 1.0


class SlurmWorkers:
    """A Slurm cluster that waits for runs to do.

    Parameters
    ----------
    jobs
        Jobs of the array at once.
    root
        The folder of runs; submitit's own files go below it.
    data_root
        Folder of official data files, if one was given.
    options
        What submitit's `update_parameters` takes, such as `partition=gpu,timeout_min=240,gpus_per_node=1`.
    device
        The device of a run.
    cluster
        `"slurm"`, or `"local"` for processes of this machine, which is how the tests run it.
    """

    def __init__(
        self,
        jobs: int,
        root: Path,
        data_root: Path | None = None,
        *,
        options: str = "",
        device: str = "cpu",
        cluster: str = "slurm",
    ) -> None:
        submitit = _submitit()
        self.jobs = max(1, jobs)
        self._root = root.resolve()
        self._data_root = None if data_root is None else str(data_root.resolve())
        self._device = device
        try:
            self._executor: Any = submitit.AutoExecutor(folder=self._root / "slurm", cluster=cluster)
        except RuntimeError as error:
            raise UserError(f"`--executor slurm` needs a machine from which jobs can be submitted: {error}.") from None
        parameters = {"timeout_min": 24 * 60, "name": "reweigh", **_options(options)}
        if cluster == "slurm":
            parameters["slurm_array_parallelism"] = self.jobs
        self._executor.update_parameters(**parameters)
        self._pending: list[tuple[PendingRuns, tuple[Any, ...]]] = []
        self._waiting: dict[PendingRuns, Any] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> SlurmWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._closed.set()
        if kind is not None:  # interrupted: what was checkpointed stays, the rest is not waited for
            with self._lock:
                for job in self._waiting.values():
                    job.cancel()

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Put a group of runs into the queue, in one array with those that are submitted at the same moment."""
        arguments = ([spec.as_dict() for spec in group], str(root.resolve()), self._data_root, self._device)
        future: PendingRuns = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._pending.append((future, arguments))
        return future

    def _watch(self) -> None:
        """Submit what waits, and hand on what jobs return, as they end."""
        while not self._closed.wait(_PATIENCE):
            with self._lock:
                self._submit_pending()
                ended = {future: job for future, job in self._waiting.items() if job.done()}
                for future in ended:
                    del self._waiting[future]
            for future, job in ended.items():
                error = job.exception()
                if error is None:
                    future.set_result(job.result())
                else:  # `work` reports what a run raises: here the job itself was ended from outside
                    future.set_exception(BrokenProcessPool(str(error)))

    def _submit_pending(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(_ArrayTask(), *arguments) for _, arguments in pending]
        except Exception as error:  # the cluster refused: those who wait for these runs must know
            for future, _ in pending:
                future.set_exception(error)
            return
        self._waiting |= dict(zip((future for future, _ in pending), jobs, strict=True))


class _ArrayTask:
    """One job: a group of runs. When Slurm ends it early, the same job is queued again."""

    def __call__(
        self, specs: Sequence[dict[str, Any]], root: str, data_root: str | None, device: str
    ) -> list[tuple[dict[str, Any], str]] | None:
        if data_root is not None:
            os.environ["REWEIGH_DATA"] = data_root
        prepare(device)
        answer = work(specs, root)
        while answer is None:  # another job has the runs: its end is this one's too
            time.sleep(_PATIENCE)
            answer = work(specs, root)
        return answer

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit queues again: runs resume from their own checkpoints."""
        return _submitit().helpers.DelayedSubmission(self, *arguments)


def _options(text: str) -> dict[str, Any]:
    """What follows `--slurm`: `key=value`, joined by commas; numbers are numbers."""
    options: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals):
            raise UserError(f"`--slurm` takes key=value joined by commas, got {item!r}.")
        plain = key in ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "name")
        options[key if plain or key.startswith("slurm_") else f"slurm_{key}"] = int(value) if value.isdigit() else value
    return options


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise MissingPackageError(
            '`--executor slurm` needs submitit. Install it with: pip install "reweigh[slurm]"'
        ) from error
    return submitit
