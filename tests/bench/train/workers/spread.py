"""One of several processes: trains every method in every way, whole, stopped and resumed, under a folder.

Run by `torchrun`, with the folder as its argument. What it leaves there is compared with one process by the test.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from small_training import METHODS, StoppedError, stop_at, train

from reweigh.bench.train import distributed as processes


def main() -> None:
    torch.set_num_threads(1)
    processes.join()
    root = Path(sys.argv[1])
    for parallel in ("ddp", "fsdp"):
        for number, text in enumerate(METHODS):
            train(root / f"whole-{parallel}-{number}", text, parallel=parallel)
        # One process wrote the first part of this run.
        train(root / f"one-then-two-{parallel}", "rgd+ema:decay=0.9", parallel=parallel)
        # One process will write the rest of this one.
        undo = stop_at(7)
        with contextlib.suppress(StoppedError):
            train(root / f"two-then-one-{parallel}", "rgd+ema:decay=0.9", parallel=parallel)
        undo()
        processes.barrier()
    # Threads of the process group now and then keep a finished interpreter from ending.
    os._exit(0)


if __name__ == "__main__":
    main()
