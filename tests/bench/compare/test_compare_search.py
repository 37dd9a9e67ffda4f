"""The order of a search, what it drops, when it stops, and what an answer may rest on: no training, fake clocks."""

import dataclasses
import itertools
import math

import pytest

from reweigh.bench.compare import actions, recipe
from reweigh.bench.compare import search as searching
from reweigh.bench.compare.search import search
from reweigh.bench.lab import plan, results
from reweigh.bench.lab.executors.local import Failure, OutOfTimeError
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.train import scores as metrics
from reweigh.method import method

METHODS = ("mean", "mean+prior", "rgd", "focal")


def question(columns=("mlp",), methods=METHODS, **settings):
    table = Table(
        title="t",
        question="q",
        columns=tuple(Column(name=c, settings={}, methods=methods) for c in columns),
        methods=methods,
        rows=recipe.corrections(methods, metrics.CLASSIFICATION[0], metrics.ScoringRules()),
        metric="test/accuracy",
        metric_name="accuracy",
        select="val/accuracy",
        overlap=1 / 3,
    )
    return plan.Question(recipe="compare", table=table, settings={"lr": 0.1, "base": "", **settings})


class World:
    """A machine on which every training takes as long as it is told, one after the other; corrections take none.

    `gains` are what rows gain over plain training in test accuracy; their noise is a tenth of a point.
    """

    def __init__(self, monkeypatch, *, each=1.0, broken=(), interrupt_after=None, gains=None, noise=0.001):
        self.now, self.each, self.broken, self.left = 0.0, each, broken, interrupt_after
        self.gains, self.noise = gains or {}, noise
        self.stages, self.done = [], []
        self.validation = lambda rate: (0.6 if rate == 0.05 else 0.5, 1.0)
        monkeypatch.setattr(searching.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(searching, "execute", self.execute)
        monkeypatch.setattr(searching, "Workers", self.workers)

    def workers(self, jobs, device="cpu", environment=None):
        class Nobody:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                return None

        nobody = Nobody()
        nobody.jobs = jobs
        return nobody

    def execute(self, specs, root, *, workers, display, title, deadline, clock):
        assert clock() == self.now
        self.stages.append(title)
        failures = []
        for spec in specs:
            run = Run(spec, root)
            if run.done:
                continue
            if self.left is not None and len(self.done) >= self.left:
                raise KeyboardInterrupt
            each = 0.0 if spec.settings["base"] else self.each
            if self.now + each > deadline:
                self.now = deadline
                raise OutOfTimeError(title)
            self.now += each
            if spec.label in self.broken:
                failures.append(Failure(spec=spec, reason="Traceback\nValueError: it broke"))
                continue
            if spec.settings["base"]:
                text = str(dataclasses.replace(method(spec.method), post=None))
                settings = {**spec.settings, "base": ""}
                base = dataclasses.replace(spec, label=spec.settings["base"], method=text, settings=settings)
                assert Run(base, root).done, "a correction follows the training that it corrects"
            with run.open() as writer:
                accuracy, loss = self.validation(spec.settings["lr"])
                wave = self.noise * math.sin(7.0 * spec.seed + sum(map(ord, spec.label)))
                value = 0.5 + self.gains.get(spec.label, 0.0) + wave
                writer.record({"val/accuracy": accuracy, "val/loss": loss, "test/accuracy": value})
                writer.finish({"seconds": each})
            self.done.append(spec)
        return failures


def go(world, root, budget, asked=None):
    asked = asked or question()
    stages = []

    def on_stage(outcome):
        gathered = results.of_runs("compare", asked.table, [*outcome.runs, *outcome.tuning])
        stages.append(len(outcome.runs))
        return gathered, actions.decide(gathered, 0.01)

    found = search(asked, root, jobs=1, budget=budget, display=None, on_stage=on_stage)
    return found, stages


def splits_of(found, label, column="mlp"):
    return {run.spec.seed for run in found.runs if (run.spec.column, run.spec.label) == (column, label)}


#: Nothing can be decided: differences go up and down by ten points.
OPEN = {"noise": 0.1}


def test_written_methods_come_first_then_tuning_then_rounds_until_there_are_enough(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    found, stages = go(world, tmp_path, 10_000)
    stages_shown = [title for title in world.stages if not title.endswith(("corrections", "plain training"))]
    assert [title for title in stages_shown if "control" not in title][:13] == [
        *(f"as written, split {i}" for i in range(1, 6)),
        "tuning over 3 learning rates",
        *(f"tuned, split {i}" for i in range(1, 6)),
        "tuned, splits 6 to 10",
        "tuned, splits 11 to 15",
    ]
    assert found.ended == "finished"
    assert found.tuned
    assert splits_of(found, "mean") == splits_of(found, "mean+prior") == set(range(searching.MOST))
    # Half the rate is the best trial on validation rows, for every method alike.
    assert {run.spec.settings["lr"] for run in found.runs if run.spec.label in METHODS} == {0.05}
    assert stages[:5] == sorted(stages[:5])
    assert stages[6:] == sorted(stages[6:]), "from the second tuned split on, the tuned rows are judged"


def test_plain_training_comes_first_and_corrections_take_no_training(monkeypatch, tmp_path):
    world = World(monkeypatch)
    go(world, tmp_path, 10_000)
    first = [(spec.seed, spec.label) for spec in world.done[:20]]
    assert first == [(seed, label) for seed in range(5) for label in METHODS]
    assert world.now == sum(not spec.settings["base"] for spec in world.done)


def test_every_method_is_tuned_over_the_same_rates_on_splits_of_their_own(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch, **OPEN), tmp_path, 10_000)
    for label, settings in (("mean", 1), ("mean+prior", 0), ("rgd", 3), ("focal", 3)):
        trials = [run.spec for run in found.tuning if run.spec.label == label]
        assert len(trials) == 3 * settings * 3, label
        assert {round(spec.settings["lr"], 3) for spec in trials} == ({0.05, 0.1, 0.15} if settings else set())
        assert {spec.seed - plan.TUNING_SEED for spec in trials} == ({0, 5, 10} if settings else set())
    assert not {run.spec.seed for run in found.tuning} & set(range(searching.MOST))


def test_ties_of_trials_go_to_the_lower_log_loss(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    # All rates are equal in accuracy; one and a half times the rate has the lower loss.
    world.validation = lambda rate: (0.5, 0.9 if math.isclose(rate, 0.15) else 1.0)
    found, _ = go(world, tmp_path, 10_000)
    assert found.tuned
    assert {round(run.spec.settings["lr"], 6) for run in found.runs if run.spec.label == "mean"} == {0.15}


def test_little_time_leaves_the_methods_as_written_and_adds_splits(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    # A split of three trained rows takes 3; tuning would take 63.
    found, _ = go(world, tmp_path, 50.0)
    assert not found.tuned
    assert found.rates == 0
    assert found.ended == "time"
    assert world.now == 50.0, "the whole budget is used"
    assert splits_of(found, "mean") == set(range(17))
    assert splits_of(found, "focal") == set(range(16))
    assert {run.spec.settings["lr"] for run in found.runs} == {0.1}


def test_the_end_of_time_in_the_middle_of_a_round_keeps_what_has_finished(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch, **OPEN), tmp_path, 15 + 7.5)
    assert found.ended == "time"
    assert splits_of(found, "mean") == set(range(8))
    assert splits_of(found, "rgd") == splits_of(found, "focal") == set(range(7)), "two of the second round"


def test_small_networks_train_two_rounds_at_once(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    go(world, tmp_path, 10_000, question(model="mlp", large=False))
    shown = [title for title in world.stages if not title.endswith(("corrections", "plain training"))]
    assert [title for title in shown if "control" not in title] == [
        "as written, splits 1 to 10",
        "tuning over 3 learning rates",
        "tuned, splits 1 to 10",
        "tuned, splits 11 to 20",
        "tuned, splits 21 to 30",
        "fewer training rows",
    ]


def test_the_winner_is_tried_on_fewer_training_rows_in_the_end(monkeypatch, tmp_path):
    world = World(monkeypatch, gains={"mean+prior": 0.08})
    found, _ = go(world, tmp_path, 10_000)
    rows = {(run.spec.label, run.spec.settings["train_share"]) for run in found.smaller}
    assert rows == {(label, share) for label in ("mean", "mean+prior") for share in searching.SHARES}
    assert {run.spec.seed for run in found.smaller} == set(range(5))
    assert not {run.spec.id for run in found.smaller} & {run.spec.id for run in found.runs}


def test_a_clock_of_its_own_counts_the_budget(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    monkeypatch.setattr(searching.time, "monotonic", lambda: pytest.fail("another clock was given"))
    asked = question()

    def on_stage(outcome):
        gathered = results.of_runs("compare", asked.table, outcome.runs)
        return gathered, actions.decide(gathered, 0.01)

    found = search(asked, tmp_path, jobs=1, budget=20.0, display=None, on_stage=on_stage, clock=lambda: world.now)
    assert found.ended == "time"
    assert found.seconds == 20.0


def test_tuned_rows_are_never_compared_with_untuned_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(searching, "_TUNING_SHARE", 10.0)
    world = World(monkeypatch, **OPEN)
    found, _ = go(world, tmp_path, 15 + 63 + 1.5)  # one split of plain training is tuned, which no interval is made of
    assert not found.tuned
    assert {run.spec.settings["lr"] for run in found.runs} == {0.1}
    more, _ = go(world, tmp_path, 15 + 63 + 4.5)
    assert more.tuned, "plain training, its correction and another row of four"
    assert {run.spec.settings["lr"] for run in more.runs} == {0.05}


def test_a_search_stops_when_the_best_is_decided_beyond_doubt(monkeypatch, tmp_path):
    world = World(monkeypatch, gains={"focal": 0.08})
    found, _ = go(world, tmp_path, 10_000)
    assert found.ended == "decided"
    assert found.seconds < 10_000
    assert splits_of(found, "mean") == set(range(10)), "the first look is after two rounds"


def test_a_search_stops_when_plain_training_is_shown_to_be_as_good(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch), tmp_path, 10_000)
    assert found.ended == "decided"
    assert splits_of(found, "mean") == set(range(20))


def test_what_cannot_win_is_dropped_but_not_what_the_question_is_about(monkeypatch, tmp_path):
    world = World(monkeypatch, gains={"rgd": -0.3, "focal": -0.3}, noise=0.02)
    found, _ = go(world, tmp_path, 10_000)
    assert found.dropped == {("mlp", "focal"): 5}
    assert splits_of(found, "rgd") == splits_of(found, "mean")
    written = [run for run in found.runs if run.spec.label == "focal"]
    assert found.tuned
    assert {run.spec.seed for run in written} == set(range(5)), "it is still reported, as written"
    assert {run.spec.settings["lr"] for run in written} == {question().settings["lr"]}


def test_a_model_that_cannot_win_is_dropped_as_a_whole(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    execute = world.execute

    def worse(specs, root, **more):
        for spec in specs:
            world.gains = dict.fromkeys(METHODS, -1.0 if spec.column == "logistic" else 0.0)
            execute([spec], root, **more)
        return []

    monkeypatch.setattr(searching, "execute", worse)
    found, _ = go(world, tmp_path, 10_000, question(columns=("mlp", "logistic")))
    assert {key for key in found.dropped if key[0] == "logistic"} == {("logistic", label) for label in METHODS}
    assert splits_of(found, "mean") == set(range(searching.MOST))
    assert {run.spec.label for run in found.runs if run.spec.column == "logistic"} == set(METHODS)


def test_scale_controls_run_last_and_only_for_a_gain(monkeypatch, tmp_path):
    world = World(monkeypatch, gains={"rgd": 0.05, plan.NORMALISED: 0.05})
    asked = question(methods=("mean", "rgd"))
    asked = dataclasses.replace(asked, settings={**asked.settings})
    found, _ = go(world, tmp_path / "gain", 10_000, asked)
    last = [title for title in world.stages if not title.startswith("fewer training rows")][-1]
    assert last.startswith("scale control")
    assert splits_of(found, plan.NORMALISED) == splits_of(found, plan.SCALED_BASELINE) == splits_of(found, "rgd")
    none = World(monkeypatch, **OPEN)
    go(none, tmp_path / "none", 10_000, asked)
    assert not any("scale control" in title for title in none.stages)


def test_an_interruption_keeps_what_has_finished(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch, interrupt_after=12), tmp_path, 10_000)
    assert found.ended == "interrupted"
    assert splits_of(found, "mean") == splits_of(found, "focal") == {0, 1, 2}


def test_the_same_search_goes_on_where_it_stopped(monkeypatch, tmp_path):
    first = World(monkeypatch, **OPEN)
    go(first, tmp_path, 30.0)
    second = World(monkeypatch, **OPEN)
    found, _ = go(second, tmp_path, 10_000)
    assert found.tuned
    ids = [spec.id for spec in itertools.chain(first.done, second.done)]
    assert len(ids) == len(set(ids)), "nothing is done twice"


def test_a_method_that_fails_does_not_hold_up_the_others(monkeypatch, tmp_path):
    found, _ = go(World(monkeypatch, broken=("focal",), **OPEN), tmp_path, 10_000)
    assert found.failed == {("mlp", "focal"): "ValueError: it broke"}
    assert splits_of(found, "mean") == splits_of(found, "rgd") == set(range(searching.MOST))
    assert found.tuned


def test_what_is_on_disk_is_the_answer_again_however_little_time_is_given(monkeypatch, tmp_path):
    world = World(monkeypatch, **OPEN)
    first, _ = go(world, tmp_path, 300)
    assert first.tuned
    again, _ = go(world, tmp_path, 0.5)
    assert again.tuned
    assert splits_of(again, "mean") == splits_of(first, "mean")


@pytest.mark.parametrize("budget", range(20, 120, 7))
def test_no_row_has_more_splits_than_plain_training(monkeypatch, tmp_path, budget):
    """Wherever the time ends: plain training is in every pair."""
    found, _ = go(World(monkeypatch, **OPEN), tmp_path, budget)
    for label in METHODS:
        assert splits_of(found, label) <= splits_of(found, "mean")
