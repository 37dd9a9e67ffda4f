"""The recipe on hidden groups: what is drawn, how it is scored, and what its rows are chosen by."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

from reweigh.bench import tables
from reweigh.bench.draws import coloured, spurious_colours
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import plan
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.table import Column, Row, Table
from reweigh.bench.recipes import _grouped, groups

SETTINGS = dataclasses.replace(groups.PRESETS["smoke"], agreement=0.9)


def test_colours_agree_as_often_as_they_should():
    labels = np.arange(20_000) % 2
    colours = spurious_colours(labels, 0.9, np.random.default_rng(0))
    assert (colours == labels).mean() == pytest.approx(0.9, abs=0.01)
    images = coloured(np.full((2, 1, 1), 7), np.array([0, 1]))
    assert images[:, 0, 0].tolist() == [[7, 0], [0, 7]]


def test_every_test_digit_has_both_colours_and_no_training_row_is_tested():
    task = groups.task(SETTINGS, Seeds(3))
    half = len(task.y_test) // 2
    first, second = task.x_test[:half].unflatten(1, (-1, 2)), task.x_test[half:].unflatten(1, (-1, 2))
    torch.testing.assert_close(first, second.flip(-1))
    assert torch.equal(task.y_test[:half], task.y_test[half:])
    facts = task.facts()
    assert sum(facts["group_counts"]) == len(task.y_train) == len(task.groups)
    assert (facts["group_counts"][0] + facts["group_counts"][3]) / len(task.y_train) == pytest.approx(0.9, abs=0.04)
    again = groups.task(SETTINGS, Seeds(3))
    torch.testing.assert_close(again.x_train, task.x_train, rtol=0, atol=0)


def test_scores_of_a_model_that_sees_the_colour_alone():
    task = groups.task(SETTINGS, Seeds(0))
    half = len(task.y_test) // 2
    red = torch.arange(len(task.y_test)) < half
    outputs = torch.stack([red.float(), 1 - red.float()], 1)
    scored = task.score("test", outputs)
    assert scored["group_score"] == [1.0, 0.0, 0.0, 1.0]
    assert scored["worst_group"] == 0.0
    assert scored["worst_class"] == 0.5
    counts = torch.bincount(task.groups, minlength=4).tolist()
    assert scored["accuracy"] == pytest.approx((counts[0] + counts[3]) / sum(counts))


def test_seeds_of_a_table_share_their_columns(monkeypatch):
    """A level that only some draws have would make tables of different widths, which cannot train together."""
    frame = pl.DataFrame(
        {
            "age": np.arange(400) % 70,
            "job": ["clerk"] * 380 + ["pilot"] * 20,
            "income": ["low", "low", "high", "low"] * 100,
        }
    )
    schema, rows = tables.describe(frame, target="income"), np.arange(400)
    held = rows % 4 == 3
    read = (frame, schema, rows % 2, ("even", "odd"), rows[~held], rows[held])
    monkeypatch.setattr(_grouped, "_read", lambda name: read)
    settings = dataclasses.replace(SETTINGS, data="a table of this test", rows=40, test_rows=30)
    widths = {groups.task(settings, Seeds(seed)).x_train.shape for seed in range(8)}
    assert len(widths) == 1
    task = groups.task(settings, Seeds(0))
    assert len(task.y_test) == 30  # at most so many of each group: all rows that are held out are odd
    assert task.n_groups == 2


def test_a_row_may_be_chosen_by_another_number(tmp_path):
    """Of two rates the table's number wants the first, and the row's own the second."""
    table = Table(
        title="t",
        question="q",
        columns=(Column(name="c", settings={}),),
        methods=("mean", "oracle"),
        metric="test/a",
        metric_name="a",
        select="val/a",
        trials=2,
        rows={"oracle": Row(method="mean", select="val/b")},
    )
    question = Question(recipe="r", table=table, settings={"lr": 1.0})
    specs = plan.tuning(question)
    for spec in specs:
        better = spec.settings["lr"] == 1.0
        with Run(spec, tmp_path).open() as writer:
            writer.record({"val/a": float(better), "val/b": float(not better), "test/a": 0.0, "epoch": 1})
            writer.finish({})
    chosen = plan.choose(question, specs, tmp_path)
    assert chosen["c", "mean"].lr == 1.0
    assert chosen["c", "oracle"].lr == 1.5
    assert table.criterion == "largest val/a (of some rows, val/b)"
