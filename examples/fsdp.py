"""Re-weighting under fully sharded data parallel (FSDP2): nothing but the model changes.

    torchrun --nproc-per-node=2 examples/fsdp.py

Three steps of Adam on both sides; prints how far the sharded parameters are from those of one process with the
whole batch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from reweigh.torch import Reweighted, global_count


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x, y = torch.randn(3, 64, 8), torch.randint(4, (3, 64))
    mine = slice(rank, 64, ranks)
    criterion = Reweighted(nn.CrossEntropyLoss(), tau=3.0)

    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    alone = make_model()
    optimizer_alone = torch.optim.Adam(alone.parameters(), lr=1e-2)
    for batch, labels in zip(x, y, strict=True):
        optimizer.zero_grad()
        criterion(model(batch[mine]), labels[mine], count=global_count(len(labels[mine]))).backward()
        optimizer.step()
        optimizer_alone.zero_grad()
        criterion(alone(batch), labels).backward()
        optimizer_alone.step()

    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    difference = max(float((ours.full_tensor() - whole).detach().abs().max()) for ours, whole in pairs)
    if rank == 0:
        print(f"FSDP2, {ranks} ranks, 3 steps: largest parameter difference to one process {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
