"""Rows that are told the groups of training rows: which comparisons have them, what is said, and that they train."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from reweigh.bench.compare import recipe
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.request import Request, data_question, question
from reweigh.bench.lab.executors.local import settings_of
from reweigh.bench.lab.runs import Run, Spec
from reweigh.method import method


@pytest.fixture
def table(tmp_path):
    draw, path = np.random.default_rng(0), tmp_path / "people.csv"
    age = draw.integers(18, 80, 300)
    pl.DataFrame(
        {
            "age": age,
            "city": draw.choice(["Rom", "Bonn"], 300, p=[0.8, 0.2]),
            "person": np.arange(300) // 3,
            "old": np.where(age > 50, "yes", "no"),
        }
    ).write_csv(path)
    return str(path)


def asked(table, **given):
    methods = given.pop("methods", ())
    request = Request(question=data_question(table, target="old", **given), methods=methods, models=("logistic",))
    return question(request, load(request.question))


def test_few_large_groups_have_rows_that_use_them_and_a_note(table):
    found = asked(table, group="city", drop=("person",)).table
    assert found.methods == (*recipe.METHODS, "group_dro", "group_balanced")
    (note,) = (note for note in found.notes if "group_dro" in note)
    assert note.startswith("group_dro and group_balanced use the column 'city' of training rows")


@pytest.mark.parametrize("given", [{"drop": ("person", "city")}, {"group": "person", "drop": ("city",)}])
def test_without_groups_or_with_one_for_each_person_there_are_none(table, given):
    found = asked(table, **given).table
    assert found.methods == recipe.METHODS
    assert not any("group_dro" in note for note in found.notes)


def test_a_row_that_was_asked_for_is_named_too(table):
    notes = asked(table, group="city", drop=("person",), methods=("focal+group_dro",)).table.notes
    assert any(note.startswith("focal+group_dro uses the column 'city'") for note in notes)


@pytest.mark.parametrize("text", recipe.GROUP_METHODS)
def test_they_train(table, text, tmp_path):
    settings = {**asked(table, group="city", drop=("person",)).settings, "model": "linear", "epochs": 2}
    spec = Spec(recipe="compare", column="logistic", label=text, settings=settings, method=text, seed=0)
    with Run(spec, tmp_path).open() as writer:
        records = list(recipe.train(settings_of(recipe.Settings, spec), method(text), 0, writer, None))
    assert 0.0 <= records[-1]["test/worst_group"] <= 1.0


def test_which_methods_use_groups():
    assert [recipe.uses_groups(text) for text in ("group_dro", "dfr", "group_balanced+rgd", "rgd", "jtt")] == [
        True, True, True, False, False,
    ]  # fmt: skip
