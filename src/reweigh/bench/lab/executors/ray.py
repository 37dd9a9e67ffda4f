"""Runs on a Ray cluster: the same plan and the same run directories, on as many machines as there are.

Every machine must see the folder of runs and the data under the same paths (a shared file system). A group of runs is
one task on one processor and, where GPUs are requested, one GPU of the cluster. A task whose process or machine dies is
started again by Ray, and resumes from the run's checkpoint; a run that is finished is not done twice, because a task
looks for `done` once it holds the run's lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reweigh.bench.errors import MissingPackageError, UserError
from reweigh.bench.lab.executors.local import PendingRuns, prepare, work
from reweigh.bench.lab.runs import Spec

#: How often Ray starts a task again whose process died.
_RETRIES = 3
#: What a worker process must have in its environment before it imports a framework.
_PASSED_ON = ("ONEDNN_MAX_CPU_ISA", "REWEIGH_CACHE", "REWEIGH_DATA")

#: Tasks exchange a few lines of text, so a cluster of one's own needs no large store.
_SMALL = {"include_dashboard": False, "object_store_memory": 100_000_000}


class RayWorkers:
    """A Ray cluster that waits for runs to do.

    Parameters
    ----------
    jobs
        Processors of the cluster that is started here; that of an `address` has its own.
    data_root
        Folder of official data files, if one was given.
    address
        Of a running cluster, as `ray.init` takes it: `"auto"`, `"host:6379"`, `"ray://host:10001"`.
    device
        `"cpu"`; `"cuda"`, for which every task asks for one of the cluster's GPUs; or `"auto"`, which is `"cuda"` where
        the cluster has GPUs.
    """

    def __init__(
        self, jobs: int, data_root: Path | None = None, *, address: str | None = None, device: str = "cpu"
    ) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise UserError(f"Ray hands out GPUs itself: `--device` must be auto, cpu or cuda here, got {device!r}.")
        ray = _ray()
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if data_root is not None:
            passed["REWEIGH_DATA"] = str(data_root.resolve())
        sized = {} if address else {"num_cpus": max(1, jobs), **_SMALL}
        try:
            ray.init(
                address=address or "local",
                runtime_env={"env_vars": {**passed, "OMP_NUM_THREADS": "1"}},
                log_to_driver=False,
                **sized,
            )
        except ConnectionError as error:
            raise UserError(
                f"there is no Ray cluster at {address!r} that answers ({error}). Start one with `ray start --head`; if "
                "it asks for a token, give this command the same RAY_AUTH_MODE and token."
            ) from error
        resources = ray.cluster_resources()
        self.device, self.jobs, request = placement(device, int(resources.get("CPU", 1)), int(resources.get("GPU", 0)))
        self._task: Any = ray.remote(max_retries=_RETRIES, **request)(_work)
        self._refs: dict[PendingRuns, Any] = {}

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        ray = _ray()
        if kind is not None:  # interrupted: what was checkpointed stays, the rest is not waited for
            for ref in self._refs.values():
                ray.cancel(ref, force=True)
        ray.shutdown()

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Give a group of runs to the cluster."""
        ref = self._task.remote([spec.as_dict() for spec in group], str(root.resolve()), self.device)
        future: PendingRuns = ref.future()
        self._refs[future] = ref
        future.add_done_callback(lambda done: self._refs.pop(done, None))
        return future


def placement(device: str, processors: int, gpus: int) -> tuple[str, int, dict[str, int]]:
    """The device of every task, how many run at once, and what each asks a cluster of that size for."""
    if device == "cuda" and not gpus:
        raise UserError("the Ray cluster has no GPU, got `--device cuda`. Use auto or cpu, or add a machine with one.")
    if device == "cpu" or not gpus:
        return "cpu", max(1, processors), {"num_cpus": 1}
    return "cuda", min(max(1, processors), gpus), {"num_cpus": 1, "num_gpus": 1}


def _work(specs: Sequence[dict[str, Any]], root: str, device: str) -> list[tuple[dict[str, Any], str]] | None:
    prepare(device)  # of all GPUs Ray shows a task its own
    return work(specs, root)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError('`--executor ray` needs Ray. Install it with: pip install "reweigh[ray]"') from error
    return ray
