"""Every example once per epoch, in random order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.torch.samplers._base import Draw, LiveSampler, SamplerConfig, Shard

__all__ = ["Uniform"]


@dataclass(frozen=True, kw_only=True)
class Uniform(SamplerConfig):
    r"""Plain shuffling: each epoch is a new permutation of the examples, cut into batches.

    .. math:: p_i = 1/n, \text{ without replacement within an epoch}

    Parameters
    ----------
    drop_last
        Whether to leave out the last batch of an epoch if it would be smaller than the others.

    Returns
    -------
    LiveSampler
        From `start(n, batch_size=...)`. It needs no `update`, and has nothing to correct.

    Examples
    --------
    >>> sampler = Uniform().start(5, batch_size=2, seed=0)
    >>> [len(batch) for batch in sampler]
    [2, 2, 1]
    >>> sorted(sum(sampler, []))
    [0, 1, 2, 3, 4]

    Notes
    -----
    Under data parallel the ranks' parts are disjoint, and of equal size in every batch, so that the mean over
    ranks is the mean over examples. What the last batch cannot divide evenly, fewer examples than there are ranks,
    is left out of that epoch; `torch.utils.data.DistributedSampler` repeats examples instead.

    With weights :math:`v` an epoch still has n places, and example i takes :math:`n v_i / \sum_j v_j` of them, rounded
    up or down at random so that the expectation is exact (systematic sampling); ranks may then share an example.
    """

    drop_last: bool = False

    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    cost: ClassVar[str] = "O(B); a permutation each epoch"
    needs: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        validate.one_of("drop_last", self.drop_last, (True, False))

    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        return _LiveUniform(self, shard)


class _LiveUniform(LiveSampler):
    def __init__(self, config: Uniform, shard: Shard) -> None:
        if shard.global_size > shard.n:
            raise ValueError(
                f"`batch_size` times num_replicas must not exceed the number of examples, n={shard.n}, when drawing "
                f"without replacement, got {shard.batch_size} x {shard.num_replicas}. Use a smaller batch."
            )
        super().__init__(shard)
        full, rest = divmod(shard.n, shard.global_size)
        self._tail = 0 if config.drop_last else rest // shard.num_replicas * shard.num_replicas
        self._batches = full + int(self._tail > 0)
        self._order = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return self._batches

    def probabilities(self) -> Tensor:
        """One n-th for each example, or its share of the weights."""
        return self.shard.weighted(torch.full((self.shard.n,), 1.0 / self.shard.n, dtype=torch.float64))

    def order(self, epoch: int) -> Tensor:
        """The examples of a whole epoch over all ranks, in the order in which its batches take them."""
        self.set_epoch(epoch)
        self._fresh_epoch()
        return self._order

    def _begin_epoch(self) -> None:
        self._order = torch.randperm(self.shard.n, generator=self._generator)
        if self.shard.weight is not None:
            self._order = self._places(self.shard.weight)[self._order]

    def _places(self, weight: Tensor) -> Tensor:
        """Which example takes each of the n places of an epoch, by systematic sampling."""
        n = self.shard.n
        # In random order, so that neighbours in the data do not exclude each other.
        shuffled = torch.randperm(n, generator=self._generator)
        upto = weight[shuffled].cumsum(0)
        # The last sum is n exactly, whatever the rounding; so are the equal sums of weightless examples after it.
        upto = torch.where(upto >= upto[-1], float(n), upto * (n / upto[-1]))
        upto = torch.ceil(upto - self._uniform(1)).to(torch.int64).clamp(0, n)
        return shuffled.repeat_interleave(torch.diff(upto, prepend=upto.new_zeros(1)))

    def _draw(self) -> Draw:
        start = self._position * self.shard.global_size
        last = self._tail > 0 and self._position == self._batches - 1
        return Draw(self._order[start : start + (self._tail if last else self.shard.global_size)])
