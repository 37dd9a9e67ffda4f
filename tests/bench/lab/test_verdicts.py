"""The measurement of interval rules: its models and its rules against references, and a small run of all of it."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(
            **{name: importlib.import_module(f"{name}") for name in ("_disjoint", "_rules", "regret", "verdicts")}
        )
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def sets(bench):
    return list(bench._disjoint.data_sets("synthetic", 300, 3, rounds=8, nested=2))


def test_many_logistic_regressions_are_scikit_learns(bench):
    x, y = bench._disjoint.table("synthetic")
    x, y = x[:200], y[:200]
    weights = np.random.default_rng(0).integers(0, 3, (3, 200)).astype(float)
    for found, own in zip(bench._disjoint.logistic(x, y, weights), weights, strict=True):
        reference = LogisticRegression(tol=1e-10, max_iter=1000).fit(x, y, sample_weight=own)
        assert found[1:] == pytest.approx(reference.coef_[0], abs=1e-4)
        assert found[0] == pytest.approx(float(reference.intercept_[0]), abs=1e-4)


def test_each_row_is_tested_by_models_that_did_not_see_it(bench):
    # One tree can tell all training rows apart, so that it is right about every row it has seen.
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 2)), (rng.random(60) < 0.5).astype(int)
    trained = np.ones((1, 60), dtype=bool)
    seen = bench._disjoint.predictions(x, y, trained, x, rng)["tree"][0] == y
    unseen = bench._disjoint.tested(x, y, x, y, 0, rounds=4, nested=1, splits=5).hits["tree"]
    assert seen.mean() > 0.8
    assert unseen.mean() < 0.65, "labels are random: unseen rows are guessed"


def test_data_sets_share_no_row(bench, monkeypatch):
    x = np.arange(9000.0)[:, None]
    monkeypatch.setattr(bench._disjoint, "table", lambda name: (x, np.zeros(9000)))
    monkeypatch.setattr(bench._disjoint, "tested", lambda own, y, pool, *a, **k: (own.ravel(), pool.ravel()))
    found = list(bench._disjoint.data_sets("", 400, 5, rounds=1, nested=1))
    (first, pool), (second, _) = ((set(own), set(pool)) for own, pool in found)  # a thousand rows make two of them
    assert not first & second
    assert not (first | second) & pool


def test_rows_alone_by_hand(bench):
    # Class 0: differences 1, 0, 0 (mean 1/3, variance 1/3, over 3); class 1: 1, -1 (mean 0, variance 2, over 2).
    ours, baseline = np.array([1, 1, 0, 1, 0]), np.array([0, 1, 0, 0, 1])
    found = bench._rules.rowwise(ours, baseline, np.array([0, 0, 0, 1, 1]))
    assert found.mean == pytest.approx(1 / 6)
    assert found.high - found.mean == pytest.approx(1.959964 * math.sqrt(1 / 9 + 1) / 2, abs=1e-5)


def test_the_bootstrap_has_the_errors_of_rows_and_rounds(bench):
    rng = np.random.default_rng(2)
    ours = rng.normal(size=(1, 400)) + rng.normal(0, 0.2, (30, 1))
    found = bench._rules.bootstrapped(ours, np.zeros((30, 400)), np.zeros(400), draws=4000)
    expected = math.sqrt(ours.mean(0).var() / 400 + ours.mean(1).var() / 30)
    assert found.sd / 20 == pytest.approx(expected, rel=0.05)
    assert found.high - found.low == pytest.approx(2 * 1.96 * expected, rel=0.1)


def test_nested_folds_by_hand(bench):
    naive = bench._rules.rowwise(np.array([1.0, 0, 1, 0]), np.zeros(4), np.zeros(4))  # mean 1/2, error sqrt(1/12)
    # (inner - outer)^2: 0.16, 0.16; minus 0.04: 0.12, times (2 - 1) / 2: 0.06 is below the naive 1/12.
    inner, outer, errors = np.array([[0.4, 0.6]]), np.array([[0.8, 0.2]]), np.full((1, 2), 0.2)
    found = bench._rules.nested(inner, outer, errors, naive=naive)
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.mean == pytest.approx(1.959964 * math.sqrt(1 / 12), abs=1e-5)
    # Four times as far apart it is 0.64 * 16 / 4 - 0.04 = 2.52, halved 1.26: kept below twice the naive 1/12.
    outer = np.array([[2.0, -1.0]])
    found = bench._rules.nested(inner, outer, errors, naive=naive)
    assert found.high - found.mean == pytest.approx(1.959964 * math.sqrt(2 / 12), abs=1e-5)


def test_a_small_run_ranks_the_rules_by_width(bench, sets):
    verdicts = bench.verdicts
    kept = {
        rule.name.partition(",")[0]: verdicts.Rule(name=rule.name, looks=rule.looks[:3])
        for rule in verdicts.all_rules()
        if "folds" in rule.name and "nested" not in rule.name
    }
    found = {name: verdicts.measure(rule, sets) for name, rule in kept.items()}
    widths = {name: cell["half_width"] for name, cell in found.items()}
    assert widths["rows alone"] < widths["rows and rounds"] < widths["t over folds"]
    for cell in found.values():
        assert 0 <= cell["least_coverage"] <= cell["coverage"] <= 1
        assert cell["regret"] >= 0
        assert cell["trainings"] <= 80
    lines = verdicts.report({"synthetic": found})
    assert [line[0] for line in lines] == list(found)
    assert {len(line) for line in lines} == {len(verdicts.HEADS)}


def test_power_is_read_between_the_gains_there_are(bench):
    # Gains of 1 and 3 points are decided in 20 and 60 % of the data sets: two points in 40 %, five are beyond.
    assert bench.verdicts._power({0.01: 0.2, 0.03: 0.6, -0.1: 0.0}, 0.04) == [0.2, pytest.approx(0.4), None]


def test_chance_does_not_flatter_the_best_action(bench):
    plain, lucky, good = (("mlp", label, label, 0.1) for label in ("mean", "lucky", "good"))
    # The lucky one is ahead on all splits together, by its second half; the first half chooses the good one.
    scores = {plain: [0.5, 0.5, 0.5, 0.5], lucky: [0.5, 0.5, 0.9, 0.9], good: [0.6, 0.6, 0.6, 0.7]}
    found = {"strength": "leading", "use": list(plain), "ended": "time", "tuned": False, "splits": 5, "seconds": 30.0}
    measured = bench.regret.regrets(scores, {30: found})
    assert measured["best"] == list(good)
    assert measured["budgets"]["30"]["regret"] == pytest.approx(15.0)
    assert measured["budgets"]["30"]["flattered"] == pytest.approx(20.0)
    assert measured["budgets"]["30"]["gain"] == pytest.approx(0.0)
