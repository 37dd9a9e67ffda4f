"""What does the runs: fresh Python processes that never import the caller's script again.

For training code of the user's own, which may come from a notebook or of a script without a main guard, may leak memory
and may print without end. A process serves several runs, and is replaced when it has grown.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

from reweigh.bench.files import write_atomically
from reweigh.bench.lab.executors.local import PendingRuns, work
from reweigh.bench.lab.runs import Run, Spec

#: Bytes of a run's output that are kept: so many of its beginning, and as many of its end.
_KEPT = 100_000
#: A process that has grown by more than this factor and this many bytes since its first run is replaced.
_GROWTH, _ALLOWANCE = 1.5, 256 << 20


class Children:
    """Processes for runs of the user's own code; started when first needed, ended when the block is left.

    Parameters
    ----------
    jobs
        Processes at once.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = max(1, jobs)
        self._threads = concurrent.futures.ThreadPoolExecutor(self.jobs, thread_name_prefix="reweigh-child")
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._all: set[_Child] = set()
        self._closing = False

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        if kind is not None:  # interrupted: what was checkpointed stays, the rest is not waited for
            for child in list(self._all):
                child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in list(self._all):
            child.end()

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Give a group of runs to the next free process."""
        return self._threads.submit(self._work, list(group), root)

    def _work(self, group: list[Spec], root: Path) -> list[tuple[dict[str, Any], str]] | None:
        if self._closing:
            raise concurrent.futures.CancelledError
        try:
            child = self._idle.get_nowait()
        except queue.Empty:
            child = _Child(self.jobs)
            self._all.add(child)
        try:
            answer, output = child.work(group, root)
        except BaseException:
            self._all.discard(child)
            child.kill()
            raise
        for spec in group:
            directory = Run(spec, root).directory
            if output and directory.exists():
                with contextlib.suppress(OSError):  # a full disk must not turn a finished run into a failed one
                    write_atomically(directory / "output.txt", output, synced=False)
        if child.grown():
            self._all.discard(child)
            child.end()
        else:
            self._idle.put(child)
        return answer


class _Child:
    """One process: it reads groups of runs from its standard input, and ends when that is closed."""

    def __init__(self, jobs: int) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": threads, **os.environ},
            start_new_session=True,  # Ctrl-C is the parent's business
        )
        self._output = _Output(self._process.stdout)
        self._first: int | None = None
        self._last = 0

    def work(self, group: list[Spec], root: Path) -> tuple[list[tuple[dict[str, Any], str]] | None, bytes]:
        """Do a group of runs; returns its failures, as `work` does, and what was printed."""
        with tempfile.TemporaryDirectory(prefix="reweigh-") as folder:
            reply = Path(folder) / "reply.json"
            order = {"specs": [spec.as_dict() for spec in group], "root": str(root), "reply": str(reply)}
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # it is dead: found out below
            while not reply.exists():
                try:
                    self._process.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
                if reply.exists():
                    break
                raise BrokenProcessPool(f"the process of a run ended with {self._process.returncode}")
            answer = json.loads(reply.read_bytes())
        self._last = int(answer["memory"])
        self._first = self._last if self._first is None else self._first
        failures = answer["failures"]
        return None if failures is None else [(spec, reason) for spec, reason in failures], self._output.take()

    def grown(self) -> bool:
        """Whether it holds on to much more memory than after its first run."""
        return self._first is not None and self._last > _GROWTH * self._first + _ALLOWANCE

    def end(self) -> None:
        """Let the process end; it has nothing to do."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._output.close()

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


class _Output:
    """What a process prints: the first and the last part of it, whatever its length."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._reset()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        """What was printed since the last time; an ellipsis stands for what is not kept."""
        with self._lock:
            tail = b"".join(self._tail)[-_KEPT:]
            gap = b"\n[...]\n" if self._dropped or len(b"".join(self._tail)) > _KEPT else b""
            text = self._head + gap + tail
            self._reset()
        return text

    def close(self) -> None:
        """Stop reading; the process has ended."""
        self._thread.join(5)
        self._stream.close()

    def _reset(self) -> None:
        self._head, self._dropped = b"", False
        self._tail: collections.deque[bytes] = collections.deque()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 1 << 16):
            with self._lock:
                room = _KEPT - len(self._head)
                self._head += chunk[:room]
                if chunk[room:]:
                    self._tail.append(chunk[room:])
                while sum(map(len, self._tail)) - len(self._tail[0] if self._tail else b"") > _KEPT:
                    self._tail.popleft()
                    self._dropped = True


class InProcess:
    """The runs in this process, one after the other: for breakpoints, and where starting a process is not worth it."""

    jobs = 1

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="reweigh-run")

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def submit(self, group: Sequence[Spec], root: Path) -> PendingRuns:
        """Do a group of runs when those before it are done."""
        return self._thread.submit(work, [spec.as_dict() for spec in group], str(root))


def _memory() -> int:
    """Bytes that this process has in memory; 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _serve() -> None:
    """Do groups of runs until the standard input is closed, which also happens when the parent dies."""
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        source = sys.stdin.buffer
        for line in source:
            orders.put(line)
        os._exit(0 if orders.empty() and not busy.is_set() else 1)

    busy = threading.Event()
    threading.Thread(target=read, daemon=True).start()
    while True:
        order = json.loads(orders.get())
        busy.set()
        failures = work(order["specs"], order["root"])
        sys.stdout.flush()
        reply = {"failures": failures, "memory": _memory()}
        write_atomically(Path(order["reply"]), json.dumps(reply), synced=False)
        busy.clear()


if __name__ == "__main__":
    _serve()
