"""Two processes give the gradients of one: DDP and FSDP2, even and uneven shards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import pytest
import torch

from reweigh.torch import global_count

WORKERS = Path(__file__).parent / "workers"


@pytest.mark.processes
def test_gradients_of_shards_are_those_of_the_batch():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = children.run(
        [*command, WORKERS / "gradients.py"], env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    )
    assert finished.returncode == 0, finished.stderr[-3000:]


def test_one_process_counts_itself():
    assert global_count(32).item() == 32
    mask = torch.tensor([True, True, False])
    assert global_count(mask.sum()).item() == 2
    total = torch.tensor(5.0)
    assert global_count(total) is not total
