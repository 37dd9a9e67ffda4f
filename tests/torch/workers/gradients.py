"""One rank of a data-parallel step: computes gradients on its shard and compares them with the whole batch's.

Run by `torchrun`. Each rank also computes the reference alone, in float64, so that nothing but the
parallelism can make a difference. The exit says what was wrong, if anything.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import reweigh
from reweigh.torch import Reweighted, global_count

CLASSES, TOKENS = 4, 3


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, TOKENS, 5, dtype=torch.float64, generator=generator)
    y = torch.randint(0, CLASSES, (8, TOKENS), generator=generator)
    y[1, 2] = y[6, 0] = y[7, 1] = -100  # ranks hold different numbers of real tokens
    return x, y


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def flat(module: nn.Module) -> torch.Tensor:
    parts = []
    for parameter in module.parameters():
        assert parameter.grad is not None
        gradient = parameter.grad
        parts.append((gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).reshape(-1))
    return torch.cat(parts)


def losses_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(network(x).flatten(0, 1), y.flatten(), reduction="none")


def through_function(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: object) -> torch.Tensor:
    return reweigh.rgd(losses_of(network, x, y), tau=1.0, mask=y.flatten() != -100, **options)


def through_module(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: object) -> torch.Tensor:
    return Reweighted(nn.CrossEntropyLoss(), tau=1.0, level="token")(network(x).transpose(1, 2), y, **options)


def normalised(network: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: object) -> torch.Tensor:
    return reweigh.rgd(losses_of(network, x, y), tau=1.0, mask=y.flatten() != -100, normalize="mean", **options)


def backward_alone(network: nn.Module, loss: object, x: torch.Tensor, y: torch.Tensor) -> None:
    """The gradient of the whole batch in one process, with the formulas written out."""
    losses = losses_of(network, x, y)
    real = y.flatten() != -100
    weights = torch.exp(losses.detach().clip(0, 1) / 2)
    if loss is normalised:
        weights = weights / weights[real].mean()
    ((weights * losses)[real].sum() / real.sum()).backward()


def largest_error(loss: Callable[..., torch.Tensor], wrap: Callable[..., nn.Module], cut: int, counted: bool) -> float:
    """How far the shards' gradient is from the whole batch's, when rank 0 holds the first `cut` rows."""
    x, y = batch()
    if cut == 4 and not counted:
        y = torch.where(y == -100, 0, y)  # without a count, even shards must hold equally many real tokens
    reference = model()
    backward_alone(reference, loss, x, y)
    mine = slice(0, cut) if dist.get_rank() == 0 else slice(cut, None)
    network = wrap(model())
    options = {"count": global_count((y[mine] != -100).sum())} if counted else {}
    loss(network, x[mine], y[mine], **options).backward()
    return float((flat(network) - flat(reference)).abs().max())


def main() -> None:
    dist.init_process_group("gloo")
    wrong = []
    for loss, wrap in itertools.product(
        (through_function, through_module, normalised), (DistributedDataParallel, fully_shard)
    ):
        for cut, counted in ((4, False), (4, True), (6, True)):  # even shards, and six rows against two
            if not (error := largest_error(loss, wrap, cut, counted)) < 1e-12:
                wrong.append(f"{loss.__name__}, {wrap.__name__}, cut {cut}, counted {counted}: off by {error:.1e}")
        if not (error := largest_error(loss, wrap, 6, False)) > 1e-4:
            wrong.append(f"{loss.__name__}, {wrap.__name__}: uneven shards need a count, yet were off by {error:.1e}")
    rank = dist.get_rank()
    alone = [dist.new_group([member]) for member in range(2)][rank]  # as one of two tensor-parallel halves
    if float(global_count(3 + rank)) != 3.5 or float(global_count(3 + rank, group=alone)) != 3 + rank:
        wrong.append("a count over a group is not that of the group")
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        sys.exit("\n".join(wrong))
    # Threads of the process group now and then keep a finished interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
