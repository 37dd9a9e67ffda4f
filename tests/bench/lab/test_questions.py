"""Questions survive storing, and a folder stores each once."""

from __future__ import annotations

import dataclasses
import json

import pytest
from synthetic_runs import make_table

from reweigh.bench.lab import experiment, plan, questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.table import Column, Row
from reweigh.bench.recipes import longtail


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_every_question_comes_back_as_it_was(tmp_path, name, preset):
    question = experiment.question(name, experiment.Options(preset=preset))
    specs = plan.tuning(question)
    questions.store(tmp_path, question, specs)
    (stored,) = questions.stored(tmp_path)
    assert stored.question == question
    assert stored.runs == tuple(dict.fromkeys(spec.id for spec in specs))
    assert [spec.id for spec in plan.tuning(stored.question)] == [spec.id for spec in specs]


def test_columns_and_rows_set_only_what_the_recipe_has(monkeypatch):
    column, row = Column(name="x", settings={"nonsense": 1}), Row(method="mean", settings={"nonsense": 1})
    whole = longtail.table("smoke")
    for broken in (
        dataclasses.replace(whole, columns=(column,)),
        dataclasses.replace(whole, rows={"y": row}),
    ):
        monkeypatch.setattr(longtail, "table", lambda preset, table=broken: table)
        with pytest.raises(ValueError, match="nonsense"):
            experiment.question("longtail", experiment.Options(preset="smoke"))


def test_a_question_is_stored_once_and_forgets_no_run(tmp_path):
    table = make_table(trials=2)
    question = plan.Question(recipe="made_up", table=table, settings={"lr": 0.1, "imbalance": 1.0}, preset="cpu")
    tuning = plan.tuning(question)
    path = questions.store(tmp_path, question, tuning)
    assert questions.store(tmp_path, question, tuning[:1]) == path  # interrupted early the second time
    other = plan.Question(recipe="made_up", table=table, settings={"lr": 0.2, "imbalance": 1.0}, preset="cpu")
    questions.store(tmp_path, other, ())
    newest, oldest = questions.stored(tmp_path, recipe="made_up")
    assert (newest.question, oldest.question) == (other, question)
    assert oldest.runs == tuple(spec.id for spec in tuning)
    assert questions.stored(tmp_path, recipe="toy") == []
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"recipe": "made_up"})])
def test_a_file_that_holds_no_question_is_named(tmp_path, content):
    path = tmp_path / "made_up" / "questions" / "abc.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path} does not hold a question"):
        questions.stored(tmp_path)
