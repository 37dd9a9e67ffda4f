"""Tuning with Optuna: equal budgets, spaces from the cards, hopeless trials stopped, and nothing lost in a kill."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from reweigh.bench.cli import options
from reweigh.bench.cli.commands import run as run_command
from reweigh.bench.lab import experiment, plan, results
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import Failure, work
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run, Spec, load_runs
from reweigh.bench.lab.table import Column, Row, Table
from reweigh.bench.lab.tuning import optuna as tuning_optuna
from reweigh.method import method

optuna = pytest.importorskip("optuna")
EPOCHS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    lr: float = 0.1
    epochs: int = EPOCHS


def score(lr: float, tau: float, epoch: int) -> float:
    """A made-up validation score: best at a rate of 0.15 and a tau of 3, and better from epoch to epoch."""
    quality = -(math.log(lr / 0.15) ** 2) - 0.3 * math.log(tau / 3.0) ** 2
    return 0.5 + 0.4 * math.exp(quality) * epoch / EPOCHS


def train(settings, chosen, seed, writer, scale):
    writer.resume()
    tau = getattr(chosen.objective, "tau", 1.0)
    for epoch in range(1, settings.epochs + 1):
        value = score(settings.lr, tau, epoch)
        yield {"epoch": epoch, "progress": epoch / EPOCHS, "val/accuracy": value, "test/accuracy": value}


TABLE = Table(
    title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean", "rgd"), metric="test/accuracy",
    metric_name="accuracy", select="val/accuracy", trials=9,
)  # fmt: skip
ASKED = Question(recipe="made_up", table=TABLE, settings=dataclasses.asdict(Settings()))


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    known = recipes.complete(SimpleNamespace(Settings=Settings, train=train, table=lambda preset: TABLE))
    monkeypatch.setattr(recipes, "load", lambda name: known)


class InProcess:
    """Does runs in this process; may be interrupted before one of them, or in the middle of it."""

    def __init__(self, root, interrupt=None):
        self.root, self.interrupt, self.done = root, interrupt, 0

    def __call__(self, title, specs):
        failures = []
        for spec in specs:
            if self.interrupt is not None and self.done >= self.interrupt:
                raise KeyboardInterrupt
            self.done += not Run(spec, self.root).over
            for _, reason in work([spec.as_dict()], str(self.root)) or ():
                failures.append(Failure(spec=spec, reason=reason))
        return failures


def tuned(root, asked=ASKED, **options):
    return tuning_optuna.tune(asked, root, InProcess(root), **options)


def by_label(specs):
    labels = dict.fromkeys(spec.label for spec in specs)
    return {label: [(s.method, s.settings["lr"]) for s in specs if s.label == label] for label in labels}


def test_every_method_has_the_same_number_of_trials_and_the_first_is_as_written(tmp_path):
    specs, failures = tuned(tmp_path)
    assert failures == []
    found = by_label(specs)
    assert {label: len(set(trials)) for label, trials in found.items()} == {"mean": 9, "rgd": 9}
    assert found["mean"][0] == ("mean", 0.1)
    assert found["rgd"][0] == ("rgd", 0.1)
    for label, trials in found.items():
        assert all(0.025 <= lr <= 0.2 for _, lr in trials)
        taus = {method(text).objective.tau for text, _ in trials} if label == "rgd" else {1.0}
        assert all(1.0 <= tau <= 9.0 for tau in taus)  # what the card says
    assert {spec.seed for spec in specs} == {plan.TUNING_SEED}
    assert {spec.stage for spec in specs} == {"tune"}
    assert all(Run(spec, tmp_path).over for spec in specs)


def test_it_learns_from_its_trials(tmp_path):
    table = dataclasses.replace(TABLE, trials=25)
    specs, _ = tuned(tmp_path, dataclasses.replace(ASKED, table=table))
    chosen = plan.choose(ASKED, specs, tmp_path)["c", "rgd"]
    best = score(0.15, 3.0, EPOCHS)
    assert score(chosen.lr, method(chosen.method).objective.tau, EPOCHS) > best - 0.02
    late = [s for s in specs if s.label == "rgd"][-10:]
    assert sum(abs(math.log(s.settings["lr"] / 0.15)) for s in late) / 10 < 0.5  # at random it would be 0.8


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("rgd", "objective.tau", (1.0, 9.0)),
        ("rgd:tau=20", "objective.tau", (1.0, 20.0)),  # as written is part of the space
        ("term:t=-1", "objective.t", (0.1, 5.0)),
        ("self_paced", "objective.soft", (None, "linear")),
        ("rgd+ema", "average.decay", (0.999, 0.99, 0.9999)),
    ],
)
def test_spaces_come_from_the_cards(text, name, expected):
    table = dataclasses.replace(TABLE, methods=("mean", text))
    (_, row) = tuning_optuna.rows(dataclasses.replace(ASKED, table=table))
    distribution = row.space()[name]
    if isinstance(distribution, optuna.distributions.FloatDistribution):
        assert (distribution.low, distribution.high, distribution.log) == (*expected, True)
    else:
        assert distribution.choices == expected
    assert method(row.spec(row.first()).method) == method(text)


def test_a_negative_tilt_stays_negative(tmp_path):
    table = dataclasses.replace(TABLE, methods=("mean", "term:t=-1"))
    specs, _ = tuned(tmp_path, dataclasses.replace(ASKED, table=table))
    tilts = [method(spec.method).objective.t for spec in specs if spec.label != "mean"]
    assert all(t < 0 for t in tilts)
    assert len(set(tilts)) > 4


def test_rows_kept_as_written_move_the_rate_alone(tmp_path):
    table = dataclasses.replace(TABLE, as_written=True, rows={"mine": Row(method="rgd:tau=7")}, methods=("mine",))
    specs, _ = tuned(tmp_path, dataclasses.replace(ASKED, table=table))
    assert {spec.method for spec in specs} == {"rgd:tau=7"}
    assert len({spec.settings["lr"] for spec in specs}) == 9


def test_hopeless_trials_are_stopped_and_count(tmp_path):
    specs, _ = tuned(tmp_path)
    runs = {spec.id: Run(spec, tmp_path) for spec in specs}
    pruned = [run for run in runs.values() if run.pruned]
    assert pruned
    for run in pruned:
        assert not run.done
        assert EPOCHS * 0.25 <= len(run.records()) < EPOCHS
    # By hand: at the epoch it stopped, at least three quarters of the finished trials before it were better.
    for label in ("mean", "rgd"):
        mine = [runs[spec.id] for spec in specs if spec.label == label]
        for number, run in enumerate(mine):
            if run.pruned:
                epoch = len(run.records())
                earlier = [r.records()[epoch - 1]["val/accuracy"] for r in mine[:number] if r.done]
                better = sum(value > run.records()[-1]["val/accuracy"] for value in earlier)
                assert better >= 0.75 * (len(earlier) - 1)  # a quantile between two of them is interpolated
                assert number >= 2
    full = {
        run.spec.id: score(run.spec.settings["lr"], method(run.spec.method).objective.tau, EPOCHS)
        for run in runs.values()
        if run.spec.label == "rgd"
    }
    chosen = plan.choose(ASKED, specs, tmp_path)["c", "rgd"]
    best = runs[max(full, key=lambda key: full[key])].spec
    assert (chosen.method, chosen.lr) == (best.method, best.settings["lr"])  # stopping lost nothing
    # A stopped trial is no unfinished business of the report.
    assert not results.of_runs("made_up", TABLE, load_runs(tmp_path)).unfinished


@pytest.mark.parametrize("after", [0, 1, 5, 10, 17])
def test_an_interrupted_search_goes_on_as_if_nothing_had_happened(tmp_path, after):
    whole, _ = tuned(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tuning_optuna.tune(ASKED, tmp_path / "broken", InProcess(tmp_path / "broken", interrupt=after))
    resumed, _ = tuned(tmp_path / "broken")
    assert resumed == whole
    for spec in whole:
        ours, theirs = Run(spec, tmp_path / "broken"), Run(spec, tmp_path / "whole")
        assert ours.records() == theirs.records()
        assert ours.pruned == theirs.pruned
    again, _ = tuned(tmp_path / "broken")
    assert again == whole


def test_killed_in_the_middle_of_a_choice(tmp_path):
    whole, _ = tuned(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tuning_optuna.tune(ASKED, tmp_path / "broken", InProcess(tmp_path / "broken", interrupt=4))
    row = tuning_optuna.rows(ASKED)[1]
    storage = str((tmp_path / "broken" / "made_up" / "optuna.journal").resolve())
    study = tuning_optuna._study(row.name, storage, smallest=False)
    study.ask({"objective.tau": row.space()["objective.tau"]})  # the rate was not chosen yet
    resumed, _ = tuned(tmp_path / "broken")
    assert resumed == whole


def test_a_database_keeps_the_same_studies(tmp_path):
    journal, _ = tuned(tmp_path / "journal")
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    database, _ = tuned(tmp_path / "database", storage=url)
    assert database == journal
    assert not (tmp_path / "database" / "made_up" / "optuna.journal").exists()
    assert len(optuna.get_all_study_summaries(storage=url)) == 2


def test_less_can_be_better(tmp_path):
    table = dataclasses.replace(TABLE, smallest=True, select="val/loss", trials=12)

    def losing(settings, chosen, seed, writer, scale):
        for record in train(settings, chosen, seed, writer, scale):
            yield {**record, "val/loss": 1 - record["val/accuracy"]}

    recipes.load("made_up").train = losing
    asked = dataclasses.replace(ASKED, table=table)
    specs, _ = tuned(tmp_path, asked)
    chosen = plan.choose(asked, specs, tmp_path)["c", "mean"]
    assert abs(math.log(chosen.lr / 0.15)) < 0.25
    assert any(Run(spec, tmp_path).pruned for spec in specs)


def test_a_trial_that_fails_is_tried_again_by_the_same_command(tmp_path):
    def failing(settings, chosen, seed, writer, scale):
        if settings.lr != 0.1 and "rgd" in str(chosen):
            raise OSError("no room")
        yield from train(settings, chosen, seed, writer, scale)

    recipe = recipes.load("made_up")
    recipe.train = failing
    specs, failures = tuned(tmp_path)
    assert len(failures) == 8
    assert "no room" in failures[0].reason
    recipe.train = train
    again, failures = tuned(tmp_path)
    assert failures == []
    assert again == specs
    assert all(Run(spec, tmp_path).over for spec in again)


def test_a_broken_down_trial_counts(tmp_path):
    def diverging(settings, chosen, seed, writer, scale):
        for record in train(settings, chosen, seed, writer, scale):
            yield record if settings.lr < 0.12 else {**record, "val/accuracy": float("nan")}

    recipes.load("made_up").train = diverging
    specs, failures = tuned(tmp_path)
    assert failures == []
    assert len(specs) == 18
    assert plan.choose(ASKED, specs, tmp_path)["c", "mean"].lr < 0.12


def test_a_stopped_run_is_done_to_its_end_where_a_fixed_plan_asks_for_it(tmp_path, monkeypatch):
    spec = plan.tuning(ASKED)[3]
    run = Run(spec, tmp_path)
    with run.open() as writer:
        writer.resume()
        writer.record({"epoch": 1, "val/accuracy": 0.1})
        writer.prune()
    (run.directory / "trial.json").write_text(json.dumps({}))
    options = experiment.Options(runs_dir=tmp_path)
    experiment._tune(ASKED, options, InProcess(tmp_path))
    assert run.done
    assert not run.pruned
    assert len(run.records()) == EPOCHS


def test_a_recipe_that_draws_its_own_is_refused(tmp_path):
    table = dataclasses.replace(TABLE, draws="draw")
    with pytest.raises(ValueError, match="draws its own"):
        tuned(tmp_path, dataclasses.replace(ASKED, table=table))


def test_the_command_line():
    assert options.trials("optuna") is None
    assert options.trials("optuna:12") == 12
    assert run_command._tuner("optuna:12", None) == run_command._tuner("optuna", "sqlite:///x.db") == "optuna"
    assert run_command._tuner("5", None) == run_command._tuner(None, None) == "latin"
    with pytest.raises(ValueError, match="add `--tune optuna`"):
        run_command._tuner("5", "sqlite:///x.db")
    with pytest.raises(ValueError, match="got 'many'"):
        options.trials("optuna:many")
    with pytest.raises(ValueError, match="add `--executor ray`"):
        run_command._address("local", "auto")


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"reweigh\[optuna\]"):
        tuning_optuna._study("s", str(tmp_path / "j"), smallest=False)


def test_runs_are_watched_only_if_they_are_trials(tmp_path):
    spec = Spec(recipe="made_up", column="c", label="mean", settings={"lr": 0.1}, method="mean", seed=0)
    assert tuning_optuna.watch(Run(spec, tmp_path)) is None
