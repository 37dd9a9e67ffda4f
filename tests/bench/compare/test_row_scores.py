"""Differences from the scores of single rows, against sums by hand."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from reweigh.bench.compare import recipe
from reweigh.bench.compare.actions import against
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.row_scores import RowScores, keep_splits, stops_below
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.lab import plan
from reweigh.bench.lab.intervals import pseudo_scores
from reweigh.bench.lab.results import Outcome, of_runs
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column
from reweigh.bench.report.verdict import verdict
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import ScoringRules

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


def scored(problem, root, metric, ours, theirs, index=None, **judging):
    table = recipe.table(problem, (), ("mean", "rgd"), "rgd", metrics.CLASSIFICATION[0])
    keep_splits(root / "splits", problem, ours)
    shared = sorted(set(ours) & set(theirs))
    values = {s: tuple(o[s].score(f"test/{metric}", index) for o in (ours, theirs)) for s in shared}
    judged = ScoringRules(**judging) if judging else problem.judging
    return RowScores(table, root / "splits", judged).difference(f"test/{metric}", ours, theirs, values, index=index)


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


def test_a_class_has_the_interval_of_its_own_rows(problem, tmp_path, two):
    yes = scored(problem, tmp_path, "class_accuracy", *two, index=1)
    assert yes.mean == pytest.approx(7 / 15)
    variance = (7 + 1 - 7**2 / 17) / (16 * 15) * (1 + 1 / 3)
    assert (yes.high - yes.low) / 2 == pytest.approx(stats.t.ppf(1 - 0.0375 / 2, 14) * np.sqrt(variance))
    no = scored(problem, tmp_path, "class_accuracy", *two, index=0)
    assert (no.mean, no.low, no.high) == (0.0, 0.0, 0.0)


def test_groups_have_intervals_of_their_own_rows(tmp_path):
    draw = np.random.default_rng(0)
    place = np.array(["north", "south"] * 30)
    labels = np.array(["no"] * 30 + ["yes"] * 30)
    table = pl.DataFrame({"x": draw.normal(size=N), "place": place, "y": labels})
    table.write_csv(tmp_path / "grouped.csv")
    problem = load(DataQuestion(source=str(tmp_path / "grouped.csv"), target="y", group="place"))
    keep_splits(tmp_path, problem, [0])
    rows, classes, groups, _ = np.load(tmp_path / "0.npy")
    assert [problem.groups[g] for g in groups] == place[rows].tolist()
    assert [problem.classes[c] for c in classes] == labels[rows].tolist()


@pytest.mark.parametrize("metric", metrics.JACKKNIFED)
@pytest.mark.parametrize("classes", [2, 3])
def test_pseudo_values_are_those_of_leaving_each_row_out(metric, classes):
    draw = np.random.default_rng(classes)
    targets = draw.integers(0, classes, 50)
    logits = (draw.normal(size=(50, classes)) + np.eye(classes)[targets]).round(1)  # with ties
    judging = ScoringRules(positive=0)

    def of(index):
        return metrics.classification(logits[index], targets[index], classes, judging=judging)[metric]

    values, jackknife = metrics.pseudo_values(metric, logits, targets, judging), pseudo_scores(of, 50)
    np.testing.assert_allclose(values - values.mean(), jackknife - jackknife.mean(), atol=1e-12)
    assert values.mean() == pytest.approx(of(np.arange(50)))


def test_f1_is_a_matter_of_rows_too(problem, tmp_path, two):
    apart = scored(problem, tmp_path, "f1", *two)
    by_split = [two[0][s].score("test/f1") - two[1][s].score("test/f1") for s in range(10)]
    assert apart.mean == pytest.approx(np.mean(by_split))
    assert 0 < apart.high - apart.low < np.inf


def test_one_round_and_other_metrics_are_compared_split_by_split(problem, tmp_path, two):
    ours, plain = two
    one = {seed: outcome for seed, outcome in ours.items() if seed < 5}
    by_split = [ours[s].value - plain[s].value for s in range(5)]
    assert scored(problem, tmp_path, "balanced_accuracy", one, plain).mean == pytest.approx(np.mean(by_split))
    whole = scored(problem, tmp_path, "average_precision", ours, plain)
    precision = [ours[s].score("test/average_precision") - plain[s].score("test/average_precision") for s in range(10)]
    assert whole.mean == pytest.approx(np.mean(precision))


def test_the_table_of_controls_has_the_same_intervals_as_the_sentences(problem, tmp_path, two):
    ours, plain = two
    normalised = outcomes(problem, tmp_path, plan.NORMALISED, lambda seed, rows: problem.labels[rows] == 0)
    column = Column(name="mlp", settings={})
    table = recipe.table(problem, (column,), ("mean", "rgd"), "rgd", metrics.CLASSIFICATION[0])
    keep_splits(tmp_path / "splits", problem, ours)
    runs = [outcome.run for row in (ours, plain, normalised) for outcome in row.values()]
    compare = RowScores(table, tmp_path / "splits", problem.judging).difference
    gathered = of_runs("compare", table, runs, compare)
    (control,) = verdict(gathered).controls
    sentence = against(gathered, ("mlp", "rgd"), ("mlp", "mean"))
    expected = scored(problem, tmp_path, "balanced_accuracy", ours, plain)
    assert control.primary == sentence == expected
    assert gathered.columns[0].differences["rgd"].low == expected.low
    assert control.normalised == scored(problem, tmp_path, "balanced_accuracy", normalised, plain)


def test_looks_spend_five_percent_together():
    """On the scale of the p-values, where 0.05 stands for what the last look may spend."""
    last = 0.0375
    assert [stops_below(look) * last / 0.05 for look in (0, 1)] == pytest.approx([0.003125, 0.009375])
    assert 0.003125 + 0.009375 + last == pytest.approx(0.05)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_an_interval_without_zero_is_a_p_value_below_five_percent(problem, tmp_path, share):
    """Of both: what the looks before have spent is taken from the interval and from the p-value alike."""
    right = np.random.default_rng(1).random(N) < 0.5
    plain = outcomes(problem, tmp_path, "mean", lambda seed, rows: right[rows])
    ours = outcomes(problem, tmp_path, "rgd", lambda seed, rows: right[rows] ^ (rows % 10 < 5 * share) ^ (rows == 3))
    apart = scored(problem, tmp_path, "accuracy", ours, plain)
    assert (apart.low > 0 or apart.high < 0) == (apart.p < 0.05)
    assert apart.p <= 1.0


def test_later_looks_than_the_last_spend_what_the_last_may():
    assert stops_below(2) == stops_below(3) == stops_below(9) == pytest.approx(0.05)


def test_outputs_come_with_the_classes_of_their_rows_where_these_are_known(problem, tmp_path, two):
    ours, _ = two
    keep_splits(tmp_path / "splits", problem, [0, 3])
    table = recipe.table(problem, (), ("mean", "rgd"), "rgd", metrics.CLASSIFICATION[0])
    tested = RowScores(table, tmp_path / "splits", problem.judging).tested(ours)
    assert len(tested) == 2  # the other splits were not written down
    for seed, (outputs, classes) in zip((0, 3), tested, strict=True):
        rows = parts_of(problem, seed).test
        np.testing.assert_array_equal(classes, problem.labels[rows])
        right = (problem.labels[rows] == 0) | (rows % 2 == 0)
        np.testing.assert_array_equal(outputs.argmax(axis=1) == classes, right)
