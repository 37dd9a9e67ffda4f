"""Which classes are judged, which one is positive, and what mistakes cost."""

import numpy as np
import polars as pl
import pytest

from reweigh.bench.compare import recipe
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.errors import UserError
from reweigh.method import method


def test_classes_with_too_few_rows_to_test_on_are_named_and_not_judged(tmp_path):
    path = tmp_path / "rare.csv"
    labels = ["a"] * 60 + ["b"] * 40 + ["c"] * 8
    pl.DataFrame({"x": np.arange(108) % 17, "z": np.arange(108) % 5, "y": labels}).write_csv(path)
    problem = load(DataQuestion(source=str(path), target="y"))
    assert problem.judging.counted == (True, True, False)
    assert any("'c' has fewer than 10 rows to test on and cannot be judged" in note for note in problem.notes)


@pytest.mark.parametrize(
    ("labels", "given", "positive", "why"),
    [
        (["a"] * 30 + ["b"] * 70, "", "a", "the rarer class"),
        (["a"] * 70 + ["b"] * 30, "", "b", "the rarer class"),
        (["a"] * 50 + ["b"] * 50, "", "b", "the second of two as frequent"),
        (["a"] * 30 + ["b"] * 70, "b", "b", "as given"),
    ],
)
def test_the_positive_class_is_named_and_thresholds_are_chosen_for_it(labels, given, positive, why, tmp_path):
    draw = np.random.default_rng(0)
    pl.DataFrame({"x": draw.normal(size=100), "y": labels}).write_csv(tmp_path / "two.csv")
    problem = load(DataQuestion(source=str(tmp_path / "two.csv"), target="y", positive=given, cost="fp=1,fn=20"))
    index = problem.classes.index(positive)
    assert problem.judging.positive == index
    assert f"about '{positive}', {why} (`--positive`)" in " ".join(problem.notes)
    for name, text in (
        ("f1", f"threshold:metric=f1,positive={index}" if index == 0 else "threshold:metric=f1"),
        ("matthews", "threshold:metric=matthews"),
        ("auroc", "threshold"),
    ):
        rows = recipe.corrections(("mean", "mean+threshold"), recipe.metric_named(name, problem), problem.judging)
        assert method(rows["mean+threshold"].method) == method(text)
    rows = recipe.corrections(("mean", "mean+threshold"), recipe.metric_named("", problem), problem.judging)
    cut = method(rows["mean+threshold"].method).post
    assert (cut.metric, cut.positive, cut.false_positive, cut.false_negative) == ("cost", index, 1.0, 20.0)


def test_a_positive_class_must_be_one_of_two(table):
    with pytest.raises(UserError, match="must be one of the two classes"):
        load(DataQuestion(source=table, target="income", drop=("salary",), positive="maybe"))


def test_costs_are_about_the_rarer_of_two_classes(table):
    frame = pl.read_csv(table).with_columns(income=pl.when(pl.col("age") > 75).then(pl.lit("a")).otherwise(pl.lit("b")))
    frame.write_csv(table)
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), cost="fp=2,fn=30"))
    assert problem.judging.positive == problem.classes.index("a")
    assert problem.judging.costs == (2.0, 30.0)
    assert any("A false 'a' costs 2, a missed one 30" in note for note in problem.notes)
