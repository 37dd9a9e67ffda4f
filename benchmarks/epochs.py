"""Which epoch counts? Four rules on the same trainings: accuracy, and how sharply they tell two methods apart.

    python benchmarks/epochs.py [--quick] [--seeds 20] [--out benchmarks/results/epochs.json]

Long-tailed digits and a small long-tailed part of Fashion-MNIST, an MLP, twenty paired draws, with an annealed and with
a constant learning rate. The rules: the last epoch; the epoch that is best on each run's own validation rows; the same
after a moving average over five epochs; and one epoch for all draws, the best on average.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _timing import table, write
from rich.console import Console

from reweigh.bench.lab.stats import paired
from reweigh.bench.recipes import longtail
from reweigh.method import method

Array = np.ndarray[Any, Any]

METHODS = ("mean", "rgd", "rgd:normalize=mean")
DATA: dict[str, dict[str, Any]] = {
    **{f"digits, imbalance {i:g}": {"imbalance": i} for i in (200.0, 100.0, 20.0, 1.0)},
    "Fashion-MNIST, imbalance 100": {"data": "fashion_mnist", "imbalance": 100.0, "n_max": 300, "meta": 0},
}
WINDOW = 5


def last(val: Array) -> Array:
    """The last epoch."""
    return np.full(len(val), val.shape[1] - 1)


def own(val: Array) -> Array:
    """The best epoch of each run, the earliest of ties."""
    return val.argmax(1)


def smoothed(val: Array) -> Array:
    """The best epoch of each run after a moving average, which is shorter at both ends."""
    kernel = np.ones(WINDOW)
    width = np.convolve(np.ones(val.shape[1]), kernel, mode="same")
    return np.stack([np.convolve(row, kernel, mode="same") / width for row in val]).argmax(1)


def pooled(val: Array) -> Array:
    """The epoch that is best on average over runs."""
    return np.full(len(val), int(val.mean(0).argmax()))


RULES: dict[str, Callable[[Array], Array]] = {
    "last epoch": last, "best of each run": own, "best after smoothing": smoothed, "best on average": pooled,
}  # fmt: skip


def curves(settings: longtail.Settings, text: str, seeds: int) -> tuple[Array, Array]:
    """Validation and test scores by seed and epoch."""
    members = [(settings, method(text), seed, None) for seed in range(seeds)]
    records = list(longtail.train_group(members))
    keys = ("val/balanced_accuracy", "test/accuracy")
    val, test = (np.array([[record[key] for record in epoch] for epoch in records]).T for key in keys)
    return val, test


def measure(settings: longtail.Settings, seeds: int) -> dict[str, dict[str, Any]]:
    """By rule: plain training's accuracy, and the difference of each method to it."""
    found = {text: curves(settings, text, seeds) for text in METHODS}

    def scores(text: str, rule: Callable[[Array], Array]) -> list[float]:
        val, test = found[text]
        return test[np.arange(seeds), rule(val)].tolist()

    results: dict[str, dict[str, Any]] = {}
    for name, rule in RULES.items():
        plain = scores("mean", rule)
        results[name] = {"plain": float(np.mean(plain)), "sd": float(np.std(plain, ddof=1))}
        for text in METHODS[1:]:
            difference = paired(scores(text, rule), plain)
            results[name][text] = [difference.mean, difference.low, difference.high]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three seeds of one data set: checks that it runs")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "epochs.json")
    options = parser.parse_args()
    out, results = Console(width=150), {}
    for schedule in ("cosine", "constant"):
        lines: list[list[str]] = []
        for name, changes in list(DATA.items())[: 1 if options.quick else None]:
            settings = dataclasses.replace(longtail.PRESETS["cpu"], **changes, schedule=schedule)
            if options.quick:
                settings = dataclasses.replace(settings, epochs=6)
            found = measure(settings, 3 if options.quick else options.seeds)
            results[f"{schedule}, {name}"] = found
            for rule, cell in found.items():
                gains = [
                    f"{100 * m:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
                    for m, low, high in map(cell.get, METHODS[1:])
                ]
                lines.append([name, rule, f"{100 * cell['plain']:.2f} ± {100 * cell['sd']:.2f}", *gains])
        out.print(table(f"{schedule} learning rate", ["data", "rule", "plain", *METHODS[1:]], lines))
        write(options.out, ["torch", "numpy"], {"quick": options.quick, "seeds": options.seeds, "results": results})
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
