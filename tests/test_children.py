"""What tests start is gone when they end, and what they wait for has more time on a busy machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import children
import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

#: Starts a process in a session of its own, as torchrun does, tells its number, and waits.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(86400)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(86400)
"""


def runs(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("dies_first", [False, True])
def test_offspring_in_other_sessions_is_ended_after_a_failure(dies_first: bool) -> None:
    child = 0

    def fail() -> None:
        nonlocal child
        with children.started([sys.executable, "-c", PARENT]) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            assert runs(child)
            assert os.getsid(child) == child
            if dies_first:
                process.kill()
                process.wait()
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        fail()
    assert not runs(child)


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        children.run([sys.executable, "-c", "import time; time.sleep(86400)"], seconds=0.1)


def test_output_and_code_of_a_command() -> None:
    done = children.run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    with (
        children.started([sys.executable, "-c", "print('why'); raise SystemExit(1)"]) as process,
        pytest.raises(AssertionError, match="why"),
    ):
        children.output_of(process)


@pytest.mark.parametrize(("load", "longer"), [(0.0, 1), (4.0, 4)])
def test_seconds_last_longer_under_load(monkeypatch: pytest.MonkeyPatch, load: float, longer: int) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    for _ in children.moments(8.0, every=0.5):
        pass
    assert now == 8.0 * longer


def _fail(results: object) -> None:
    raise SystemExit(5)


@pytest.mark.processes
def test_a_process_that_dies_without_an_answer_is_not_waited_for() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_fail, args=(results,))
    with pytest.raises(AssertionError, match="failed before it answered"):
        children.answers([process], results)
    assert process.exitcode == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_is_stopped_by_a_signal_that_this_process_ignores(number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.SIG_IGN)
    try:
        with children.started(
            [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(86400)"]
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(number)
            assert process.wait() == -number
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, inherited)
