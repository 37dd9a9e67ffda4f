"""From a run of a comparison to the rows that it trains on: its own, or those that another process has encoded."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reweigh.bench.compare import shared
from reweigh.bench.compare.dealing import dealt
from reweigh.bench.compare.dealt import DealtSplit, Room, in_memory
from reweigh.bench.compare.problem import DataQuestion, Problem
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.sample import sampled
from reweigh.bench.compare.shared import SharedSplits
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.train.task import Task

#: Splits of small data that a process keeps in memory.
_REMEMBERED = 64


@dataclass(frozen=True, kw_only=True)
class SplitOfRows:
    """Everything that the rows of a run follow from.

    Parameters
    ----------
    question
        Which data.
    features
        The frozen network whose features are learnt from, if any.
    sample
        Rows of the sample; 0 for all.
    train_share
        The share of the split's training rows that is trained on.
    seed
        Which split.
    large
        Whether there is so much data that a process keeps one split at a time.
    """

    question: DataQuestion
    features: str
    sample: int
    train_share: float = 1.0
    seed: int
    large: bool

    @property
    def shared(self) -> bool:
        """Whether one process encodes it for all: the others should not even read the data."""
        return self.large or bool(self.sample)

    @property
    def key(self) -> str:
        """Its name among the splits that are shared."""
        return shared.key(f"{self.question} {self.features} {self.sample} {self.train_share} {self.seed}")

    def dealt(self, problem: Problem, room: Room = in_memory) -> DealtSplit:
        """Its rows as arrays, from the data or their sample."""
        parts = parts_of(problem, self.seed, share=self.train_share)
        return dealt(problem, parts, features=self.features, room=room)[0]


def task(split: SplitOfRows) -> Task:
    """The task of a split; a process that trains many methods on it makes it once."""
    return _one_task(split) if split.large else _some_tasks(split)


def share(splits: Iterable[SplitOfRows], problem: Problem, store: SharedSplits) -> Iterator[None]:
    """Encode the splits that are shared, once for all processes; yields before each."""
    wanted = {split.key: split for split in splits if split.shared}
    if wanted:
        store.make_room(wanted)
    for key, split in wanted.items():
        yield
        store.put(key, lambda room, split=split: split.dealt(problem, room))


@functools.lru_cache(maxsize=_REMEMBERED)
def _some_tasks(split: SplitOfRows) -> Task:
    return _made(split)


@functools.lru_cache(maxsize=1)
def _one_task(split: SplitOfRows) -> Task:
    return _made(split)


def _made(split: SplitOfRows) -> Task:
    store = shared.from_environment() if split.shared else None
    rows = None if store is None else store.get(split.key)
    return (rows or split.dealt(_problem(split.question, split.sample))).task()


@functools.lru_cache(maxsize=1)
def _problem(question: DataQuestion, sample: int) -> Problem:
    return sampled(load(question), sample)
