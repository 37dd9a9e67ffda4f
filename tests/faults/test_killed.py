"""Processes that are killed: the numbers are those of a command that nobody touched, each run counted once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import moments, output_of, started

from reweigh.bench import report
from reweigh.bench.lab.results import collect
from reweigh.bench.lab.runs import load_runs

#: Trainings alone with checkpoints, and trainings in groups that start again; tuning, comparison and controls.
COMMAND = ("longtail", "--preset", "smoke", "--method", "rgd", "--method", "importance", "--seeds", "2", "--tune", "2",
           "--jobs", "2")  # fmt: skip


def start(folder: Path, epochs: int) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "reweigh", "run", *COMMAND, "--set", f"epochs={epochs}", "--runs-dir", folder]
    return started(command, env={**os.environ, "COLUMNS": "200"})


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all records and arrays, by path; every run must be done."""
    runs = load_runs(folder)
    assert all(run.done for run in runs)
    files = [path for run in runs for path in run.directory.rglob("*") if path.suffix in (".jsonl", ".npy")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/*/records.jsonl"))


def at_work(process: subprocess.Popen[str]) -> list[int]:
    """The processes that the command has started and that train: those that spawned Pythons are."""
    workers: list[int] = []
    with contextlib.suppress(OSError):  # the command has ended
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # this process has
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    workers.append(int(pid))
    return workers


def wait_for_new_lines(folder: Path, process: subprocess.Popen[str]) -> None:
    before = lines(folder)
    for _ in moments(200, every=0.02):
        if lines(folder) > before or process.poll() is not None:
            return
    pytest.fail("nothing was recorded")


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_the_command_survives_the_death_of_a_process_at_work(tmp_path):
    """As when the system runs out of memory and kills it: its runs are tried again, and nothing is lost."""
    with start(tmp_path, epochs=8) as process:
        wait_for_new_lines(tmp_path, process)
        workers = at_work(process)
        assert workers, "there was no process to kill"
        os.kill(workers[0], signal.SIGKILL)
        output = output_of(process)
    assert "failed" not in output
    runs = load_runs(tmp_path)
    assert all(run.done for run in runs)
    for run in runs:
        assert [record["epoch"] for record in run.records()] == list(range(1, 9)), "an epoch is missing or twice there"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.timeout(4 * 3600)
def test_fifty_kills_do_not_change_the_table(tmp_path):
    """Kill the command or one of its processes at random moments, fifty times, then let it finish."""
    epochs, kills, draw = 20, 0, random.Random(0)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    began = time.monotonic()
    with start(unbroken, epochs) as process:
        output_of(process, seconds=1200)
    needed = time.monotonic() - began
    while kills < 50:
        with start(broken, epochs) as process:
            # Some moments fall into the start of the command, some into tuning, training, or writing.
            time.sleep(draw.uniform(0.0, 0.5 * needed))
            while process.poll() is None:
                workers = at_work(process)
                if workers and draw.random() < 0.7:
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(draw.choice(workers), signal.SIGKILL)
                        kills += 1
                    time.sleep(draw.uniform(0.0, 0.2 * needed))
                else:
                    process.kill()
                    process.wait()
                    kills += 1
            process.communicate()  # its processes end by themselves
        if broken.exists() and load_runs(broken) and all(run.done for run in load_runs(broken)) and kills < 50:
            # All is done before the kills are used up: undo one run at random, as if it had been lost with its disk.
            lost = draw.choice(load_runs(broken))
            for path in sorted(lost.directory.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            lost.directory.rmdir()
    with start(broken, epochs) as process:
        output_of(process, seconds=1200)
    ended, expected = contents(broken), contents(unbroken)
    assert ended.keys() == expected.keys()
    assert [name for name in ended if ended[name] != expected[name]] == []
    tables = [report.tables(collect(folder, preset="smoke"), "csv") for folder in (broken, unbroken)]
    assert tables[0] == tables[1]
