"""One rank of TRL's trainer with weights per token, in two micro-batches of two rows. Run by `torchrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests of TRL
sys.path.insert(0, str(Path(__file__).parents[2]))  # and what they import

import torch
import torch.distributed as dist
from test_trl import TAU, parameters
from test_trl_weights import sft, weighted_rows

from reweigh.integrations.trl import reweigh_sft


def main() -> None:
    folder = Path(sys.argv[1])
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}
    for level in ("token", "sequence"):
        for chunked in (False, True):
            host = sft(folder, weighted_rows(True), **settings)
            reweigh_sft(host, tau=TAU, level=level, weight_column="weight", chunked=chunked).train()
            assert host.args.world_size == 2
            if dist.get_rank() == 0:
                torch.save(parameters(host.model), folder / f"{level}-{chunked}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # What the test wants is on disk. Threads of the process group now and then keep an interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
