"""Meta-training steps: all tasks as one program (`vmap`) against one task after another.

    python benchmarks/meta.py [--quick] [--threads 1] [--out benchmarks/results/meta.json]

A step is the meta-gradient of one meta-batch, random images, no optimiser. Both ways of one setting are timed in turns
within one run, in processor time; the lower quartile of the turns is reported, in milliseconds, and the ratio of the
loop to the program. Which of the two is faster is what `batched` of an algorithm should be. A last line says what
weighing tasks costs: RGD against the plain mean, same step.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# bf16 matrix products kill the process on machines that advertise AMX but cannot execute it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import numpy as np
import torch
from _timing import Call, console, in_turns, table, write
from torch import Tensor, nn

import reweigh
from reweigh.bench import models
from reweigh.bench.recipes import sinusoid
from reweigh.bench.recipes.algorithms import meta
from reweigh.bench.recipes.algorithms.meta import MAML, Episodes, MetaAlgorithm, squared_error

#: Algorithm, its options, filters and how images are halved; five ways, one shot, five queries, eight tasks.
CONV4: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("maml", {}, 16, "stride"),
    ("maml", {}, 32, "stride"),
    ("maml", {}, 64, "stride"),
    ("maml", {}, 32, "pool"),
    ("maml", {}, 64, "pool"),
    ("maml", {"first_order": True}, 32, "stride"),
    ("protonet", {}, 32, "stride"),
    ("matching", {}, 32, "stride"),
    ("reptile", {}, 32, "stride"),
)
WAYS, QUERIES, TASKS = 5, 5, 8
ONE_PROGRAM, LOOP = "one program", "one by one"


def episodes(side: int = 28) -> Episodes:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(WAYS).repeat(TASKS, 1)
    return Episodes(
        support_x=torch.rand(TASKS, WAYS, 1, side, side, generator=draw),
        support_y=labels,
        query_x=torch.rand(TASKS, WAYS * QUERIES, 1, side, side, generator=draw),
        query_y=labels.repeat_interleave(QUERIES, 1),
    )


def step(
    algorithm: MetaAlgorithm, model: nn.Module, tasks: Episodes, objective: Callable[[Tensor], Tensor] = torch.mean
) -> Call:
    def call() -> None:
        model.zero_grad()
        algorithm.descend(model, tasks, WAYS, objective)

    return call


def both(name: str, model: nn.Module, tasks: Episodes, **options: Any) -> dict[str, Call]:
    ways = {ONE_PROGRAM: True, LOOP: False}
    return {way: step(meta.build(name, batched=batched, **options), model, tasks) for way, batched in ways.items()}


def settings() -> dict[str, dict[str, Call]]:
    """The calls of each setting."""
    found: dict[str, dict[str, Call]] = {}
    for name, options, width, downsample in CONV4:
        model = models.build("conv4", (1, 28, 28), WAYS, width=width, downsample=downsample, statistics="batch")
        words = "".join(f", {option.replace('_', ' ')}" for option in options)
        found[f"{name}{words}, Conv-4 of {width}, {downsample}"] = both(name, model, episodes(), **options)
    waves = sinusoid.Waves(sinusoid.PRESETS["smoke"]).draw(np.random.default_rng(0), 25)
    mlp = models.build("mlp", (1,), 1, hidden=(40, 40))
    found["maml, MLP of 40-40, 25 sinusoids"] = both("maml", mlp, waves, loss=squared_error, inner_lr=0.01)
    return found


def weighing() -> dict[str, Call]:
    """The same step with the plain mean and with weights."""
    model = models.build("conv4", (1, 28, 28), WAYS, width=32, downsample="stride", statistics="batch")
    algorithm, tasks = MAML(), episodes()
    return {"mean": step(algorithm, model, tasks), "rgd": step(algorithm, model, tasks, reweigh.RGD(tau=1.0))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "meta.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    seconds, turns = (4.0, (5, 50)) if options.quick else (20.0, (9, 200))

    out, results = console(), {}
    with out.status("timing"):
        for name, calls in settings().items():
            results[name] = {way: t / 1e3 for way, t in in_turns(calls, seconds, turns=turns).items()}
        weighed = {way: t / 1e3 for way, t in in_turns(weighing(), seconds, turns=turns).items()}
    rows = [
        [name, f"{t[ONE_PROGRAM]:.1f}", f"{t[LOOP]:.1f}", f"{t[LOOP] / t[ONE_PROGRAM]:.2f}"]
        for name, t in results.items()
    ]
    heads = ["milliseconds per step", ONE_PROGRAM, LOOP, f"{LOOP} / {ONE_PROGRAM}"]
    out.print(table(f"Meta-batches of {TASKS} tasks, {WAYS}-way 1-shot, {QUERIES} queries", heads, rows))
    out.print(f"rgd / mean, MAML, Conv-4 of 32, stride: {weighed['rgd'] / weighed['mean']:.3f}")
    content = {
        "threads": options.threads,
        "quick": options.quick,
        "milliseconds": results,
        "ratio": {name: t[LOOP] / t[ONE_PROGRAM] for name, t in results.items()},
        "rgd": {"milliseconds": weighed, "ratio": weighed["rgd"] / weighed["mean"]},
    }
    write(options.out, ["torch", "numpy"], content)
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
