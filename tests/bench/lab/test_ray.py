"""Runs on a Ray cluster: the directories and the bits of a local command, also after a process is killed.

Ray has an environment of its own (`make test-ray`); elsewhere there is nothing to do here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from children import moments, output_of, started

from reweigh.bench.lab.runs import load_runs

pytest.importorskip("ray")
pytestmark = pytest.mark.processes

#: Trainings alone with checkpoints, and trainings in groups; tuning, comparison and controls.
COMMAND = ("longtail", "--preset", "smoke", "--method", "rgd", "--method", "importance", "--set", "epochs=8", "--seeds",
           "2", "--tune", "2", "--jobs", "2")  # fmt: skip


#: Ray's processes give way to all others unless told not to, and would wait on a busy machine.
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "RAY_worker_niceness": "0"}
#: A cluster of the test's own lets nobody else in.
ENVIRONMENT |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def start(folder: Path, *more: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "reweigh", "run", *COMMAND, "--runs-dir", folder, *more]
    return started(command, env=ENVIRONMENT)


def finish(folder: Path, *more: str) -> str:
    with start(folder, *more) as process:
        return output_of(process, seconds=600)


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all records and arrays, by path; every run must be done."""
    runs = load_runs(folder)
    assert all(run.done for run in runs)
    files = [path for run in runs for path in run.directory.rglob("*") if path.suffix in (".jsonl", ".npy")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    finish(folder)
    return contents(folder)


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def at_work(pid: int) -> list[int]:
    """The processes below this one in which Ray does a task of ours."""
    found = []
    for child in descendants(pid):
        try:
            title = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::_work"):
            found.append(child)
    return found


def test_a_cluster_of_two_gives_the_bits_of_a_local_command(local, tmp_path):
    output = finish(tmp_path, "--executor", "ray")
    assert "runs failed" not in output
    assert contents(tmp_path) == local


def test_a_killed_worker_loses_nothing_and_counts_nothing_twice(local, tmp_path):
    killed: list[int] = []
    with start(tmp_path, "--executor", "ray") as process:
        for _ in moments(400, every=0.02):
            if process.poll() is not None or len(killed) == 2:
                break
            recorded = sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*/*/records.jsonl"))
            workers = [pid for pid in at_work(process.pid) if pid not in killed]
            if recorded > 6 * len(killed) + 3 and workers:
                os.kill(workers[0], signal.SIGKILL)
                killed.append(workers[0])
        output = output_of(process, seconds=600)
    assert len(killed) == 2, output
    assert "runs failed" not in output
    assert contents(tmp_path) == local


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_running_cluster_is_used_and_left_running(local, tmp_path):
    ray = Path(sys.executable).with_name("ray")
    port = 20_000 + os.getpid() % 20_000
    command = [ray, "start", "--head", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--block"]
    with started(command, env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"}) as head:
        # The store answers before the rest is up.
        assert any("Ray runtime started" in line for line in head.stdout or ()), "the cluster did not start"
        assert answers(port)
        finish(tmp_path, "--executor", "ray", "--address", f"127.0.0.1:{port}")
        assert contents(tmp_path) == local
        assert head.poll() is None, "the cluster was ended by a command that did not start it"
        head.terminate()
        head.wait()


def test_an_address_where_nobody_answers_is_one_sentence(monkeypatch):
    import ray

    from reweigh.bench.lab.executors.ray import RayWorkers

    def refuse(**options):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ValueError, match=r"no Ray cluster at '10.0.0.1:6379' that answers \(nobody there\)"):
        RayWorkers(2, address="10.0.0.1:6379")
