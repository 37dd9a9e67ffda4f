"""The processes of one training: which one this is, and the few values they exchange.

Without `torchrun` there is one process and nothing to exchange, so that a recipe is the same program alone and in a
group.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from reweigh.bench.train import device as devices


def join() -> None:
    """Join the group that `torchrun` made: NCCL between CUDA devices, one per process, gloo between processors."""
    if dist.is_initialized():
        return
    backend = "gloo"
    if devices.current().type == "cuda":
        devices.use(torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        torch.cuda.set_device(devices.current())
        backend = "cpu:gloo,cuda:nccl"
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The store of torchrun outlives a restart: without a name of its own each attempt would find the addresses that
    # the dead left in it, and wait for them.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    known = dist.TCPStore(address, port, count, is_master=False)  # pyright: ignore[reportPrivateImportUsage]
    store = PrefixStore(f"attempt {attempt}", known)
    dist.init_process_group(backend, store=store, rank=number, world_size=count)


def together() -> bool:
    """Whether there is a group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process, 0 for the one that writes."""
    return dist.get_rank() if together() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if together() else 1


def barrier() -> None:
    """Wait for all."""
    if world() > 1:
        dist.barrier()


def broadcast(value: Any) -> Any:
    """What process 0 has; others pass anything."""
    if world() == 1:
        return value
    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def gathered(value: Any) -> list[Any]:
    """What each process has, in the order of their numbers."""
    if world() == 1:
        return [value]
    held: list[Any] = [None] * world()
    dist.all_gather_object(held, value)
    return held


def summed(values: Sequence[float]) -> list[float]:
    """The sum over processes of each number, in double precision."""
    held = torch.tensor(list(values), dtype=torch.float64)
    if world() > 1:
        dist.all_reduce(held)
    return held.tolist()
