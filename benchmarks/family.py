"""What the methods of the family cost: objectives against the plain mean, steps against the plain step.

    python benchmarks/family.py [--quick] [--threads 1] [--peers] [--out benchmarks/results/family.json]

An objective's time is that of the number it makes of a vector of losses and of the gradient back to them; a step's is
that of the whole step on a small model, with its meta batch where it needs one. `--peers` makes an environment of its
own, once, in the user's cache, installs other libraries there, and times the same work of theirs and ours beside one
another. All calls of a setting take turns in one run, in processor time; the lower quartile is reported. Read the
ratios, not the microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _timing import Call, console, in_turns, table, write
from rich.console import Console
from torch import Tensor

import reweigh
from reweigh.bench import models
from reweigh.method import Context, names
from reweigh.objectives._base import Objective, state_like
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import Closure

SIZES = (256, 65536)
GROUPS = 8
STEPS = ("plain", "sam", "recover", "l2rw", "meta_weight_net", "fine_tune")
#: What each peer's timed parts need to be imported, beside torch; never torchvision, which would replace it.
PEERS = {"absgd": (), "dro": ("scipy",), "libauc": ("scipy", "scikit-learn", "pandas", "tqdm")}

Times = dict[str, float]


# --- objectives ---


def make_losses(size: int) -> Tensor:
    """Losses as of a model half-way through training: most small, some large."""
    return torch.empty(size).exponential_(1.0, generator=torch.Generator().manual_seed(0)).requires_grad_()


def objective_call(objective: Objective, losses: Tensor, groups: Tensor) -> Call:
    state: Any = state_like(objective.init(), losses)

    def call() -> None:
        nonlocal state
        losses.grad = None
        loss, state = objective.apply(losses, state, groups=groups)
        loss.backward()

    return call


def mean_call(losses: Tensor) -> Call:
    def call() -> None:
        losses.grad = None
        losses.mean().backward()

    return call


def objectives(size: int, seconds: float) -> Times:
    losses = make_losses(size)
    groups = torch.arange(size) % GROUPS
    context = Context(n=size, n_groups=GROUPS)
    calls = {
        name: objective_call(reweigh.method(name).build(context).objective, losses, groups)
        for name in names("objective")
    }
    return in_turns({"torch.mean": mean_call(losses), **calls}, seconds)


# --- steps ---


def step_call(name: str, kind: str, shape: tuple[int, ...], batch: int) -> Call:
    torch.manual_seed(0)
    model = models.build(kind, shape, 10)
    x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
    context = Context(n=batch, meta_loader=(x, y), steps=10**9)
    stepper = reweigh.method(name).build(context).step.start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    closure = Closure(model=model, batch=(x, y), losses=CrossEntropy(), meta_batch=(x, y))
    return lambda: stepper.step(optimizer, closure)


def steps(seconds: float) -> Iterator[tuple[str, Times]]:
    settings: dict[str, tuple[str, tuple[int, ...], int]] = {
        "mlp 64-64-64-10, B = 64": ("mlp", (64,), 64),
        "cnn on 1 x 28 x 28, B = 64": ("cnn", (1, 28, 28), 64),
    }
    for setting, of_model in settings.items():
        yield setting, in_turns({name: step_call(name, *of_model) for name in STEPS}, seconds)


# --- peers ---


def peers(where: Path, threads: int, seconds: float, out: Console) -> list[dict[str, Any]]:
    """Their time and ours for the same work, measured in an environment that has both."""
    python = where / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        out.print(f"making an environment for other libraries in {where}")
        venv.create(where, with_pip=True)
    ours = f"torch=={torch.__version__.partition('+')[0]}"
    if not install(python, [ours, "numpy", "rich"], out):
        return []
    for name, needed in PEERS.items():
        if not needed or install(python, [ours, *needed], out):
            install(python, ["--no-deps", name], out)
    found: list[dict[str, Any]] = []
    worker = Path(__file__).parent / "_peers.py"
    path = os.pathsep.join([str(Path(reweigh.__file__).parents[1]), str(worker.parent)])
    for name in PEERS:
        command = [str(python), "-W", "ignore", str(worker), name, str(threads), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
        if done.returncode == 0:
            found += json.loads(done.stdout)
        else:
            out.print(f"{name} could not be timed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return found


def install(python: Path, what: list[str], out: Console) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        out.print(f"pip install {' '.join(what)} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return done.returncode == 0


def cache_folder() -> Path:
    return Path(os.environ.get("REWEIGH_CACHE") or Path.home() / ".cache" / "reweigh") / "benchmark-peers"


# --- tables ---


def against(times: Times, reference: str) -> list[list[str]]:
    return [[name, f"{t:,.1f}", f"{t / times[reference]:.2f}"] for name, t in times.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="time other libraries too")
    parser.add_argument("--peers-folder", type=Path, default=cache_folder(), help="where their environment is kept")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "family.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seconds = 4.0 if options.quick else 20.0
    out = console()

    with out.status("timing objectives"):
        by_size = {size: objectives(size, seconds) for size in SIZES}
    rows = [[name] for name in by_size[SIZES[0]]]
    for row in rows:
        for times in by_size.values():
            row += [f"{times[row[0]]:,.1f}", f"{times[row[0]] / times['mean']:.2f}"]
    columns = ["objective", *(text for size in SIZES for text in (f"B = {size}, µs", "/ mean"))]
    out.print(table("Forward and backward of an objective", columns, rows))

    with out.status("timing steps"):
        of_steps = dict(steps(seconds))
    for setting, times in of_steps.items():
        out.print(table(f"A step, {setting}", ["step", "µs", "/ plain"], against(times, "plain")))

    of_peers: list[dict[str, Any]] = []
    if options.peers:
        of_peers = peers(options.peers_folder, options.threads, seconds / 4, out)
        columns = ["theirs beside ours", "B", "theirs, µs", "ours, µs", "theirs / ours", "values differ by"]
        rows = [
            [p["work"], f"{p['size']}", f"{p['theirs']:,.1f}", f"{p['ours']:,.1f}", f"{p['theirs'] / p['ours']:.2f}",
             f"{p['difference']:.1e}"]
            for p in of_peers
        ]  # fmt: skip
        out.print(table("Other libraries", columns, rows))

    content = {
        "threads": options.threads,
        "quick": options.quick,
        "objectives, microseconds": {str(size): times for size, times in by_size.items()},
        "steps, microseconds": of_steps,
        "peers": of_peers,
    }
    write(options.out, ["torch", "numpy"], content)
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
