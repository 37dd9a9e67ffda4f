"""From what a person names to parts that can be trained on."""

import numpy as np
import polars as pl
import pytest

from reweigh.bench.compare.problem import Question, deal, hash_of, load
from reweigh.bench.tables import TableError


def people(n=200):
    draw = np.random.default_rng(0)
    age = draw.integers(18, 80, n)
    return pl.DataFrame(
        {
            "age": age,
            "city": draw.choice(["Rom", "Bonn", "Oslo"], n),
            "income": np.where(age + draw.normal(0, 10, n) > 50, "high", "low"),
            "salary": age * 1000.0 + draw.normal(0, 100, n),
        }
    )


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    people().write_csv(path)
    return str(path)


def test_a_table_is_dealt_out_and_scored(table):
    problem = load(Question(source=table, target="income", drop=("salary",), group="city"))
    assert problem.kind == "binary"
    assert problem.classes == ("high", "low")
    assert problem.groups == ("Bonn", "Oslo", "Rom")
    task, encoder = deal(problem, 0)
    assert encoder is not None
    assert "age" in encoder.features
    assert len(task.x_train) + len(task.x_val) + len(task.x_test) == 200
    # Perfect outputs get perfect scores, for every group.
    perfect = 10.0 * np.eye(2)[task.y_test.numpy()]
    import torch

    found = task.score("test", torch.from_numpy(perfect))
    assert found["accuracy"] == found["worst_group"] == found["auroc"] == 1.0
    assert len(found["group_score"]) == 3


def test_regression_is_scored_in_the_targets_own_unit(table):
    problem = load(Question(source=table, target="salary", drop=("income",)))
    assert problem.regression
    task, encoder = deal(problem, 1)
    assert task.class_counts == ()
    assert abs(float(task.y_train.mean())) < 1e-5
    off = task.score("val", task.y_val + 1.0)  # one standard deviation off everywhere
    assert off["rmse"] == pytest.approx(encoder.target.deviation, rel=1e-4)


def test_other_seeds_deal_other_parts_and_the_same_seed_the_same(table):
    problem = load(Question(source=table, target="income", drop=("salary",)))
    first, again, other = (deal(problem, seed)[0].rows for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_a_test_file_is_the_test_part(table, tmp_path):
    test = tmp_path / "test.csv"
    people(40).write_csv(test)
    problem = load(Question(source=table, target="income", drop=("salary",), test=str(test)))
    for seed in (0, 1):
        assert len(deal(problem, seed)[0].x_test) == 40


def test_the_embedded_digits_have_a_long_tail_and_a_balanced_test_set():
    problem = load(Question())
    task, encoder = deal(problem, 0)
    assert encoder is None
    counts = task.class_counts
    assert counts[0] > 10 * counts[-1]
    assert np.ptp(np.bincount(task.y_test.numpy())) <= 5


def test_a_missing_target_lists_the_columns(table):
    with pytest.raises(TableError, match=r"--target.*'age'"):
        load(Question(source=table))


def test_the_hash_follows_the_content(table, tmp_path):
    before = hash_of(table)
    people(201).write_csv(table)
    assert hash_of(table) != before
    assert hash_of("adult") == ""
    (tmp_path / "folder" / "a").mkdir(parents=True)
    (tmp_path / "folder" / "a" / "1.png").write_bytes(b"x")
    assert hash_of(str(tmp_path / "folder"))
