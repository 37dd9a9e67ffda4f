"""Signals that ask the command to stop: each ends it as Ctrl-C does, cursor back and all that was finished kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType

#: The exit code of a command that was interrupted by Ctrl-C.
INTERRUPTED = 130
#: What job schedulers, `kill` and `timeout` send, and what a terminal that is closed sends.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def as_interruptions() -> Generator[list[int]]:
    """Let the signals raise `KeyboardInterrupt` within the block; the list holds the number of the one that came.

    A signal that was ignored before stays ignored: `nohup` relies on it. A second one does not disturb what the first
    has begun to put in order; Ctrl-C still does.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python does not allow it
        before = {one: signal.getsignal(one) for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, stop)
    try:
        yield received
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
