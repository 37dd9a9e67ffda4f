"""One process encodes a split of a large table, and all others map it: the numbers are the same, and in memory once."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from reweigh.bench.compare import reading, recipe, shared, tasks
from reweigh.bench.compare.dealing import deal
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.shared import SharedSplits
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.compare.tasks import SplitOfRows
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.tables import TableEncoder
from reweigh.method import method


@pytest.fixture(autouse=True)
def forget_tasks():
    yield
    for remembered in (tasks._some_tasks, tasks._one_task, tasks._problem, reading.load):
        remembered.cache_clear()


def table(folder, **options):
    draw = np.random.default_rng(0)
    a = draw.normal(size=200)
    frame = pl.DataFrame(
        {
            "a": a,
            "b": draw.choice(["x", "y"], 200),
            "where": draw.choice(["here", "there"], 200),
            "n": 3.0 * a + draw.normal(size=200),
            "t": np.where(a + draw.normal(size=200) > 0, "no", "yes"),
        }
    )
    frame.write_csv(folder / "t.csv")
    return DataQuestion(source=str(folder / "t.csv"), **{"target": "t", **options})


def split(question, seed, large=True):
    return SplitOfRows(question=question, features="", sample=0, seed=seed, large=large)


@pytest.mark.parametrize("options", [{}, {"group": "where"}, {"target": "n", "drop": ("t",)}])
def test_a_shared_split_is_the_split(tmp_path, options, monkeypatch):
    question = table(tmp_path, **options)
    problem = load(question)
    own, _ = deal(problem, parts_of(problem, 0))
    store = SharedSplits(tmp_path / "encoded")
    list(tasks.share([split(question, 0)], problem, store))
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "encoded"))
    monkeypatch.setattr(tasks, "load", lambda question: pytest.fail("the table is read again"))
    theirs = tasks.task(split(question, 0))
    for name in ("x_train", "x_val", "x_test", "y_train", "y_val", "y_test"):
        assert torch.equal(getattr(own, name), getattr(theirs, name)), name
    if options.get("group"):
        assert torch.equal(own.groups, theirs.groups)
    assert (own.classes, own.n_groups) == (theirs.classes, theirs.n_groups)
    outputs = torch.randn(len(own.y_test), max(len(own.classes), 1), generator=torch.Generator().manual_seed(0))
    assert own.score("test", outputs) == theirs.score("test", outputs)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert maps.read_text().count(f"{tmp_path}/encoded/") >= 3


def test_a_split_is_encoded_once_for_all_models_and_methods(tmp_path, monkeypatch):
    question = table(tmp_path)
    problem = load(question)
    calls = []
    transform = TableEncoder.transform
    monkeypatch.setattr(TableEncoder, "transform", lambda *a, **k: calls.append(1) or transform(*a, **k))
    store = SharedSplits(tmp_path / "encoded")
    for _ in range(4):
        list(tasks.share([split(question, seed) for seed in (0, 1, 0, 1)], problem, store))
    assert len(calls) == 2 * 3  # train, validation and test of two splits
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "encoded"))
    for seed in (0, 1, 0, 1):
        tasks.task(split(question, seed))
    assert len(calls) == 2 * 3


def test_other_splits_make_room_once_they_take_much(tmp_path, monkeypatch):
    question = table(tmp_path)
    problem = load(question)
    store = SharedSplits(tmp_path / "encoded")
    first, second = split(question, 0), split(question, 1)
    list(tasks.share([first], problem, store))
    list(tasks.share([second], problem, store))
    assert first.key in store
    assert second.key in store
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "encoded"))
    kept = tasks.task(first)
    own, _ = deal(problem, parts_of(problem, 0))
    monkeypatch.setattr(shared, "_MOST", 100)
    list(tasks.share([second], problem, store))
    assert first.key not in store
    assert second.key in store
    assert torch.equal(kept.x_train, own.x_train)  # whoever works with it keeps it
    shared.remove(tmp_path)
    assert not (tmp_path / "encoded").exists()


def test_what_is_not_there_is_encoded_by_whoever_needs_it(tmp_path, monkeypatch):
    question = table(tmp_path)
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "encoded"))
    own, _ = deal(load(question), parts_of(load(question), 3))
    assert torch.equal(tasks.task(split(question, 3)).x_train, own.x_train)


def test_a_split_is_whole_or_absent(tmp_path):
    """A process that is killed, or a disk that is full, leaves nothing that another would take for a split."""
    question = table(tmp_path)
    problem = load(question)
    store, one = SharedSplits(tmp_path / "encoded"), split(question, 0)

    def torn(room):
        one.dealt(problem, room)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        store.put(one.key, torn)
    assert store.get(one.key) is None
    assert [path.name for path in (tmp_path / "encoded").iterdir()] == ["lock"]
    store.put(one.key, lambda room: one.dealt(problem, room))
    facts = json.loads((tmp_path / "encoded" / one.key / "facts.json").read_text())
    assert facts["classes"] == ["no", "yes"]


def test_a_run_on_shared_rows_is_the_same_run(tmp_path, monkeypatch):
    question = table(tmp_path)
    problem = load(question)
    settings = recipe.settings(question, problem, 1) | {"model": "mlp", "epochs": 3}
    list(tasks.share([split(question, 0)], problem, SharedSplits(tmp_path / "encoded")))
    monkeypatch.setenv(shared.VARIABLE, str(tmp_path / "encoded"))
    records = []
    for large in (False, True):
        spec = Spec(
            recipe="compare", column="mlp", label="rgd", settings={**settings, "large": large}, method="rgd", seed=0
        )
        with Run(spec, tmp_path).open() as writer:
            chosen = recipe.Settings(**{**settings, "large": large})
            records.append(list(recipe.train(chosen, method("rgd"), 0, writer, None)))
    assert records[0] == records[1]
