"""Runs on a Ray cluster: the same plan and the same run directories, on as many machines as there are.

Every machine must see the folder of runs and the data under the same paths (a shared file system). A group of runs is
one task on one processor. A task whose process or machine dies is started again by Ray, and goes on from the run's
checkpoint; a run that is finished is not done twice, because a task looks for `done` once it holds the run's lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reweigh.bench.lab.executors.local import Answer, prepare, work
from reweigh.bench.lab.runs import Spec

#: How often Ray starts a task again whose process died.
_RETRIES = 3
#: What a process at work must have in its environment before it imports a framework.
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
    """

    def __init__(self, jobs: int, data_root: Path | None = None, *, address: str | None = None) -> None:
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
            raise ValueError(
                f"there is no Ray cluster at {address!r} that answers ({error}). Start one with `ray start --head`; if "
                "it asks for a token, give this command the same RAY_AUTH_MODE and token."
            ) from error
        self.jobs = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
        self._refs: dict[Answer, Any] = {}

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        ray = _ray()
        if kind is not None:  # interrupted: what was checkpointed stays, the rest is not waited for
            for ref in self._refs.values():
                ray.cancel(ref, force=True)
        ray.shutdown()

    def submit(self, group: Sequence[Spec], root: Path) -> Answer:
        """Give a group of runs to the cluster."""
        ref = self._task.remote([spec.as_dict() for spec in group], str(root.resolve()))
        future: Answer = ref.future()
        self._refs[future] = ref
        future.add_done_callback(lambda done: self._refs.pop(done, None))
        return future


def _work(specs: Sequence[dict[str, Any]], root: str) -> list[tuple[dict[str, Any], str]] | None:
    prepare()
    return work(specs, root)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError('`--executor ray` needs Ray. Install it with: pip install "reweigh[ray]"') from error
    return ray
