"""Which interval may a verdict rest on? Coverage, width, false decisions, power and regret of each rule, measured.

    python benchmarks/verdicts.py [--quick] [--tables adult,bank,covtype] [--rows 300,1000,3000] [--sets 100] [--few]

Disjoint data sets are drawn from large tables (`_disjoint.py`), so that the true difference of two methods in balanced
accuracy is known. Methods are logistic regressions and random trees, cheap enough to test thousands of data sets.
For every rule (`_rules.py`, and the library's own) the table shows

- coverage: how often its 95 % interval holds the true difference, over all comparisons;
- half-width: of the interval, in points;
- false: how often it decides between two identical methods, at its last look and at any of its looks;
- power: how often it decides that a method is better which truly is, by 1, 2 and 5 points;
- trainings: of each method, until it decides or has had all its looks;
- regret: points of balanced accuracy lost by using the best of the methods that are decided to be better than plain
  training, and plain training if none is, against the method that is truly best on that data set;
- leading: the same if the method with the largest mean is used whether or not it is decided to be better.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _rules as rules
import numpy as np
from _disjoint import DIFFERENT, FOLDS, IDENTICAL, SPLITS, TABLES, Tested, data_sets
from _timing import table, write
from rich.console import Console

from reweigh.bench.lab.intervals import LOOKS, alpha_of_look
from reweigh.bench.lab.stats import Difference

Interval = Callable[[Tested, str, str], Difference]

ROUNDS, NESTED = max(LOOKS), 3
#: Rounds that `reweigh compare` runs at most.
FEW = 6
POINTS = (1, 2, 5)
#: Of a table, in data sets of one size.
MOST_ROWS = 60_000
#: What power is measured on: methods whose true gains are of many sizes.
GAINS = tuple(pair for pair in DIFFERENT if pair[0] != "tree")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: its looks, each with the trainings of a method that it rests on. The last look is the rule's own."""

    name: str
    looks: Sequence[tuple[int, Interval]]

    def decide(self, seen: Tested, ours: str, baseline: str) -> tuple[int, int]:
        """1 or -1 as soon as a look decides, else 0; and the trainings of each method until then."""
        trainings = 0
        for trainings, interval in self.looks:
            found = interval(seen, ours, baseline)
            if found.low > 0 or found.high < 0:
                return int(np.sign(found.mean)), trainings
        return 0, trainings


def all_rules() -> list[Rule]:
    """The rules, today's first."""
    whole = 0.2 / 0.8  # the test share over everything else, validation rows counted as trained on
    trained = 0.2 / 0.6

    def splits(name: str, count: int, ratio: float) -> Rule:
        looks = range(5, count + 1, 5)
        return Rule(
            name=name,
            looks=[(n, partial(rules.of_splits, splits=n, test_over_train=ratio)) for n in looks],
        )

    def folds(name: str, interval: Callable[..., Difference], rounds: int, looks: Sequence[int] = ()) -> Rule:
        return Rule(
            name=f"{name}, {rounds} x {FOLDS} folds",
            looks=[(FOLDS * r, partial(interval, rounds=r)) for r in looks or (rounds,)],
        )

    def with_looks(name: str, interval: Callable[..., Difference], looks: Sequence[int]) -> Rule:
        return Rule(
            name=f"{name}, looks after {', '.join(map(str, looks))} rounds",
            looks=[
                (FOLDS * r, partial(interval, rounds=r, alpha=alpha_of_look(i, len(looks))))
                for i, r in enumerate(looks)
            ],
        )

    return [
        splits("t over 10 splits, corrected by too little", 10, whole),
        splits("t over 10 splits, corrected", 10, trained),
        splits("t over 30 splits, corrected", SPLITS, trained),
        splits("t over 10 splits, not corrected", 10, 0.0),
        folds("t over folds, corrected", rules.of_folds, 8),
        folds("rows alone", rules.of_rows, 8),
        Rule(name=f"nested folds, {NESTED} times", looks=[(NESTED * FOLDS * (FOLDS + 1) // 2, rules.of_nested)]),
        folds("bootstrap over rows and rounds", rules.of_bootstrap, 8),
        folds("rows and rounds", rules.of_rows_and_rounds, 8),
        folds("rows and rounds", rules.of_rows_and_rounds, ROUNDS, range(2, ROUNDS + 1)),
        with_looks("rows and rounds", rules.of_rows_and_rounds, LOOKS),
        folds("rows and rounds", rules.of_rows_and_rounds, 2),
        folds("rows and trainings", rules.of_rows_and_folds, 2),
        folds("rows and trainings", rules.of_rows_and_folds, FEW),
        with_looks("rows and trainings", rules.of_rows_and_folds, (2, 4, FEW)),
    ]


def few_rounds() -> list[Rule]:
    """The rules about rows that need no more rounds than the command runs."""
    known = [rule for rule in all_rules() if rule.name.startswith("rows and")]
    return [rule for rule in known if rule.looks[-1][0] <= FOLDS * FEW]


def measure(rule: Rule, sets: Sequence[Tested]) -> dict[str, Any]:
    """Everything the table shows about a rule on the data sets of one table and size."""
    truth = {pair: float(np.mean([s.truth[pair[0]] - s.truth[pair[1]] for s in sets])) for pair in DIFFERENT}
    truth |= dict.fromkeys(IDENTICAL, 0.0)
    covered: list[float] = []
    widths: list[float] = []
    false: list[float] = []
    false_at_any: list[float] = []
    decided: dict[tuple[str, str], float] = {}
    trainings: list[int] = []
    wrong: list[bool] = []
    gained, leading = np.zeros((2, len(sets), len(GAINS)))
    last = rule.looks[-1][1]
    for pair, true in truth.items():
        found = [last(seen, *pair) for seen in sets]
        covered.append(float(np.mean([d.low <= true <= d.high for d in found])))
        widths.append(float(np.mean([d.high - d.low for d in found])) * 50)
        outcomes = [rule.decide(seen, *pair) for seen in sets]
        signs = np.array([sign for sign, _ in outcomes])
        if pair in IDENTICAL:
            false.append(float(np.mean([d.low > 0 or d.high < 0 for d in found])))
            false_at_any.append(float((signs != 0).mean()))
            continue
        wrong += (signs * np.sign(true) < 0).tolist()
        if pair in GAINS:
            decided[pair] = float((signs > 0).mean())
            trainings += [count for _, count in outcomes]
            leading[:, GAINS.index(pair)] = [d.mean for d in found]
            gained[:, GAINS.index(pair)] = np.where(signs > 0, leading[:, GAINS.index(pair)], 0.0)
    return {
        "coverage": float(np.mean(covered)),
        "least_coverage": min(covered),
        "half_width": float(np.mean(widths)),
        "false": max(false),
        "false_at_any_look": max(false_at_any),
        "wrong_side": float(np.mean(wrong)),
        "power": _power({truth[pair]: share for pair, share in decided.items()}, float(np.mean(false_at_any))),
        "trainings": float(np.mean(trainings)),
        "regret": float(np.mean([_regret(seen, row) for seen, row in zip(sets, gained, strict=True)])),
        "regret_of_leading": float(np.mean([_regret(seen, row) for seen, row in zip(sets, leading, strict=True)])),
    }


def _regret(seen: Tested, gained: Any) -> float:
    """Points that the recommended method loses against the best one, on the pool."""
    names = ["plain", *(ours for ours, _ in GAINS)]
    chosen = names[1 + int(np.argmax(gained))] if gained.max() > 0 else "plain"
    return 100 * (max(seen.truth[name] for name in names) - seen.truth[chosen])


def _power(decided: dict[float, float], false: float) -> list[float | None]:
    """The chance of a decision at true gains of 1, 2 and 5 points, between the gains there are."""
    gains = sorted(gain for gain in decided if gain > 0)
    known = [0.0, *gains], [false / 2, *(decided[gain] for gain in gains)]
    return [float(np.interp(p / 100, *known)) if gains and p / 100 <= gains[-1] else None for p in POINTS]


def report(cells: dict[str, dict[str, dict[str, Any]]]) -> list[list[str]]:
    """One line per rule: means over tables, and the largest share of false decisions."""

    def mean(values: Sequence[Any], digits: int) -> str:
        known = [value for value in values if value is not None]
        return f"{np.mean(known):.{digits}f}" if known else "-"

    lines: list[list[str]] = []
    for name in next(iter(cells.values())):
        own = [by_rule[name] for by_rule in cells.values()]
        lines.append(
            [
                name,
                *(mean([cell[key] for cell in own], digits) for key, digits in (("coverage", 3), ("half_width", 1))),
                *(f"{max(cell[key] for cell in own):.3f}" for key in ("false", "false_at_any_look")),
                *(mean([cell["power"][i] for cell in own], 2) for i in range(len(POINTS))),
                mean([cell["trainings"] for cell in own], 0),
                *(mean([cell[key] for cell in own], 1) for key in ("regret", "regret_of_leading")),
            ]
        )
    return lines


HEADS = ("rule", "coverage", "half-width", "false", "any look", "1 point", "2", "5", "trainings", "regret", "leading")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few synthetic data sets: checks that it runs")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rows", default="300,1000,3000")
    parser.add_argument("--sets", type=int, default=100, help="data sets of each table and size, at most")
    parser.add_argument("--few", action="store_true", help=f"at most {FEW} rounds, and only the rules about rows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "verdicts.json")
    options = parser.parse_args()
    names, sizes, number = options.tables.split(","), [int(n) for n in options.rows.split(",")], options.sets
    if options.quick:
        names, sizes, number = ["synthetic"], [300], 10
    out, results = Console(width=170), {}
    for rows in sizes:
        cells: dict[str, dict[str, dict[str, Any]]] = {}
        counts: list[str] = []
        for name in names:
            most = min(number, MOST_ROWS // rows)
            rounds, nested, splits = (FEW, 0, 0) if options.few else (ROUNDS, NESTED, SPLITS)
            sets = list(data_sets(name, rows, most, rounds=rounds, nested=nested, splits=splits))
            measured = few_rounds() if options.few else all_rules()
            cells[name] = {rule.name: measure(rule, sets) for rule in measured}
            counts.append(f"{len(sets)} of {name}")
        out.print(table(f"{rows} rows, data sets: {', '.join(counts)}", HEADS, report(cells)))
        results[str(rows)] = {"data_sets": counts, "cells": cells}
        write(options.out, ["numpy", "scipy", "scikit-learn"], {"quick": options.quick, "results": results})
    out.print(f"written to {options.out}")


if __name__ == "__main__":
    main()
