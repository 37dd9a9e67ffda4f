"""The rows of a split become the numbers of a task, which scores outputs."""

import numpy as np
import pytest
import torch
from people_table import people

from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.splits import parts_of


def test_a_table_is_dealt_out_and_scored(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), group="city"))
    assert problem.kind == "binary"
    assert problem.classes == ("high", "low")
    assert problem.groups == ("Bonn", "Oslo", "Rom")
    task, encoder = deal(problem, parts_of(problem, 0))
    assert "age" in encoder.features
    assert len(task.x_train) + len(task.x_val) + len(task.x_test) == 200
    # Perfect outputs get perfect scores, for every group.
    perfect = 10.0 * np.eye(2)[task.y_test.numpy()]

    found = task.score("test", torch.from_numpy(perfect))
    assert found["accuracy"] == found["worst_group"] == found["auroc"] == 1.0
    assert len(found["group_score"]) == 3


def test_regression_is_scored_in_the_targets_own_unit(table):
    problem = load(DataQuestion(source=table, target="salary", drop=("income",)))
    assert problem.regression
    task, encoder = deal(problem, parts_of(problem, 1))
    assert task.class_counts == ()
    assert abs(float(task.y_train.mean())) < 1e-5
    off = task.score("val", task.y_val + 1.0)  # one standard deviation off everywhere
    assert off["rmse"] == pytest.approx(encoder.target.deviation, rel=1e-4)


def test_the_embedded_digits_have_a_long_tail_and_a_balanced_test_set():
    problem = load(DataQuestion())
    task, _ = deal(problem, parts_of(problem, 0))
    counts = task.class_counts
    assert counts[0] > 10 * counts[-1]
    assert np.ptp(np.bincount(task.y_test.numpy())) <= 5


def test_groups_are_handed_to_the_objective(table):
    problem = load(DataQuestion(source=table, target="income", drop=("salary",), group="city"))
    parts = parts_of(problem, 0)
    task, _ = deal(problem, parts)
    assert task.n_groups == 3
    names = [problem.groups[i] for i in task.groups]
    assert names == people()["city"][parts.train.tolist()].to_list()
