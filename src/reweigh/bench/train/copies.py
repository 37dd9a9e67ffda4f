"""Batches from a training set in which rows are repeated or left out, as steps with two stages ask for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class CopiedRows:
    """Batches from a set that holds each row so many times, in an order that follows from seed and epoch alone.

    An epoch has as many batches as it would have without copies: the set is passed through in a random order, and again
    in another one where it is smaller.

    Parameters
    ----------
    batch_size, every
        Rows in a batch, and batches in an epoch.
    seed
        Of the order.

    Examples
    --------
    >>> CopiedRows(4, 1, seed=0).batch(torch.tensor([0, 3, 1]), step=0).sort().values
    tensor([1, 1, 1, 2])
    """

    def __init__(self, batch_size: int, every: int, seed: int) -> None:
        self.batch_size, self.every, self.seed = batch_size, every, seed
        self._copies: Tensor | None = None
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def batch(self, copies: Tensor, step: int) -> Tensor:
        """The rows of a step, counted over the whole training."""
        epoch, place = divmod(step, self.every)
        if copies is not self._copies or epoch != self._epoch:
            self._copies, self._epoch, self._order = copies, epoch, self._shuffled(copies, epoch)
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]

    def _shuffled(self, copies: Tensor, epoch: int) -> Tensor:
        rows = torch.arange(len(copies)).repeat_interleave(copies)
        if not len(rows):
            raise ValueError("`copies` must leave rows to train on, got none.")
        mixed = np.random.SeedSequence((self.seed, epoch)).generate_state(1, np.uint64)
        draw = torch.Generator().manual_seed(int(mixed[0]))
        passes = -(-self.batch_size * self.every // len(rows))
        return torch.cat([rows[torch.randperm(len(rows), generator=draw)] for _ in range(passes)])
