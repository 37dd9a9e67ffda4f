"""The order of a search, what it does when time runs out, and what an answer may rest on: no training, fake clocks."""

import itertools

import pytest

from reweigh.bench.compare import search as searching
from reweigh.bench.compare.search import search
from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.local import Failure, OutOfTimeError
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.table import Column, Table

METHODS = ("mean", "rgd")


def question(columns=("mlp",), methods=METHODS):
    table = Table(
        title="t",
        question="q",
        columns=tuple(Column(name=c, settings={}, methods=methods) for c in columns),
        methods=methods,
        metric="test/accuracy",
        metric_name="accuracy",
        select="val/accuracy",
        overlap=0.2,
    )
    return plan.Question(recipe="compare", table=table, settings={"lr": 0.1})


class World:
    """A machine on which every run takes as long as it is told, one after the other."""

    def __init__(self, monkeypatch, *, each=1.0, broken=(), interrupt_after=None):
        self.now, self.each, self.broken, self.left = 0.0, each, broken, interrupt_after
        self.stages, self.done = [], []
        monkeypatch.setattr(searching.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(searching, "execute", self.execute)
        monkeypatch.setattr(searching, "Workers", self.workers)

    def workers(self, jobs):
        class Nobody:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                return None

        nobody = Nobody()
        nobody.jobs = jobs
        return nobody

    def execute(self, specs, root, *, workers, display, title, deadline):
        self.stages.append(title)
        failures = []
        for spec in specs:
            run = Run(spec, root)
            if run.done:
                continue
            if self.left is not None and len(self.done) >= self.left:
                raise KeyboardInterrupt
            if self.now + self.each > deadline:
                self.now = deadline
                raise OutOfTimeError(title)
            self.now += self.each
            if spec.label in self.broken:
                failures.append(Failure(spec=spec, reason="Traceback\nValueError: it broke"))
                continue
            with run.open() as writer:
                value = 0.5 + 0.1 * (spec.settings["lr"] == 0.05) + 0.001 * spec.seed
                writer.record({"val/accuracy": value, "test/accuracy": value})
                writer.finish({"seconds": self.each})
            self.done.append(spec)
        return failures


def go(world, root, budget, asked=None):
    told = []
    found = search(
        asked or question(), root, jobs=1, budget=budget, display=None, on_stage=lambda f: told.append(len(f.runs))
    )
    return found, told


def test_defaults_come_first_then_tuning_then_splits_until_there_are_enough(monkeypatch, tmp_path):
    world = World(monkeypatch)
    found, told = go(world, tmp_path, 10_000)
    assert [title for title in world.stages if "control" not in title][:4] == [
        "as written, 3 splits",
        "tuning, 5 trials of each method",
        "tuned, splits 1 to 5",
        "tuned, splits 6 to 10",
    ]
    assert found.ended == "finished"
    assert found.tuned
    assert {run.spec.seed for run in found.runs} == set(range(searching.MOST))
    # Half the rate is the best trial on validation, for both methods alike.
    assert {run.spec.settings["lr"] for run in found.runs if run.spec.label in METHODS} == {0.05}
    assert told == sorted(told)


def test_every_method_has_the_same_number_of_trials(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch), tmp_path, 10_000)
    counts = {label: sum(run.spec.label == label for run in found.tuning) for label in METHODS}
    assert counts == {"mean": 5, "rgd": 5}


def test_little_time_leaves_the_methods_as_written_and_adds_splits(monkeypatch, tmp_path):
    world = World(monkeypatch)
    # Three splits of three rows and a control take 12; tuning (6) and five splits more (15) would not fit.
    found, _ = go(world, tmp_path, 30.0)
    assert not found.tuned
    assert found.trials == 0
    assert found.ended == "time"
    assert {run.spec.settings["lr"] for run in found.runs} == {0.1}
    assert not any("tuning" in title for title in world.stages)


def test_the_end_of_time_in_the_middle_of_a_round_drops_its_incomplete_splits(monkeypatch, tmp_path):
    world = World(monkeypatch)
    monkeypatch.setattr(searching._Search, "_cost", lambda self, specs, **anew: 0.0)
    found, _ = go(world, tmp_path, 12 + 10 + 20 + 7.5)
    assert found.ended == "time"
    assert found.tuned
    seeds = {label: {r.spec.seed for r in found.runs if r.spec.label == label} for label in METHODS}
    # Seven runs of the second round are two splits and a third, which have no scale control as the first five have.
    assert seeds["mean"] == seeds["rgd"] == set(range(5))


def test_the_end_of_time_in_the_middle_of_the_first_round_keeps_its_complete_splits(monkeypatch, tmp_path):
    world = World(monkeypatch)
    monkeypatch.setattr(searching._Search, "_cost", lambda self, specs, **anew: 0.0)
    found, _ = go(world, tmp_path, 12 + 10 + 7.5)
    assert found.tuned
    assert {run.spec.seed for run in found.runs} == {0, 1}


def test_tuned_rows_are_never_compared_with_untuned_ones(monkeypatch, tmp_path):
    world = World(monkeypatch)
    monkeypatch.setattr(searching._Search, "_cost", lambda self, specs, **anew: 0.0)
    found, _ = go(world, tmp_path, 12 + 10 + 4.5)  # one split is tuned, which no interval can be made of
    assert not found.tuned
    assert {run.spec.settings["lr"] for run in found.runs} == {0.1}


def test_an_interruption_keeps_what_is_complete(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch, interrupt_after=14), tmp_path, 10_000)
    assert found.ended == "interrupted"
    assert {run.spec.seed for run in found.runs} == {0, 1, 2}


def test_the_same_search_goes_on_where_it_stopped(monkeypatch, tmp_path):
    first = World(monkeypatch)
    go(first, tmp_path, 30.0)
    second = World(monkeypatch)
    found, _ = go(second, tmp_path, 10_000)
    assert found.tuned
    ids = [spec.id for spec in itertools.chain(first.done, second.done)]
    assert len(ids) == len(set(ids)), "nothing is done twice"


def test_a_method_that_fails_does_not_hold_up_the_others(monkeypatch, tmp_path):
    asked = question(methods=("mean", "rgd", "focal"))
    found, _ = go(World(monkeypatch, broken=("focal",)), tmp_path, 10_000, asked)
    assert found.failed == {("mlp", "focal"): "ValueError: it broke"}
    assert {run.spec.label for run in found.runs} >= {"mean", "rgd"}
    assert found.tuned


@pytest.mark.parametrize("columns", [("mlp", "lightgbm")])
def test_all_models_are_reported_alike(monkeypatch, tmp_path, columns):
    world = World(monkeypatch)
    found, _ = go(world, tmp_path, 10_000, question(columns=columns))
    seeds = [{r.spec.seed for r in found.runs if r.spec.column == c and r.spec.label == "mean"} for c in columns]
    assert seeds[0] == seeds[1]


def test_what_is_on_disk_is_the_answer_again_however_little_time_is_given(monkeypatch, tmp_path):
    world = World(monkeypatch)
    first, _ = go(world, tmp_path, 300)
    assert first.tuned
    splits = {run.spec.seed for run in first.runs}
    again, _ = go(world, tmp_path, 0.5)
    assert again.tuned
    assert {run.spec.seed for run in again.runs} == splits


@pytest.mark.parametrize("budget", range(60, 120, 3))
def test_rows_of_one_table_are_over_the_same_splits(monkeypatch, tmp_path, budget):
    """Wherever the time ends, also in the middle of the scale controls."""
    found, _ = go(World(monkeypatch), tmp_path, budget)
    splits: dict[str, set[int]] = {}
    for run in found.runs:
        splits.setdefault(run.spec.label, set()).add(run.spec.seed)
    if plan.SCALED_BASELINE in splits:
        assert len({frozenset(seeds) for seeds in splits.values()}) == 1
