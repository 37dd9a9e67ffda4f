"""One rank of a Trainer: two processes with two micro-batches of two rows each. Run by `torchrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests of the Trainer
sys.path.insert(0, str(Path(__file__).parents[2]))  # and what they import

import torch
import torch.distributed as dist
from test_transformers import TASKS, TAU, rows, trained

from reweigh.integrations.transformers import loss


def main() -> None:
    folder = Path(sys.argv[1])
    for name in ("classification", "language model"):
        build, label, options, _ = TASKS[name]
        after, trainer = trained(
            build(),
            rows(label),
            folder,
            loss(tau=TAU, **options),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            ddp_backend="gloo",
        )
        assert trainer.args.world_size == 2
        if dist.get_rank() == 0:
            torch.save(after, folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # What the test wants is on disk. Threads of the process group now and then keep an interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
