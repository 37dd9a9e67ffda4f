"""Runs as jobs of submitit, on its local cluster: the bits of ordinary processes, and options as Slurm knows them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from reweigh.bench.errors import UserError
from reweigh.bench.lab.executors.local import Workers, execute
from reweigh.bench.lab.executors.slurm import SlurmWorkers, _options
from reweigh.bench.lab.runs import Run, Spec

pytest.importorskip("submitit")


class Silent:
    def stage(self, title, groups, finished): ...

    def update(self, running, finished): ...

    def failed(self, failure): ...


def specs():
    settings = {"steps": 20}
    return [
        Spec(recipe="toy", column="c", label=text, settings=settings, method=text, seed=seed)
        for text in ("mean", "rgd")
        for seed in (0, 1)
    ]


def results(root: Path):
    return {run.spec.id: run.records() for run in (Run(spec, root) for spec in specs())}


@pytest.mark.processes
def test_jobs_give_the_bits_of_processes(tmp_path):
    failures = []
    for name, workers in (("here", Workers(1)), ("there", SlurmWorkers(2, tmp_path / "there", cluster="local"))):
        with contextlib.ExitStack() as stack:
            executor = stack.enter_context(workers)
            failures += execute(specs(), tmp_path / name, workers=executor, display=Silent(), title="")
    assert [failure.reason for failure in failures] == []
    assert results(tmp_path / "here") == results(tmp_path / "there")
    assert (tmp_path / "there" / "slurm").is_dir()


def test_options_are_those_of_submitit():
    given = _options("partition=gpu, gpus_per_node=1,timeout_min=240,slurm_qos=high,account=me")
    assert given == {
        "slurm_partition": "gpu",
        "gpus_per_node": 1,
        "timeout_min": 240,
        "slurm_qos": "high",
        "slurm_account": "me",
    }
    with pytest.raises(UserError, match="`--slurm` takes key=value joined by commas, got 'gpu'"):
        _options("gpu")


def test_a_machine_without_slurm_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs a machine from which jobs can be submitted"):
        SlurmWorkers(1, tmp_path)
