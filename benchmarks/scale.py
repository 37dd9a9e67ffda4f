"""What a step costs on one process and on two: processor time, and what processes say to one another.

    python benchmarks/scale.py [--turns 40] [--out benchmarks/results/scale.json]

A vision transformer of 4 layers and width 96 on images of 32 pixels, 32 images per process, AdamW. All methods take
turns within the same processes, each a whole step; the lower quartile of processor time over the turns is kept, the
slower process counts. Messages are counted by wrapping `torch.distributed.all_reduce` and `all_gather` for what an
objective says, and by the buckets of DistributedDataParallel for gradients. Read the ratios, not the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from _timing import console, table, write
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reweigh.bench import models
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.objective import LiveObjective
from reweigh.method import Context, method

METHODS = ("mean", "rgd", "rgd:normalize=mean", "term:t=1", "absgd", "cvar:alpha=0.5", "rgd+sam")
SHARE = 32


class Counted:
    """Messages and bytes of a kind."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.messages += 1
        self.bytes += tensor.numel() * tensor.element_size()


def make_step(text: str, words: Counted, gradients: Counted):
    torch.manual_seed(0)
    model: nn.Module = models.build("vit:patch=4,depth=4,width=96,heads=3", (3, 32, 32), 10)
    if processes.world() > 1:
        model = DistributedDataParallel(model)

        def hook(state, bucket):
            gradients.add(bucket.buffer())
            buffer = bucket.buffer().div_(processes.world())
            return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])

        model.register_comm_hook(None, hook)
    built = method(text).build(Context(n=1000, class_counts=[100] * 10, steps=1000))
    live, optimizer = LiveObjective(built.objective), torch.optim.AdamW(model.parameters(), lr=1e-4)
    stepper = built.step.start(model)
    x, y = torch.randn(SHARE, 3, 32, 32), torch.randint(0, 10, (SHARE,))
    reduce, gather = dist.all_reduce, dist.all_gather

    def reduce_aloud(tensor: torch.Tensor, *rest: object, **more: object) -> object:
        words.add(tensor)
        return reduce(tensor, *rest, **more)

    def gather_aloud(parts: list[torch.Tensor], tensor: torch.Tensor, *rest: object, **more: object) -> object:
        words.add(tensor)
        return gather(parts, tensor, *rest, **more)

    def loss() -> torch.Tensor:
        losses = built.loss(model(x), y)
        dist.all_reduce, dist.all_gather = reduce_aloud, gather_aloud
        try:
            return live(losses)
        finally:
            dist.all_reduce, dist.all_gather = reduce, gather

    def step() -> None:
        stepper.step(optimizer, loss)
        live.advance()

    return step


def measure(turns: int) -> dict[str, dict[str, float]]:
    """Each method's step on the processes there are."""
    torch.set_num_threads(1)
    words = {text: Counted() for text in METHODS}
    gradients = {text: Counted() for text in METHODS}
    steps = {text: make_step(text, words[text], gradients[text]) for text in METHODS}
    for step in steps.values():
        step()
        step()
    for counted in (*words.values(), *gradients.values()):
        counted.messages = counted.bytes = 0
    times: dict[str, list[float]] = {text: [] for text in METHODS}
    for turn in range(turns):
        shift = turn % len(METHODS)
        for text in METHODS[shift:] + METHODS[:shift]:
            begin = time.process_time()
            steps[text]()
            times[text].append(time.process_time() - begin)
    found = {}
    for text in METHODS:
        slowest = max(processes.gathered(float(np.quantile(times[text], 0.25))))
        found[text] = {
            "milliseconds": 1e3 * slowest,
            "messages": words[text].messages / turns,
            "bytes": words[text].bytes / turns,
            "gradient_messages": gradients[text].messages / turns,
            "gradient_bytes": gradients[text].bytes / turns,
        }
    return found


def on(count: int, turns: int) -> dict[str, dict[str, float]]:
    """Measure on so many processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        subprocess.run([*command, __file__, "--turns", str(turns), "--worker", str(out)], check=True)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "scale.json")
    parser.add_argument("--worker", type=Path)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        processes.join()
        found = measure(chosen.turns)
        if processes.rank() == 0:
            chosen.worker.write_text(json.dumps(found))
        processes.barrier()
        os._exit(0)
    found = {count: on(count, chosen.turns) for count in (1, 2)}
    rows = [
        (
            text,
            *(f"{found[count][text]['milliseconds'] / found[count]['mean']['milliseconds']:.3f}" for count in (1, 2)),
            f"{found[2][text]['messages']:g}",
            f"{found[2][text]['bytes']:g}",
            f"{found[2][text]['gradient_bytes'] / 1e6:.2f}",
        )
        for text in METHODS
    ]
    heads = ("method", "1 process", "2 processes", "messages", "bytes", "gradients, MB")
    console().print(table("processor time of a step relative to the plain mean; words on two processes", heads, rows))
    write(chosen.out, ("torch", "numpy"), {"turns": chosen.turns, "found": found})


if __name__ == "__main__":
    main()
