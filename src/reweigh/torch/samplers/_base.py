"""What every sampler shares: epochs, ranks, resuming, and remembering how each batch was drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from reweigh import _validate as validate

__all__ = ["SamplerConfig", "LiveSampler", "Draw", "Shard"]

#: Batches remembered between draw and update: more than any DataLoader prefetches, and a few megabytes at most.
_REMEMBERED = 1024


class Draw(NamedTuple):
    """Indices of one batch over all ranks, and what the sampler needs to know later about how they were drawn."""

    indices: Tensor
    record: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which part of each batch of `n` examples this process draws, and how much each example weighs."""

    n: int
    batch_size: int
    seed: int
    num_replicas: int
    rank: int
    #: Weights relative to the largest, float64; None if all are equal.
    weight: Tensor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        validate.whole("n", self.n, 1, "Pass the number of training examples, len(dataset).")
        validate.whole("batch_size", self.batch_size, 1, "It is the number of examples on one rank.")
        validate.whole("seed", self.seed, 0)
        validate.whole("num_replicas", self.num_replicas, 1)
        validate.whole("rank", self.rank, 0)
        if self.rank >= self.num_replicas:
            raise ValueError(
                f"`rank` must be below num_replicas={self.num_replicas}, got {self.rank}. "
                "Leave both out to take them from torch.distributed."
            )
        for name in ("n", "batch_size", "seed", "num_replicas", "rank"):
            # A NumPy integer would go into the state, and a checkpoint with one does not load with weights_only=True.
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.weight is not None:
            object.__setattr__(self, "weight", _relative(self.weight, self.n))

    @property
    def global_size(self) -> int:
        """Examples in a batch over all ranks."""
        return self.batch_size * self.num_replicas

    def weighted(self, own: Tensor) -> Tensor:
        """The probabilities of drawing, from those the sampler has without weights: their product, normalised."""
        if self.weight is None:
            return own
        masses = own * self.weight
        return masses / masses.sum()


class SamplerConfig(ABC):
    """A sampler's hyper-parameters; `start` makes the live sampler for one data set."""

    #: Values worth trying for each hyper-parameter: what tuning searches.
    search: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Cost of a step beyond shuffling, in words.
    cost: ClassVar[str] = "O(B)"
    #: What the training loop must supply: "losses" (call `update` after each step), "targets" or
    #: "groups" (to `start`).
    needs: ClassVar[tuple[str, ...]] = ()

    def start(
        self,
        n: int,
        *,
        batch_size: int,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        targets: Tensor | None = None,
        groups: Tensor | None = None,
        weight: Tensor | np.ndarray[Any, Any] | Sequence[float] | None = None,
    ) -> LiveSampler:
        """The live sampler, to be passed to a DataLoader as `batch_sampler`.

        Parameters
        ----------
        n
            Number of training examples.
        batch_size
            Examples in a batch on one rank.
        seed
            Seed of the sampler's own generator; must be the same on all ranks.
        num_replicas, rank
            Number of data-parallel processes, and which of them this is. Taken from `torch.distributed` where it
            is initialised, else 1 and 0.
        targets
            Class of each example, shape (n,); used by samplers whose `needs` name it.
        groups
            Group of each example, shape (n,); likewise.
        weight
            Weight of each example, shape (n,), finite and not negative; only ratios matter. The sampler draws an
            example in proportion to its own probability times this weight (see :class:`LiveSampler`). Must be the
            same on all ranks.
        """
        distributed = _distributed()
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size() if distributed else 1
        if rank is None:
            rank = torch.distributed.get_rank() if distributed else 0
        shard = Shard(
            n=n,
            batch_size=batch_size,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
            weight=None if weight is None else torch.as_tensor(weight),
        )
        return self._live(shard, groups if "groups" in self.needs else targets)

    @abstractmethod
    def _live(self, shard: Shard, targets: Tensor | None) -> LiveSampler:
        """The live sampler of a validated shard."""


class LiveSampler(Sampler[list[int]], ABC):
    r"""Batches of indices, drawn with a generator of its own: a `batch_sampler` for a DataLoader.

    *Order of calls.* For each batch: `sample_weight(indices, losses)`, the step, `update(indices, losses)`.
    Batches are used in the order in which they are drawn.

    *Prefetching.* A DataLoader with workers draws a few batches ahead, from probabilities that are a few steps
    old. Each batch is remembered with the probabilities it was drawn from until it is updated, so corrections are
    exact all the same, even for an example that two outstanding batches share.

    *Weights.* With `start(..., weight=v)` example i is drawn with probability proportional to :math:`p_i v_i`, where
    :math:`p` is what the sampler draws from without weights. Corrections undo what the sampler prefers, never
    :math:`v`: where corrected draws estimate :math:`\frac1n \sum_i w_i \nabla\ell_i` without weights, they estimate
    :math:`\sum_i v_i w_i \nabla\ell_i / \sum_i v_i` with them. The weights are in the draws, so do not pass them to the
    loss as well. Equal weights change nothing.

    *Data parallel.* All ranks draw the same global batch from generators with the same seed, and each takes its
    slice. `update` gathers indices and losses from all ranks, so that the samplers stay identical; it is a
    collective call of adaptive samplers.

    *Resuming.* `state_dict` may be taken between any two steps, is the same on all ranks, and continues with the
    very same batches: those drawn ahead but not yet updated are handed out again. A batch of which any part has been
    updated is used, even if losses were left out. Samplers that need no losses count a batch as used when it is drawn,
    unless `update` is called there too.
    """

    _adaptive: ClassVar[bool] = False  # whether losses change what is drawn

    def __init__(self, shard: Shard, *, corrects: bool = False) -> None:
        self.shard = shard
        self._corrects = corrects
        self._generator = torch.Generator()
        self._epoch = 0
        self._position = 0  # batches drawn in this epoch
        self._begun = False
        self._resuming = False
        self._updated = False  # whether `update` reports which batches have been used
        self._pending: deque[_Batch] = deque(maxlen=_REMEMBERED)

    # --- what a sampler defines ---

    @abstractmethod
    def _draw(self) -> Draw:
        """The next batch over all ranks."""

    @abstractmethod
    def probabilities(self) -> Tensor:
        """With which probability each example is drawn now, shape (n,), float64."""

    def _begin_epoch(self) -> None:
        """Prepare an epoch; the generator has just been seeded for it."""

    def _learn(self, indices: Tensor, losses: Tensor, record: Tensor | None) -> None:
        """Take in losses of all ranks, float64 on the CPU; `record` is that of their draw, if they were drawn."""

    def _correction(self, losses: Tensor, record: Tensor) -> Tensor:
        """Factors of the losses, given the record of their draw; used if `_corrects`."""
        return torch.ones_like(losses)

    def _state(self) -> dict[str, Tensor]:
        """What has been learned."""
        return {}

    def _load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `_state`."""

    # --- what every sampler does ---

    @property
    def adaptive(self) -> bool:
        """Whether losses change what is drawn, so that `update` has to be called after every step."""
        return self._adaptive

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return -(-self.shard.n // self.shard.global_size)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch; after `load_state_dict`, those that are left of it."""
        if self._resuming:
            self._resuming = False
            for batch in list(self._pending):
                yield self._slice(batch.indices).tolist()
        else:
            self._fresh_epoch()
        while self._position < len(self):
            yield self._next().tolist()

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch next. Epochs count up by themselves; setting them makes a run independent of its past.

        In the midst of a resumed epoch, setting that same epoch changes nothing.
        """
        validate.whole("epoch", epoch, 0)
        if not (self._resuming and epoch == self._epoch):
            self._epoch, self._begun, self._resuming = int(epoch), False, False

    def sample_weight(self, indices: Tensor, losses: Tensor) -> Tensor | None:
        """Factors that correct for how the batch was drawn; None if there is nothing to correct.

        Pass them on as `sample_weight` together with `count=batch_size`, before calling `update`.

        Parameters
        ----------
        indices
            Indices of the examples, shape (b,): a batch of this sampler or a part of one.
        losses
            Their losses now, shape (b,), on any device.

        Returns
        -------
        Tensor | None
            Shape (b,), on the device of the losses, float32 at least, without gradient.
        """
        indices, losses = self._checked(indices, losses)
        if not self._corrects:
            return None
        batch = self._find(indices)
        if batch is None or batch.record is None:
            raise ValueError(
                "`indices` must belong to one batch that was drawn and not yet updated, got others. "
                "Call sample_weight before update, with the indices this sampler gave."
            )
        record = batch.record[batch.positions(indices)]
        wide = losses if losses.dtype.itemsize >= 4 else losses.float()
        return self._correction(wide, record.to(device=wide.device, dtype=wide.dtype))

    def update(self, indices: Tensor, losses: Tensor) -> None:
        """Take in the newest losses of examples, after the step.

        Parameters
        ----------
        indices
            Indices of the examples, shape (b,); empty ones use up a batch without learning from it.
        losses
            Their losses, shape (b,), on any device; gradient is ignored. Moved to the CPU in one piece.
        """
        indices, losses = self._gathered(*self._checked(indices, losses))
        bad = ~torch.isfinite(losses)
        if bool(bad.any()):
            raise ValueError(
                f"losses must be finite, got {int(bad.sum())} of {losses.shape[0]} that are NaN or infinite, the "
                f"first that of example {int(indices[bad][0])}. Find out why, or leave such examples out: "
                "sampler.update(indices[ok], losses[ok])."
            )
        self._updated = True
        batch = self._find(indices)
        record = None if batch is None or batch.record is None else batch.record[batch.positions(indices)]
        self._learn(indices, losses, record)
        if batch is not None:
            self._use_up(batch, indices.shape[0])

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume with the same batches, as tensors and numbers; the same on every rank."""
        used_when_drawn = not (self._adaptive or self._updated)
        return {
            "n": self.shard.n,
            "batch_size": self.shard.batch_size,
            "num_replicas": self.shard.num_replicas,
            "seed": self.shard.seed,
            "weight": _clone(self.shard.weight),
            "epoch": self._epoch,
            "position": self._position,
            "begun": self._begun,
            "updated": self._updated,
            "generator": self._generator.get_state(),
            # Between two steps a batch with a part updated has no other part to come: the rest was left out.
            "pending": [
                (b.indices.clone(), _clone(b.record)) for b in self._pending if not (used_when_drawn or b.begun)
            ],
            "learned": {name: value.clone() for name, value in self._state().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next iteration gives the batches that were left of its epoch."""
        for name in ("n", "batch_size", "num_replicas", "seed"):
            if state[name] != getattr(self.shard, name):
                raise ValueError(
                    f"`{name}` must be that of the saved sampler, {state[name]}, got {getattr(self.shard, name)}. "
                    "Start the sampler with the saved value, or resume without its state."
                )
        saved, weight = state.get("weight"), self.shard.weight
        if not (saved is weight if saved is None or weight is None else torch.equal(saved.to("cpu"), weight)):
            raise ValueError(
                "`weight` must be that of the saved sampler, got another. "
                "Start the sampler with the saved weights, or resume without its state."
            )
        self._epoch, self._position, self._begun = state["epoch"], state["position"], state["begun"]
        self._updated = state["updated"]
        self._seed_epoch()
        self._generator.set_state(state["generator"].to("cpu"))
        self._pending.clear()
        for indices, record in state["pending"]:
            self._remember(Draw(indices.clone(), _clone(record)))
        self._load_state(state["learned"])
        self._resuming = self._begun and bool(self._position < len(self) or self._pending)

    # --- how ---

    def _uniform(self, size: int) -> Tensor:
        """Numbers in [0, 1) from the sampler's own generator."""
        return torch.rand(size, dtype=torch.float64, generator=self._generator)

    def _fresh_epoch(self) -> None:
        self._epoch += int(self._begun)
        self._begun, self._position, self._updated = True, 0, False
        self._pending.clear()
        self._seed_epoch()

    def _seed_epoch(self) -> None:
        mixed = np.random.SeedSequence((self.shard.seed, self._epoch)).generate_state(1, np.uint64)
        self._generator.manual_seed(int(mixed[0]))
        self._begin_epoch()

    def _next(self) -> Tensor:
        draw = self._draw()
        self._position += 1
        self._remember(draw)
        return self._slice(draw.indices)

    def _slice(self, indices: Tensor) -> Tensor:
        """The part of a batch that is this rank's; parts are of one size."""
        size = indices.shape[0] // self.shard.num_replicas
        return indices[self.shard.rank * size : (self.shard.rank + 1) * size]

    def _remember(self, draw: Draw) -> None:
        # Only adaptive samplers gather: the others hear of their own rank's part alone.
        left = draw.indices.shape[0] if self._adaptive else self._slice(draw.indices).shape[0]
        self._pending.append(_Batch(indices=draw.indices, record=draw.record, left=left))

    def _find(self, indices: Tensor) -> _Batch | None:
        """The oldest outstanding batch that holds all these indices; for none, the oldest not yet begun."""
        indices = indices.to("cpu")
        return next((batch for batch in self._pending if batch.holds(indices)), None)

    def _use_up(self, batch: _Batch, amount: int) -> None:
        while self._pending[0] is not batch:
            self._pending.popleft()  # skipped by the training loop
        batch.begun = True
        batch.left -= amount
        if batch.left <= 0:
            self._pending.popleft()

    def _checked(self, indices: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        indices = torch.as_tensor(indices)
        if indices.ndim != 1 or indices.shape != losses.shape:
            raise ValueError(
                "`indices` and `losses` must be vectors of one length, got shapes "
                f"{tuple(indices.shape)} and {tuple(losses.shape)}. Give one unreduced loss for each index."
            )
        if indices.is_floating_point() or indices.dtype == torch.bool:
            raise TypeError(f"`indices` must be integers, got {indices.dtype}. Have the dataset return its index.")
        if not losses.is_floating_point():
            raise TypeError(f"`losses` must be floating-point numbers, got {losses.dtype}.")
        return indices.to(torch.int64), losses.detach()

    def _gathered(self, indices: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """Indices and losses of all ranks on the CPU."""
        if not (self._adaptive and self.shard.num_replicas > 1):
            indices, losses = indices.to("cpu"), losses.to("cpu").to(torch.float64)
        else:
            indices, losses = _all_gather(indices, losses, self.shard)
        if indices.shape[0] and bool((indices.amin() < 0) | (indices.amax() >= self.shard.n)):
            raise IndexError(
                f"`indices` must lie in [0, {self.shard.n}), got {int(indices.amin())} to {int(indices.amax())}. "
                "Start the sampler with n=len(dataset)."
            )
        return indices, losses


@dataclass(kw_only=True)
class _Batch:
    """A batch that was drawn and is not yet used up."""

    indices: Tensor
    record: Tensor | None
    left: int
    begun: bool = False  # whether any part of it has been updated
    order: Tensor = field(init=False)
    sorted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.order = torch.argsort(self.indices)
        self.sorted = self.indices[self.order]

    def positions(self, indices: Tensor) -> Tensor:
        """Where in the batch each index is; equal indices of one batch were drawn alike."""
        places = torch.searchsorted(self.sorted, indices.to("cpu"))
        return self.order[places.clamp_max(self.order.shape[0] - 1)]

    def holds(self, indices: Tensor) -> bool:
        """Whether these may be a part of what is left: a batch that had examples left out outlives its step."""
        amount = indices.shape[0]
        if not amount or amount > self.left:
            return not (amount or self.begun)
        return torch.equal(self.indices[self.positions(indices)], indices)


def _relative(weight: Tensor, n: int) -> Tensor | None:
    """Weights divided by the largest, on the host; None if they are all equal."""
    weight = weight.detach().to(device="cpu", dtype=torch.float64)
    if weight.shape != (n,):
        raise ValueError(
            f"`weight` must have one number for each of {n} examples, got shape {tuple(weight.shape)}. "
            "Pass the weights of the whole training set on every rank."
        )
    good = torch.isfinite(weight) & (weight >= 0)
    if not bool(good.all()):
        first = int((~good).nonzero()[0])
        raise ValueError(
            f"`weight` must be finite and not negative, got {int((~good).sum())} of {n} that are not, the first "
            f"{float(weight[first])} for example {first}. Use 0 for examples that are never to be drawn."
        )
    largest = weight.amax()
    if not bool(largest > 0):
        raise ValueError(
            "`weight` must be positive for at least one example, got zeros only. Leave it out for equal weights."
        )
    return None if bool((weight == largest).all()) else weight / largest


def _clone(record: Tensor | None) -> Tensor | None:
    return None if record is None else record.clone()


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _all_gather(indices: Tensor, losses: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Vectors of all ranks, in one collective and one copy to the CPU."""
    if not _distributed():
        raise RuntimeError(
            f"the sampler was started with num_replicas={shard.num_replicas}, but torch.distributed is not "
            "initialised, so it cannot learn the losses of the other ranks and they would draw apart. Call "
            "torch.distributed.init_process_group first, or start the sampler with num_replicas=1."
        )
    size = indices.shape[0]
    if size > shard.batch_size:
        raise ValueError(
            f"under data parallel `update` takes at most batch_size={shard.batch_size} losses at a time, "
            f"got {size}. Call it once for each batch."
        )
    # Ranks may differ in how many losses they have: length, indices and losses travel in one padded message.
    # float64 holds indices up to 2^53.
    message = torch.zeros(2 * shard.batch_size + 1, dtype=torch.float64, device=losses.device)
    message[0] = size
    message[1 : size + 1] = indices.to(device=losses.device, dtype=torch.float64)
    message[shard.batch_size + 1 : shard.batch_size + 1 + size] = losses.to(torch.float64)
    messages = [torch.empty_like(message) for _ in range(shard.num_replicas)]
    torch.distributed.all_gather(messages, message)
    table = torch.stack(messages).to("cpu")
    real = torch.arange(shard.batch_size) < table[:, :1]
    return table[:, 1 : shard.batch_size + 1][real].to(torch.int64), table[:, shard.batch_size + 1 :][real]
