"""What is concluded from an interval: the table of the plan, case by case, and the settings that a page rests on."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats
from synthetic_runs import make_recipe, make_runs, make_table, value

from reweigh.bench.lab import conclusions, stats
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.conclusions import conclude, seeds_needed, seeds_to_decide
from reweigh.bench.lab.results import Results, collect
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Endpoint, Table


def interval(low: float, high: float, *, holm: float | None = None) -> Difference:
    p = 0.01 if low > 0 or high < 0 else 0.5
    middle = (low + high) / 2
    return Difference(n=20, mean=middle, sd=1.0, low=low, high=high, effect=middle, p=p, p_holm=holm)


@pytest.mark.parametrize(
    ("low", "high", "gain", "word"),
    [
        (1.0, 3.0, 2.0, "confirmed"),
        (3.0, 4.0, 2.0, "confirmed"),  # above the paper's
        (0.6, 1.5, 2.0, "smaller than in the paper"),
        (0.1, 0.4, 2.0, "smaller than worth having"),
        (-0.4, 0.4, 2.0, "no difference that matters"),
        (-0.4, 0.4, 0.2, "no difference that matters"),  # the paper's gain is smaller than what is worth having
        (-0.2, 1.5, 2.0, "excluded"),
        (-3.0, -1.0, 2.0, "excluded"),
        (-1.0, 3.0, 2.0, "undecided"),
        (0.1, 0.9, 0.2, "undecided"),  # not worth having, so it cannot be confirmed
        (-1.0, 1.0, 0.2, "undecided"),
        (0.2, 3.0, None, "better"),
        (-3.0, -0.2, None, "worse"),
        (-1.0, 3.0, None, "undecided"),
        (-0.3, 0.2, None, "no difference that matters"),
    ],
)
def test_the_table_of_the_plan(low: float, high: float, gain: float | None, word: str) -> None:
    assert conclude(interval(low, high), gain=gain, worth=0.5) == word
    mirrored = interval(-high, -low)
    assert conclude(mirrored, gain=None if gain is None else -gain, worth=0.5, smallest=True) == word


def test_a_gain_that_does_not_survive_correction_is_not_above_zero() -> None:
    assert conclude(interval(0.1, 3.0), gain=2.0, worth=0.5) == "confirmed"
    assert conclude(interval(0.1, 3.0, holm=0.2), gain=2.0, worth=0.5) == "undecided"
    assert conclude(interval(0.1, 1.0, holm=0.2), gain=2.0, worth=0.5) == "excluded"


def test_seeds_are_enough_and_no_more_than_enough() -> None:
    d = stats.paired(list(np.random.default_rng(0).normal(0, 2.0, 30)), [0.0] * 30)

    def power(n: int, effect: float) -> float:
        shift, limit = effect / d.sd * math.sqrt(n), scipy_stats.t.ppf(0.975, n - 1)
        return float(scipy_stats.nct.sf(limit, n - 1, shift) + scipy_stats.nct.cdf(-limit, n - 1, shift))

    for effect in (0.02, 0.5, 2.0, 3.0, 6.0):
        needed = seeds_needed(d, effect)
        assert needed is not None
        assert power(needed, effect) >= 0.9 > power(needed - 1, effect)
    assert seeds_needed(d, 0.0) is None


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def collect_table(table: Table) -> Results:
        make_runs(tmp_path, table)
        monkeypatch.setattr(recipes, "load", lambda name: make_recipe(table))
        return collect(tmp_path)[0]

    return collect_table


def test_settings_rows_and_gain_are_the_endpoints(collected) -> None:
    table = make_table(endpoint=Endpoint(ours="focal", theirs="rgd", columns=("imbalance 100",), gain=-1.6))
    (one,) = conclusions.conclusions(collected(table))
    assert one.setting == "imbalance 100"
    assert one.gain == pytest.approx(-0.016)
    expected = np.mean([value("focal", 0, seed) - value("rgd", 0, seed) for seed in range(5)])
    assert one.difference.mean == pytest.approx(expected)


def test_the_mean_over_settings_is_paired_by_seed(collected) -> None:
    table = make_table(endpoint=Endpoint(averaged=True, gain=1.94))
    (one,) = conclusions.conclusions(collected(table))
    means = [[(value(label, 0, seed) + value(label, 1, seed)) / 2 for seed in range(5)] for label in ("rgd", "mean")]
    test = scipy_stats.ttest_rel(*means).confidence_interval(0.95)
    assert (one.difference.low, one.difference.high) == pytest.approx((test.low, test.high))
    assert one.setting == "mean over 2 settings"
    assert one.gain == pytest.approx(0.0194)


def test_without_the_rows_there_is_nothing_to_conclude(collected) -> None:
    results = collected(make_table())
    assert conclusions.conclusions(results) == []
    absent = replace(results, table=replace(results.table, endpoint=Endpoint(ours="sam", theirs="mean")))
    assert conclusions.conclusions(absent) == []


def test_a_table_is_read_back_with_its_endpoint() -> None:
    table = make_table(endpoint=Endpoint(columns=("digits",), worth=0.01))
    assert Table.from_dict(json.loads(json.dumps(dataclasses.asdict(table)))) == table


def test_seeds_that_would_decide_are_more_than_there_are():
    d = stats.paired([2.0, 3.0, 4.0, 3.0], [0.0, 0.0, 0.0, 0.0])  # 3 [1.7, 4.3]
    assert conclude(d, gain=1.8, worth=4.0) == "undecided"
    # Half as wide an interval, around the same mean, would end below 3.65.
    needed = seeds_to_decide(d, 1.8, 3.0 + 0.501 * (d.high - 3.0), smallest=False)
    assert needed == 16
    less = stats.paired([0.0, 0.0, 0.0, 0.0], [2.0, 3.0, 4.0, 3.0])
    assert seeds_to_decide(less, -1.8, 3.0 + 0.501 * (d.high - 3.0), smallest=True) == 16
    assert seeds_to_decide(d, 1.8, 2.5, smallest=False) is None  # it is worth having already
    # What four seeds would have seen, they do not see better by being four again.
    none = stats.paired([1.0, -1.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0])
    assert seeds_to_decide(none, 10.0, 0.5, smallest=False) is None
    assert seeds_to_decide(none, 1.0, 0.5, smallest=False) == seeds_needed(none, 1.0)
