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


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ["mean", "rgd", "absgd", "class_balanced+rgd", "focal+rgd+sam", "dft"])
def test_every_method_is_tuned_over_the_same_rates_with_each_of_its_settings(name, count):
    found = trials(name, 0.1, count)
    assert found[0] == Trial(method=str(method(name)), lr=0.1)
    assert len(set(found)) == len(found)
    rates = {t.lr for t in trials("mean", 0.1, count)}
    assert len(rates) == count
    settings = {t.method for t in found}
    assert {(t.method, t.lr) for t in found} == {(text, lr) for text in settings for lr in rates}
    assert len(settings) <= count


def test_three_rates_are_below_at_and_above_the_baselines():
    assert sorted(round(t.lr / 0.1, 3) for t in trials("mean", 0.1, 3)) == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("card", [c for c in cards() if c.slot == "objective"], ids=lambda c: c.name)
def test_every_trial_is_a_method(card):
    for trial in trials(card.name, 0.1, 5):
        method(trial.method)


def test_five_rates_of_rgd_are_crossed_with_every_tau_and_three_with_taus_far_apart():
    pairs = {(method(t.method).objective.tau, round(t.lr / 0.1, 2)) for t in trials("rgd", 0.1, 5)}
    assert pairs == {(tau, rate) for tau in (1, 3, 5, 7, 9) for rate in (0.5, 0.75, 1.0, 1.25, 1.5)}
    assert {method(t.method).objective.tau for t in trials("rgd", 0.1, 3)} == {1, 5, 9}


def test_as_written_moves_the_rate_alone():
    assert {t.method for t in trials("rgd:tau=7", 0.1, 5, as_written=True)} == {"rgd:tau=7"}


def test_tuning_runs_never_use_a_seed_of_the_comparison():
    tuning = plan.tuning(QUESTION)
    candidates = sum(len(trials(name, 0.1, 5)) for name in TABLE.methods)
    assert len(tuning) == 2 * candidates * 3, "two columns, three seeds"
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
            writer.record({"val/accuracy": 0.001 * i, "test/accuracy": 1.0 - 0.001 * i})
            writer.finish({})
    chosen = plan.choose(QUESTION, tuning, tmp_path)
    assert set(chosen) == {(c, m) for c in "ab" for m in (*TABLE.methods, plan.AT_PLAIN_RATE)}
    for column, label in ((c, m) for c in "ab" for m in TABLE.methods):
        last = [s for s in tuning if (s.column, s.label) == (column, label)][-1]
        assert chosen[column, label] == Trial(method=last.method, lr=last.settings["lr"])


def write(spec, root, score):
    with Run(spec, root).open() as writer:
        writer.resume()
        writer.record({"val/accuracy": score, "test/accuracy": 0.0})
        writer.finish({})


def test_trials_are_chosen_by_their_mean_over_seeds(tmp_path):
    table = dataclasses.replace(TABLE, columns=TABLE.columns[:1], methods=("mean",), trials=3)
    question = dataclasses.replace(QUESTION, table=table)
    # The first rate has the best single seed, the second the best mean; the third lacks a seed that would have won.
    scores = {0: (0.9, 0.1, 0.1), 1: (0.6, 0.6, 0.6), 2: (0.95, 0.95, None)}
    tuning = plan.tuning(question)
    assert len(tuning) == 9
    for i, spec in enumerate(tuning):
        score = scores[i // 3][spec.seed - plan.TUNING_SEED]
        if score is not None:
            write(spec, tmp_path, score)
    assert plan.choose(question, tuning, tmp_path)["a", "mean"].lr == tuning[3].settings["lr"]


def test_rgd_also_runs_at_plain_trainings_rate(tmp_path):
    table = dataclasses.replace(TABLE, columns=TABLE.columns[:1], methods=("mean", "rgd"), trials=2, seeds=2)
    question = dataclasses.replace(QUESTION, table=table)
    tuning = plan.tuning(question)

    def run(best: float, folder):
        """Plain training is best at its own rate, RGD with tau 9, and at this rate a little more."""
        for spec in tuning:
            tau = getattr(method(spec.method).objective, "tau", 0)
            score = 0.5 * (spec.settings["lr"] == 0.1) if spec.label == "mean" else 0.1 * (tau == 9)
            write(spec, folder, score + 0.01 * (spec.label == "rgd" and spec.settings["lr"] == best))
        return plan.comparison(question, plan.choose(question, tuning, folder))

    other = [s for s in run(0.15000000000000002, tmp_path / "other") if s.label == plan.AT_PLAIN_RATE]
    assert {(s.method, s.settings["lr"], s.seed) for s in other} == {("rgd:tau=9", 0.1, 0), ("rgd:tau=9", 0.1, 1)}
    same = run(0.1, tmp_path / "same")
    assert plan.AT_PLAIN_RATE not in {s.label for s in same}, "it would be the same run twice"


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


def test_the_last_epoch_counts_unless_the_protocol_stops_early(tmp_path):
    records = [{"val/accuracy": value} for value in (0.2, 0.9, 0.4)]
    best = dataclasses.replace(TABLE, epoch="best")
    assert (TABLE.chosen(records), best.chosen(records)) == (2, 1)
    assert TABLE.rule == "at the last epoch"
    assert best.rule == "at the epoch with the largest val/accuracy, earliest epoch on ties"
    table = dataclasses.replace(TABLE, columns=TABLE.columns[:1], methods=("mean",), trials=2)
    tuning = plan.tuning(dataclasses.replace(QUESTION, table=table))
    # The first rate has the better epoch, the second the better end.
    for spec, scores in zip(tuning, ((0.9, 0.1), (0.5, 0.5)), strict=True):
        with Run(spec, tmp_path).open() as writer:
            for score in scores:
                writer.record({"val/accuracy": score, "test/accuracy": 0.0})
            writer.finish({})
    for rule, index in (("best", 0), ("last", 1)):
        asked = dataclasses.replace(QUESTION, table=dataclasses.replace(table, epoch=rule))
        assert plan.choose(asked, tuning, tmp_path)["a", "mean"].lr == tuning[index].settings["lr"]


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


def test_without_a_number_to_choose_by_the_last_epoch_is_taken():
    table = dataclasses.replace(TABLE, epoch="best")
    nan = float("nan")
    assert table.best([nan, nan, nan]) == 2
    assert table.best([nan, 0.3, nan]) == 1
    assert table.chosen([{}, {}]) == 1
