"""Differences from the scores of single rows, against sums by hand."""

import numpy as np
import polars as pl
import pytest

from reweigh.bench.compare import recipe
from reweigh.bench.compare.problem import DataQuestion, load, parts_of
from reweigh.bench.compare.row_scores import RowScores, keep_splits, stops_below
from reweigh.bench.lab.results import Outcome
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import Judging

N = 60


@pytest.fixture
def problem(tmp_path):
    draw = np.random.default_rng(0)
    labels = np.array(["no"] * 45 + ["yes"] * 15)
    pl.DataFrame({"x": draw.normal(size=N), "z": draw.normal(size=N), "y": labels}).write_csv(tmp_path / "rows.csv")
    return load(DataQuestion(source=str(tmp_path / "rows.csv"), target="y"))


def outcomes(problem, root, label, right_of):
    """Finished runs on ten splits whose outputs are right where `right_of(seed, rows)` says so."""
    made = {}
    for seed in range(10):
        rows = parts_of(problem, seed).test
        right, targets = right_of(seed, rows), problem.labels[rows]
        logits = np.zeros((len(rows), 2), np.float32)
        logits[np.arange(len(rows)), np.where(right, targets, 1 - targets)] = 2.0
        run = Run(Spec(recipe="compare", column="mlp", label=label, settings={}, method="mean", seed=seed), root)
        scores = metrics.classification(logits, targets, 2)
        with run.open() as writer:
            writer.array("test_outputs", logits)
            writer.record({f"test/{name}": value for name, value in scores.items()})
            writer.finish({"seconds": 1.0})
        value = scores["balanced_accuracy"]
        made[seed] = Outcome(run=run, records=run.records(), chosen=0, value=value, last=value)
    return made


def scored(problem, root, metric, ours, theirs, **judging):
    table = recipe.table(problem, (), ("mean", "rgd"), "rgd", metrics.CLASSIFICATION[0])
    keep_splits(root / "splits", problem, ours)
    shared = sorted(set(ours) & set(theirs))
    values = {s: tuple(float(o[s].records[0][f"test/{metric}"]) for o in (ours, theirs)) for s in shared}
    judged = Judging(**judging) if judging else problem.judging
    return RowScores(table, root / "splits", judged).difference(metric, ours, theirs, values)


@pytest.fixture
def two(problem, tmp_path):
    """Plain training misses every yes and no other row; ours gets the even rows of them right, in every round."""
    labels = problem.labels
    plain = outcomes(problem, tmp_path, "mean", lambda seed, rows: labels[rows] == 0)
    ours = outcomes(problem, tmp_path, "rgd", lambda seed, rows: (labels[rows] == 0) | (rows % 2 == 0))
    return ours, plain


def test_rows_are_the_units(problem, tmp_path, two):
    apart = scored(problem, tmp_path, "balanced_accuracy", *two)
    gained = 7 / 15  # rows 46, 48, ... 58
    assert apart.mean == pytest.approx(gained / 2)
    assert apart.n == 10, "splits, for readers"
    # By hand, from the definition: no row of "no" differs, seven of fifteen of "yes" gain one, rounds agree.
    within_yes = (7 + 1 - 7**2 / 17) / (16 * 15)
    within_no = 1 / (46 * 45)
    error = np.sqrt((1 + 1 / 3) / 4 * (within_yes + within_no))
    assert 1.9 * error < (apart.high - apart.low) / 2 < 2.6 * error
    accuracy = scored(problem, tmp_path, "accuracy", *two)
    assert accuracy.mean == pytest.approx(7 / 60)


def test_classes_that_are_not_judged_do_not_count_here_either(problem, tmp_path, two):
    apart = scored(problem, tmp_path, "balanced_accuracy", *two, counted=(False, True))
    assert apart.mean == pytest.approx(7 / 15)


def test_costs_are_means_over_rows(problem, tmp_path, two):
    ours, theirs = two
    for outcome in (*ours.values(), *theirs.values()):
        missed = 20.0 * (1 - outcome.records[0]["test/class_accuracy"][1]) * 3 / 12
        outcome.records[0]["test/cost"] = missed
    apart = scored(problem, tmp_path, "cost", ours, theirs, positive=1, costs=(1.0, 20.0))
    assert apart.mean == pytest.approx(-7 * 20 / 60)


def test_unfinished_rounds_count_as_far_as_they_are(problem, tmp_path, two):
    ours, plain = two
    some = {seed: outcome for seed, outcome in ours.items() if seed < 7}
    apart = scored(problem, tmp_path, "accuracy", some, plain)
    assert apart.n == 7
    assert np.isfinite(apart.low)


def test_one_round_and_other_metrics_are_compared_split_by_split(problem, tmp_path, two):
    ours, plain = two
    one = {seed: outcome for seed, outcome in ours.items() if seed < 5}
    by_split = [ours[s].value - plain[s].value for s in range(5)]
    assert scored(problem, tmp_path, "balanced_accuracy", one, plain).mean == pytest.approx(np.mean(by_split))
    whole = scored(problem, tmp_path, "f1", ours, plain)
    f1 = [float(ours[s].records[0]["test/f1"]) - float(plain[s].records[0]["test/f1"]) for s in range(10)]
    assert whole.mean == pytest.approx(np.mean(f1))


def test_looks_spend_five_percent_together():
    """On the scale of the p-values, where 0.05 stands for what the last look may spend."""
    last = 0.0375
    assert [stops_below(look) * last / 0.05 for look in (0, 1)] == pytest.approx([0.003125, 0.009375])
    assert 0.003125 + 0.009375 + last == pytest.approx(0.05)
