"""Plans: equal budgets, declared controls, selection on validation data only."""

import dataclasses

import pytest

from reweigh.bench.lab import plan
from reweigh.bench.lab.plan import BASELINE, NORMALISED, SCALED_BASELINE, Question, Trial, trials
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.table import Column, Table
from reweigh.method import cards, method

TABLE = Table(
    title="t",
    question="q",
    columns=(Column(name="a", settings={"imbalance": 10.0}), Column(name="b", settings={"imbalance": 1.0})),
    methods=("mean", "rgd", "term"),
    metric="test/accuracy",
    metric_name="accuracy",
    select="val/accuracy",
)
QUESTION = Question(recipe="r", table=TABLE, settings={"lr": 0.1, "imbalance": 100.0})


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 25, 40])
@pytest.mark.parametrize("name", ["mean", "rgd", "absgd", "class_balanced+rgd", "focal+rgd+sam", "dft"])
def test_every_method_has_the_same_number_of_different_trials(name, count):
    found = trials(name, 0.1, count)
    assert len(found) == len(set(found)) == count
    assert found[0] == Trial(method=str(method(name)), lr=0.1)


@pytest.mark.parametrize("card", [c for c in cards() if c.slot == "objective"], ids=lambda c: c.name)
def test_every_trial_is_a_method(card):
    for trial in trials(card.name, 0.1, 5):
        method(trial.method)


def test_five_trials_of_rgd_see_every_tau_and_every_rate_once():
    found = trials("rgd", 0.1, 5)
    assert sorted(method(t.method).objective.tau for t in found) == [1, 3, 5, 7, 9]
    assert sorted(round(t.lr / 0.1, 2) for t in found) == [0.5, 0.75, 1.0, 1.25, 1.5]


def test_as_written_moves_the_rate_alone():
    assert {t.method for t in trials("rgd:tau=7", 0.1, 5, as_written=True)} == {"rgd:tau=7"}


def test_tuning_runs_never_use_a_seed_of_the_comparison():
    tuning = plan.tuning(QUESTION)
    assert len(tuning) == 2 * 3 * 5
    final = plan.comparison(QUESTION, plan.as_written(QUESTION))
    assert {s.seed for s in tuning}.isdisjoint(s.seed for s in final)
    assert {s.stage for s in tuning} == {"tune"}
    assert {s.settings["imbalance"] for s in tuning} == {10.0, 1.0}


def test_the_best_trial_is_chosen_on_validation_data(tmp_path):
    tuning = plan.tuning(dataclasses.replace(QUESTION, table=dataclasses.replace(TABLE, trials=2)))
    for i, spec in enumerate(tuning):
        with Run(spec, tmp_path).open() as writer:
            writer.resume()
            # The test score points the other way: it must not matter.
            writer.record({"val/accuracy": 0.1 * (i % 2), "test/accuracy": 1.0 - 0.1 * (i % 2)})
            writer.finish({})
    chosen = plan.choose(QUESTION, tuning, tmp_path)
    assert set(chosen) == {(c, m) for c in "ab" for m in TABLE.methods}
    for key, trial in chosen.items():
        assert trial == [Trial(method=s.method, lr=s.settings["lr"]) for s in tuning if (s.column, s.label) == key][1]


def test_both_scale_controls_are_planned():
    chosen = plan.as_written(QUESTION) | {
        ("a", "rgd"): Trial(method="rgd:tau=3", lr=0.05),
        ("a", "mean"): Trial(method="mean", lr=0.15),
    }
    final = plan.comparison(dataclasses.replace(QUESTION, table=dataclasses.replace(TABLE, seeds=2)), chosen)
    normalised = [s for s in final if s.label == NORMALISED and s.column == "a"]
    assert {(s.method, s.settings["lr"]) for s in normalised} == {("rgd:tau=3,normalize=mean", 0.15)}
    controls = plan.scale_controls(QUESTION, final)
    assert len(controls) == 2 * 2
    for control in controls:
        source = next(s for s in final if (s.column, s.label, s.seed) == (control.column, "rgd", control.seed))
        plain = next(s for s in final if (s.column, s.label, s.seed) == (control.column, BASELINE, control.seed))
        assert control.scale_from == source.id
        assert control.label == SCALED_BASELINE
        assert (control.method, control.settings) == (plain.method, plain.settings)


def test_the_rule_ignores_nan_and_takes_the_earliest_of_ties():
    assert TABLE.best([0.1, float("nan"), 0.3, 0.3]) == 2


def test_a_column_cannot_set_what_the_recipe_does_not_have():
    with pytest.raises(ValueError, match="nonsense"):
        QUESTION.column_settings(Column(name="x", settings={"nonsense": 1}))


def test_a_column_may_have_fewer_rows_seeds_and_trials(tmp_path):
    small = Column(name="small", settings={}, methods=("mean", "rgd"), seeds=1, trials=1)
    table = dataclasses.replace(TABLE, columns=(TABLE.columns[0], small), seeds=3, trials=2)
    question = dataclasses.replace(QUESTION, table=table)
    tuning = plan.tuning(question)
    assert {s.column for s in tuning} == {"a"}
    final = plan.comparison(question, plan.choose(question, tuning, tmp_path))
    # Nothing is tuned yet, so only the column that does not tune can be compared.
    assert {(s.column, s.label) for s in final} == {("small", m) for m in ("mean", "rgd", NORMALISED)}
    assert {s.seed for s in final} == {0}


def test_without_controls_there_are_none():
    question = dataclasses.replace(QUESTION, table=dataclasses.replace(TABLE, controls=False))
    final = plan.comparison(question, plan.as_written(question))
    assert NORMALISED not in {s.label for s in final}
    assert plan.scale_controls(question, final) == []


def test_tuning_keeps_the_sign_that_was_written():
    assert all(method(t.method).objective.t < 0 for t in trials("term:t=-1", 0.1, 5))
    assert all(method(t.method).objective.t > 0 for t in trials("term:t=1", 0.1, 5))
