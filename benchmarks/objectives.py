"""What each objective costs beside the line one would write by hand, and beside other libraries.

    python benchmarks/objectives.py [--quick] [--threads 1] [--out benchmarks/results/objectives.json]

The time is that of the number made of a vector of losses, without masks or weights of their own, and of the gradient
back to the losses. All calls of a setting take turns in one run, in processor time; the lower quartile is reported.
Read the ratios, not the microseconds. A peer that is not installed is left out, with the reason; fast-dro is not a
package: put a checkout of it on `PYTHONPATH`.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _peers import PEERS, losses_of, objective_of, version
from _plain import GROUPS, TEXTS, jax_lines, jax_state, torch_lines
from _timing import Call, console, in_turns, table, write
from rich.console import Console
from torch import Tensor

import reweigh
from reweigh.method import Context
from reweigh.objectives._base import Objective, state_like

SIZES = (256, 65536)
Record = dict[str, Any]


def built(text: str, size: int) -> Objective:
    return reweigh.method(text).build(Context(n=size, n_groups=GROUPS)).objective


def threaded(objective: Objective, like: Tensor, groups: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """An objective as a function of the losses; its state goes from call to call."""
    state: Any = state_like(objective.init(), like)
    beside = {"groups": groups} if "n_groups" in getattr(objective, "needs", ()) else {}

    def loss(losses: Tensor) -> Tensor:
        nonlocal state
        value, state = objective.apply(losses, state, **beside)
        return value

    return loss


def call(loss: Callable[[Tensor], Tensor], at: Tensor) -> Call:
    leaf = at.clone().requires_grad_()

    def run() -> Tensor:
        leaf.grad = None
        value = loss(leaf)
        value.backward()
        return value.detach()

    return run


def in_torch(size: int, seconds: float) -> list[Record]:
    """Ours over the hand-written line, the faster one where there are two."""
    losses, groups = losses_of(size), torch.arange(size) % GROUPS
    lines = torch_lines(size, groups)
    records: list[Record] = []
    for name, text in TEXTS.items():
        calls = {f"line {i}": call(line, losses) for i, line in enumerate(lines[name])}
        calls["ours"] = call(threaded(built(text, size), losses, groups), losses)
        times = in_turns(calls, seconds)
        ours = times.pop("ours")
        line = min(times.values())
        records.append({"objective": name, "size": size, "line": line, "ours": ours, "ratio": ours / line})
    return records


def in_jax(size: int, seconds: float) -> list[Record]:
    """The same under `jit`, value and gradient of one compiled program."""
    import jax
    import jax.numpy as jnp

    losses, groups = jnp.asarray(losses_of(size).numpy()), jnp.arange(size) % GROUPS

    def run(function: Callable[[Any, Any], tuple[Any, Any]], state: Any) -> Call:
        step = jax.jit(jax.value_and_grad(function, has_aux=True))

        def one() -> Any:
            nonlocal state
            (value, state), gradient = step(losses, state)
            return jax.block_until_ready((value, gradient))[0]

        return one

    records: list[Record] = []
    for name, line in jax_lines(size, groups).items():
        objective = built(TEXTS[name], size)
        beside = {"groups": groups} if "n_groups" in getattr(objective, "needs", ()) else {}

        def ours(v: Any, state: Any, objective: Objective = objective, beside: Any = beside) -> tuple[Any, Any]:
            return objective.apply(v, state, **beside)

        start = jax.tree.map(jnp.asarray, objective.init())
        times = in_turns({"line": run(line, jax_state(name)), "ours": run(ours, start)}, seconds)
        records.append({"objective": name, "size": size, **times, "ratio": times["ours"] / times["line"]})
    return records


def of_peers(size: int, seconds: float, out: Console) -> list[Record]:
    """Ours over theirs."""
    records: list[Record] = []
    for name, works in PEERS.items():
        try:
            todo = list(works(size))
        except Exception as reason:  # whatever keeps another library from being imported
            if size == SIZES[0]:
                out.print(f"{name} is left out: {type(reason).__name__}: {reason}")
            continue
        for work in todo:
            ours = threaded(objective_of(work.ours), work.at) if isinstance(work.ours, str) else work.ours
            calls = {"theirs": call(work.theirs, work.at), "ours": call(ours, work.at)}
            times = in_turns(calls, seconds)
            values = {side: float(one()) for side, one in calls.items()}  # after many steps: averages have settled
            difference = abs(values["theirs"] - values["ours"]) / abs(values["ours"])
            record = {"work": work.name, "size": size, "version": version(name), **times, "difference": difference}
            records.append(record | {"ratio": times["ours"] / times["theirs"]})
    return records


def side_by_side(records: list[Record], key: str, other: str) -> list[list[str]]:
    """One row for each piece of work, with the sizes beside one another."""
    rows: dict[str, list[str]] = {}
    for record in records:
        row = rows.setdefault(record[key], [record[key]])
        row += [f"{record[other]:,.1f}", f"{record['ours']:,.1f}", f"{record['ratio']:.2f}"]
    width = max(map(len, rows.values()), default=0)
    return [row + ["-"] * (width - len(row)) for row in rows.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("torch", "jax", "peers"), help="one of the three tables")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "objectives.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of other libraries, about themselves
    seconds = 0.4 if options.quick else 1.5
    out = console()
    parts: dict[str, tuple[str, str, Callable[[int], list[Record]]]] = {
        "torch": ("objective", "line", lambda size: in_torch(size, seconds)),
        "jax": ("objective", "line", lambda size: in_jax(size, seconds)),
        "peers": ("work", "theirs", lambda size: of_peers(size, seconds, out)),
    }
    content: dict[str, Any] = {"threads": options.threads, "quick": options.quick}
    for part, (key, other, measure) in parts.items():
        if options.only in (None, part):
            records = [record for size in SIZES for record in measure(size)]
            columns = [key, *(text for size in SIZES for text in (f"{size:,}: {other}, µs", "ours, µs", "ratio"))]
            rows = side_by_side(records, key, other)
            if rows:
                out.print(table(f"Forward and backward, {part}", columns[: len(rows[0])], rows))
            worst = max((record["ratio"] for record in records), default=np.nan)
            out.print(f"largest ratio: {worst:.2f}")
            content[part] = records
    if options.only is None:
        write(options.out, ["torch", "numpy", "jax"], content)
        out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
