"""How long it takes to draw 256 examples and update their weights, as the data set grows.

Run with `python benchmarks/samplers.py`; writes `results/samplers.json` next to this file. All contenders take
turns in one process on the same numbers, in processor time, so that a busy machine slows them alike; the lower
quartile is reported.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import torch
from _timing import Call, console, in_turns, table, write
from torch import Tensor
from torch.utils.data import WeightedRandomSampler

from reweigh.torch.samplers import Hardness, Importance, LiveSampler, PrimalDual, SumTree

BATCH = 256
TREE, MULTINOMIAL, WEIGHTED = "SumTree", "torch.multinomial", "WeightedRandomSampler"
Step = Callable[[Tensor, Tensor], None]


def tree_step(weights: Tensor) -> Step:
    tree = SumTree(weights)

    def step(u: Tensor, fresh: Tensor) -> None:
        tree.update(tree.draw(u), fresh)

    return step


def multinomial_step(weights: Tensor) -> Step:
    weights, generator = weights.clone(), torch.Generator().manual_seed(0)

    def step(u: Tensor, fresh: Tensor) -> None:
        weights[torch.multinomial(weights, BATCH, replacement=True, generator=generator)] = fresh

    return step


def weighted_step(weights: Tensor) -> Step:
    """The sampler of torch, asked for one batch at a time because its weights change after each."""
    weights = weights.clone()

    def step(u: Tensor, fresh: Tensor) -> None:
        weights[list(WeightedRandomSampler(weights, BATCH, replacement=True))] = fresh  # type: ignore[arg-type]

    return step


def sampler_step(sampler: LiveSampler) -> Step:
    """A whole step of a sampler: the batch as a list, its correction, and the update."""
    batches = iter(sampler)

    def step(u: Tensor, fresh: Tensor) -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(sampler)
            batch = next(batches)
        indices = torch.tensor(batch)
        sampler.sample_weight(indices, fresh)
        sampler.update(indices, fresh)

    return step


def contenders(n: int) -> dict[str, Step]:
    weights = 1.0 + torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return {
        TREE: tree_step(weights),
        MULTINOMIAL: multinomial_step(weights),
        WEIGHTED: weighted_step(weights),
        "Importance": sampler_step(Importance().start(n, batch_size=BATCH)),
        "Hardness": sampler_step(Hardness(beta=1.0).start(n, batch_size=BATCH)),
        "PrimalDual chi2": sampler_step(PrimalDual().start(n, batch_size=BATCH)),
        "PrimalDual kl": sampler_step(PrimalDual(divergence="kl", step=0.01).start(n, batch_size=BATCH)),
    }


def measure(n: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a step of each contender."""
    generator = torch.Generator().manual_seed(2)

    def uniform() -> Tensor:
        return torch.rand(BATCH, dtype=torch.float64, generator=generator)

    numbers = [(uniform(), 1.0 + uniform()) for _ in range(64)]

    def call(step: Step) -> Call:
        following = itertools.cycle(numbers)
        return lambda: step(*next(following))

    found = in_turns({name: call(step) for name, step in contenders(n).items()}, seconds, turns=(20, 1000))
    return {name: microseconds / 1e3 for name, microseconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="time spent on each size")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "samplers.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [10**k for k in range(4, 8)]
    results = {n: measure(n, options.seconds) for n in sizes}

    rows: list[list[str]] = []
    for name in results[sizes[0]]:
        times = [results[n][name] for n in sizes]
        rows.append([name, *(f"{value:.3f}" for value in times), f"x {times[-1] / times[0]:.1f}"])
    ratios = {n: results[n][MULTINOMIAL] / results[n][TREE] for n in sizes}
    rows.append(["multinomial / SumTree", *(f"{ratios[n]:.1f}" for n in sizes), ""])
    columns = ["", *(f"n = {n:,}" for n in sizes), "growth, n x 1000"]
    console().print(table(f"draw and update {BATCH} of n, ms, one thread", columns, rows))

    content = {
        "batch": BATCH,
        "threads": 1,
        "milliseconds": {str(n): results[n] for n in sizes},
        "multinomial_over_tree": {str(n): ratios[n] for n in sizes},
        # The exponent of n in the time, from the first size to the last: 0 for a logarithm, 1 for a scan.
        "exponent": {
            name: math.log(results[sizes[-1]][name] / results[sizes[0]][name]) / math.log(sizes[-1] / sizes[0])
            for name in results[sizes[0]]
        },
    }
    write(options.out, ["torch"], content)


if __name__ == "__main__":
    main()
