"""What a training yields, and what it may keep: the contract between trainings and the runs that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

#: One line of a run: numbers, strings and lists of them by name.
Record = dict[str, Any]


class UnusableCheckpointError(RuntimeError):
    """A checkpoint is whole but does not fit the training: another version wrote it. The run has to start again."""


class ArrayWriter(Protocol):
    """Where larger results go."""

    def array(self, name: str, values: np.ndarray[Any, Any]) -> None:
        """Keep a larger result."""


class Writer(ArrayWriter, Protocol):
    """What a training may do with the run it belongs to."""

    @property
    def directory(self) -> Path:
        """The run's own folder."""
        ...

    def resume(self) -> Any | None:
        """The last checkpoint's state, or None; records written after it are dropped either way."""

    def rewind(self, count: int) -> bool:
        """Drop all records but the first so many; False, and all are dropped, if there are not so many to be read."""
        ...

    def checkpoint(self, state: Any) -> None:
        """Keep `state` (tensors, numbers, containers) as the place to resume from."""
