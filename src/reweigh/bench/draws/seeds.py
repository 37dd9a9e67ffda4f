"""One seed, many named streams: data, initialisation, order and noise never share random numbers.

Two methods with the same seed see the same data draw, the same initial parameters and the same order of batches, so
that their difference is theirs alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Seeds:
    """The random streams of one seed."""

    seed: int

    def numpy(self, stream: str) -> np.random.Generator:
        """A NumPy generator for the stream of this name."""
        return np.random.default_rng(self._entropy(stream))

    def torch(self, stream: str) -> torch.Generator:
        """A torch generator for the stream of this name."""
        import torch  # drawing indices should not wait for it

        return torch.Generator().manual_seed(self.integer(stream))

    def integer(self, stream: str) -> int:
        """A non-negative integer, for what takes a seed of its own."""
        return int(self._entropy(stream).generate_state(1, np.uint64)[0] >> np.uint64(1))

    @contextmanager
    def ambient(self, stream: str) -> Generator[None]:
        """Torch's global generator set to the stream of this name, and put back afterwards.

        Modules initialise themselves from the global generator; this is the one place that touches it.
        """
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.integer(stream))
            yield

    def _entropy(self, stream: str) -> np.random.SeedSequence:
        return np.random.SeedSequence([self.seed, zlib.crc32(stream.encode())])
