"""Re-weighting under DistributedDataParallel, with shards of different sizes.

    torchrun --nproc-per-node=2 examples/ddp.py

DDP averages gradients over ranks, so the denominator is the number of examples on all ranks divided by the number of
ranks: `global_count`. Prints how far the gradient is from that of one process with the whole batch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reweigh.torch import Reweighted, global_count


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x, y = torch.randn(64, 8), torch.randint(4, (64,))
    mine = torch.arange(64) ** 2 * ranks // 64**2 == rank  # uneven on purpose
    criterion = Reweighted(nn.CrossEntropyLoss(), tau=3.0)

    model = DistributedDataParallel(make_model())
    loss = criterion(model(x[mine]), y[mine], count=global_count(int(mine.sum())))
    loss.backward()

    alone = make_model()
    criterion(alone(x), y).backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    difference = max(float((ours.grad - whole.grad).abs().max()) for ours, whole in pairs)
    shares = [torch.zeros(1, dtype=torch.long) for _ in range(ranks)]
    dist.all_gather(shares, mine.sum()[None])
    if rank == 0:
        sizes = " + ".join(str(int(size)) for size in shares)
        print(f"DDP, {ranks} ranks with {sizes} examples: largest gradient difference to one process {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
