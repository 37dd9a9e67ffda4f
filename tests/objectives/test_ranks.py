"""Data-parallel ranks: each rank's weights are its slice of what one process gives for the whole batch."""

from __future__ import annotations

import dataclasses
import functools
import os

import numpy as np
import pytest
import torch
from children import answers
from instances import INSTANCES, N_GROUPS

pytestmark = pytest.mark.processes

RANKS = 2
RNG = np.random.default_rng(5)
SIZE = 11
BATCHES = [RNG.exponential(size=SIZE) for _ in range(4)]
BATCHES[1][2] = BATCHES[1][9] = BATCHES[1].max()  # a tie across ranks
CUTS = (7, 7, 3, SIZE)  # uneven shards; of the last batch the second rank has nothing
GROUPS = RNG.integers(0, N_GROUPS, SIZE)
MEASURE = np.array([1.0, 2.0, 0.0, 1.0, 1.5, 1.0, 1.0, 3.0, 0.0, 1.0, 0.5])
WHOLE = [slice(None)] * len(BATCHES)
SHARDS = [[slice(0, cut) for cut in CUTS], [slice(cut, SIZE) for cut in CUTS]]
# No measure, one everywhere, one that the first rank need not know of, and none again.
MEASURES = [None, MEASURE, np.where(np.arange(SIZE) < CUTS[2], 1.0, MEASURE), np.ones(SIZE)]


def run(parts, rank=None, sync=True):
    """Weights, losses and final state of every objective over the batches, for a part of each."""
    results = []
    for objective in INSTANCES:
        if not sync and hasattr(objective, "sync"):
            objective = dataclasses.replace(objective, sync=False)
        state, weights, losses = objective.init(), [], []
        for number, (batch, measure, part) in enumerate(zip(BATCHES, MEASURES, parts, strict=True)):
            known = measure is not None and not (number == 2 and rank == 0)
            beside = torch.tensor(measure)[part] if known else None
            x, groups = torch.tensor(batch)[part], torch.tensor(GROUPS)[part]
            fresh = {name: torch.as_tensor(value) for name, value in state.items()} if state else state
            weights.append(objective.weigh(x, fresh, measure=beside, groups=groups).weights.numpy())
            loss, state = objective.apply(x, state, sample_weight=beside, groups=groups, count=3.0)
            losses.append(loss.item())
        results.append((weights, losses, {name: value.numpy() for name, value in state.items()} if state else {}))
    return results


def worker(rank, file, queue):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    try:
        queue.put((rank, run(SHARDS[rank], rank), run(SHARDS[rank], rank, sync=False)))
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What each of two processes found, by rank."""
    context = torch.multiprocessing.get_context("spawn")
    queue, file = context.Queue(), tmp_path_factory.mktemp("ranks") / "rendezvous"
    processes = [context.Process(target=worker, args=(rank, file, queue)) for rank in range(RANKS)]
    return {rank: results for rank, *results in answers(processes, queue)}


@pytest.fixture(scope="module")
def whole():
    """The same in one process."""
    return run(WHOLE)


each = pytest.mark.parametrize("index", range(len(INSTANCES)), ids=[repr(objective) for objective in INSTANCES])


@each
def test_ranks_share_one_batch(shards, whole, index):
    weights, losses, state = whole[index]
    for rank, parts in enumerate(SHARDS):
        rank_weights, _, rank_state = shards[rank][0][index]
        for mine, all_of_them, part in zip(rank_weights, weights, parts, strict=True):
            np.testing.assert_allclose(mine, all_of_them[part], rtol=1e-10, atol=1e-10)
        for name, value in state.items():
            np.testing.assert_allclose(rank_state[name], value, rtol=1e-10, atol=1e-10)
    # With one count for all, what the ranks return adds up to the loss of the whole batch, its value included.
    total = np.sum([shards[rank][0][index][1] for rank in range(RANKS)], axis=0)
    np.testing.assert_allclose(total, losses, rtol=1e-9)


@each
def test_without_sync_each_rank_is_alone(shards, index):
    objective = INSTANCES[index]
    if not hasattr(objective, "sync"):
        assert objective.separable
        return
    for rank in range(RANKS):
        for mine, alone in zip(shards[rank][1][index][0], _alone(rank)[index][0], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=1e-12, atol=1e-12)


@functools.cache
def _alone(rank):
    return run(SHARDS[rank], rank, sync=False)
