"""Rows per second of MET-S: training steps, plain and re-weighted, and encoding whole rows.

    python benchmarks/tabular.py [--quick] [--out benchmarks/results/tabular.json]

On one thread, in processor time, all calls of a size taking turns within one run, so that a busy machine disturbs all
alike: ratios hold where rows per second do not. Training is one step on one batch (masks, forward, backward, Adam), as
`METS.fit` does it; "MET" is its adversarial step, of which every second one is such; "torch's layers" is the same
reconstruction with `nn.TransformerEncoderLayer` in place of our blocks. The ratio is the time of re-weighted training
over that of plain training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _timing import console, in_turns, table, write
from torch import nn

import reweigh
from reweigh.bench.recipes.algorithms.tabular import MET, METS
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.programs.rows import RowNetwork
from reweigh.objectives._base import Objective

#: Name, columns, batch, and the sizes of the network.
SIZES: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("cpu preset, table", 54, 16, {"embedding": 15, "blocks": 2, "feed_forward": 32}),
    ("cpu preset, 14 x 14 pixels", 196, 16, {"embedding": 15, "blocks": 2, "feed_forward": 32}),
    ("paper's network, table", 54, 126, {"embedding": 64, "blocks": 6, "feed_forward": 64}),
)
ENCODED = 256


def step(network: RowNetwork, x: torch.Tensor, objective: Objective) -> Callable[[], object]:
    """One training step on these rows, on and on."""
    optimizer, live = torch.optim.Adam(network.parameters(), lr=1e-4), LiveObjective(objective)
    draw = torch.Generator().manual_seed(0)
    network.train()

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        live(network.losses(x, draw, 1, 1)).backward()
        optimizer.step()

    return once


def encoding(network: RowNetwork, x: torch.Tensor) -> Callable[[], object]:
    network.eval()

    @torch.no_grad()
    def once() -> object:
        return network.encode(x)

    return once


def with_torch_layers(network: Any, width: int, feed_forward: int) -> RowNetwork:
    """The same network with torch's own blocks."""
    for part in (network.encoder, network.decoder):
        for i in range(len(part)):
            part[i] = nn.TransformerEncoderLayer(width, 1, feed_forward, dropout=0.0, batch_first=True)
    return network


def measure(columns: int, batch: int, sizes: dict[str, int], seconds: float) -> dict[str, float]:
    """Rows per second of each call."""
    plain, rgd = reweigh.method("mean").objective, reweigh.RGD(tau=1.0)
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(0))
    rows = torch.randn(ENCODED, columns, generator=torch.Generator().manual_seed(1))
    settings: dict[str, Any] = {**sizes, "dropout": 0.0}

    def fresh() -> Any:
        torch.manual_seed(0)
        return METS(**settings).network(columns)

    width, feed_forward = sizes["embedding"] + 1, sizes["feed_forward"]
    calls: dict[str, Callable[[], object]] = {
        "train": step(fresh(), x, plain),
        "train, rgd": step(fresh(), x, rgd),
        "train, torch's layers": step(with_torch_layers(fresh(), width, feed_forward), x, plain),
        "train, MET": step(MET(**settings, warmup=0).network(columns), x, plain),
        "encode": encoding(fresh(), rows),
    }
    found = in_turns(calls, seconds)
    return {name: (ENCODED if name == "encode" else batch) / (time * 1e-6) for name, time in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns: checks that it runs, not how fast")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "tabular.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name, columns, batch, sizes in SIZES[:1] if options.quick else SIZES:
        found[name] = measure(columns, batch, sizes, 1.0 if options.quick else 20.0)
    lines = [
        [name, *(f"{speeds[call]:,.0f}" for call in speeds), f"{speeds['train'] / speeds['train, rgd']:.2f}"]
        for name, speeds in found.items()
    ]
    heads = ["rows per second", *next(iter(found.values())), "ratio"]
    console().print(table("MET-S", heads, lines))
    described = {name: {"columns": columns, "batch": batch, **sizes} for name, columns, batch, sizes in SIZES}
    results = {name: {**described[name], "rows_per_second": speeds} for name, speeds in found.items()}
    write(options.out, ("torch", "scikit-learn"), {"threads": 1, "encoded_at_once": ENCODED, "results": results})


if __name__ == "__main__":
    main()
