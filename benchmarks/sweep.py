"""Many models at once against one after another: time per step, for all models together.

    python benchmarks/sweep.py [--quick] [--threads 1] [--out benchmarks/results/sweep.json]

K copies of an MLP 32-64-64-10, batch size 64, Adam, differ in tau, learning rate and start. The engine's time is that
of whole epochs of `reweigh.bench.train.stacked`, with drawing, statistics and scores in it; a sequential step is
drawing the
rows, forward, backward and update of one model, and counts K times. All take turns in one run, in processor time, on
one thread; the lower quartile is reported. Read the ratios, not the milliseconds.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from _timing import Call, console, in_turns, table, write
from torch import Tensor, nn

import reweigh
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Member, fit_many, worth_compiling
from reweigh.bench.train.task import Task

BATCH, STEPS, CLASSES = 64, 128, 10
MEMBERS = (5, 25, 100)
EAGER, COMPILED = "engine, eager", "engine, compiled"


def make_task() -> Task:
    generator = torch.Generator().manual_seed(0)
    n, held = BATCH * STEPS, 512
    x = torch.randn(n + 2 * held, 32, generator=generator)
    y = (x @ torch.randn(32, CLASSES, generator=generator)).argmax(1)
    parts = [n, held, held]
    (x_train, x_val, x_test), (y_train, y_val, y_test) = x.split(parts), y.split(parts)
    return Task(
        x_train=x_train, y_train=y_train, x_val=x_val, y_val=y_val, x_test=x_test, y_test=y_test,
        classes=tuple(map(str, range(CLASSES))),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


# --- the engine: one call is one epoch of all members ---


def engine(task: Task, k: int, compiled: bool) -> tuple[Call, float]:
    """An epoch, and the seconds that the first one took."""
    members = [
        Member(
            task=task,
            method=reweigh.method(f"rgd:tau={1 + 0.5 * (i % 17)}"),
            training=OptimizerPlan(optimizer="adam", lr=1e-3 * 1.05 ** (i % 23), batch_size=BATCH, epochs=2000),
            seeds=Seeds(i),
        )
        for i in range(k)
    ]
    epochs = fit_many(members, mlp, compiled=compiled)
    start = time.perf_counter()
    next(epochs)
    return lambda: next(epochs), time.perf_counter() - start


# --- one after another: one call is so many steps of one model ---


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return reweigh.rgd(F.cross_entropy(model(x), y, reduction="none"), tau=1.0)


def sequential(task: Task) -> Iterator[tuple[str, Call]]:
    def steps(step: Callable[[Tensor, Tensor], None]) -> Call:
        def call() -> None:
            for indices in torch.randperm(len(task.x_train)).split(BATCH):
                step(task.x_train[indices], task.y_train[indices])

        return call

    def step_of(fused: bool, compile_loss: bool) -> Callable[[Tensor, Tensor], None]:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
        loss = torch.compile(loss_of, fullgraph=True) if compile_loss else loss_of

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()

        return step

    yield "one by one, Adam", steps(step_of(fused=False, compile_loss=False))
    yield "one by one, fused Adam", steps(step_of(fused=True, compile_loss=False))
    yield "one by one, compiled, fused Adam", steps(step_of(fused=True, compile_loss=True))
    yield "one by one, whole step compiled", steps(torch.compile(step_of(fused=True, compile_loss=False)))


# --- the table ---


def measure(task: Task, k: int, seconds: float) -> dict[str, float]:
    """Milliseconds a step of all K models, of each way, and the seconds that compiling took."""
    eager, _ = engine(task, k, compiled=False)
    compiled, first = engine(task, k, compiled=True)
    alone = dict(sequential(task))
    found = in_turns({EAGER: eager, COMPILED: compiled, **alone}, seconds, turns=(9, 200))
    each = {name: value / STEPS / 1e3 for name, value in found.items()}
    return {name: value * (k if name in alone else 1) for name, value in each.items()} | {
        "compiling, seconds": first - each[COMPILED] * STEPS / 1e3
    }


def best(found: dict[str, float]) -> float:
    return min(value for name, value in found.items() if name.startswith("one by one"))


def compiles_from(k: int) -> int:
    parameters = k * sum(p.numel() for p in mlp().parameters())
    return next(steps for steps in range(0, 10**7, 100) if worth_compiling(steps, parameters))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sweep.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torch")
    torch.compiler.config.force_disable_caches = True  # of earlier runs, which would hide what compiling costs

    out, task = console(), make_task()
    results: dict[int, dict[str, float]] = {}
    with out.status("compiling and timing"):
        for k in MEMBERS:
            results[k] = measure(task, k, 20.0 if options.quick else 60.0)
    names = list(results[MEMBERS[0]])
    rows = [[name, *(f"{results[k][name]:.3f}" for k in MEMBERS)] for name in names]
    for name in (EAGER, COMPILED):
        ratios = [best(results[k]) / results[k][name] for k in MEMBERS]
        rows.append([f"best one by one / {name}", *(f"{ratio:.1f}" for ratio in ratios)])
    pays = [1e3 * results[k]["compiling, seconds"] / (results[k][EAGER] - results[k][COMPILED]) for k in MEMBERS]
    rows.append(["steps from which compiling pays", *(f"{p:,.0f}" if p > 0 else "never" for p in pays)])
    rows.append(["steps from which the engine compiles", *(f"{compiles_from(k):,}" for k in MEMBERS)])
    columns = ["milliseconds per step of all models", *(f"K = {k}" for k in MEMBERS)]
    out.print(table("Many models at once", columns, rows))

    content = {
        "threads": options.threads,
        "quick": options.quick,
        "milliseconds": {str(k): found for k, found in results.items()},
        "ratio": {
            str(k): {name: best(found) / found[name] for name in (EAGER, COMPILED)} for k, found in results.items()
        },
    }
    write(options.out, ["torch", "numpy"], content)
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
