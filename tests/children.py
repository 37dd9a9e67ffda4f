"""Processes that tests start: waited for as long as the machine's load asks for, and ended with all their offspring."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Children inherit it, whatever session they open and whichever parent they end up with.
_MARK = "REWEIGH_TEST_OFFSPRING"


def moments(seconds: float, every: float = 0.05) -> Iterator[None]:
    """Moments to look whether something has happened, until `seconds` are over.

    Seconds are those of an idle machine: the more processes compete for a core, the longer they last.
    """
    then = time.monotonic()
    while seconds > 0:
        yield
        time.sleep(every)
        now = time.monotonic()
        seconds -= (now - then) / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        then = now


@contextlib.contextmanager
def started(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A command at work; when the block is left, by whatever way, it and everything it started are killed.

    Torchrun puts each of its workers into a session of its own, and those of a killed command have another parent: they
    are found by what they inherit.
    """
    mark = secrets.token_hex(16)
    with _stop_signals_at_their_defaults():
        process = subprocess.Popen(
            [str(word) for word in command],
            text=True,
            env={**(os.environ if env is None else env), _MARK: mark},
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
        )
    born = _stat(process.pid)[_BORN]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for _ in moments(60, every=0.01):
            living, unknown = _offspring(mark, born)
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not living and not unknown:
                break
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def _stop_signals_at_their_defaults() -> Iterator[None]:
    """Children inherit which signals are ignored: under `nohup` or a script's `&` they would not stop."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = [number for number in signals if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def _offspring(mark: str, born: int) -> tuple[list[int], list[int]]:
    """The living processes that carry the mark, and those that may: a program that is being loaded shows nothing yet.

    Where there is no /proc to look into, there are none.
    """
    living: list[int] = []
    unknown: list[int] = []
    entry = f"{_MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            environment = (folder / "environ").read_bytes()
            if entry in environment.split(b"\0"):
                living.append(int(folder.name))
            elif not environment:
                stat = _stat(int(folder.name))
                if stat[_BORN] >= born and not stat[_FLAGS] & _ENDING_OR_KERNEL:
                    unknown.append(int(folder.name))
    return living, unknown


#: Places in what `_stat` returns: flags, and the time of birth. A kernel thread has the one flag, what ends the other.
_FLAGS, _BORN = 5, 18
_ENDING_OR_KERNEL = 0x00200000 | 0x00000004


def _stat(pid: int) -> list[int]:
    """The numbers in a process's /proc/PID/stat after its name and its state; zeros if there is none."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:]]
    except OSError:
        return [0] * 50


def output_of(process: subprocess.Popen[str], *, seconds: float = 300, code: int = 0) -> str:
    """What a process has written when it ends, which it must do with this code."""
    output, _ = _written(process, seconds)
    assert process.returncode == code, output
    return output


def run(command: Sequence[str | Path], *, seconds: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run` with captured text, but patient under load and without leaving anything behind."""
    with started(command, stderr=subprocess.PIPE, **options) as process:
        written = _written(process, seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, *written)


def _written(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    for _ in moments(seconds, every=0.0):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1.0)
    raise subprocess.TimeoutExpired(process.args, seconds)


@contextlib.contextmanager
def ended(processes: Sequence[Any]) -> Iterator[None]:
    """Kill what is left of some processes of `multiprocessing` when the block is left, by whatever way."""
    try:
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def answers(processes: Sequence[Any], results: Any) -> list[Any]:
    """Start processes of `multiprocessing`, take one answer of each from their queue, and see them end well."""
    received: list[Any] = []
    with ended(processes):
        for process in processes:
            process.start()
        while len(received) < len(processes):
            with contextlib.suppress(queue.Empty):
                received.append(results.get(timeout=1.0))
                continue
            assert not any(process.exitcode for process in processes), "a process failed before it answered"
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * len(processes)
    return received
