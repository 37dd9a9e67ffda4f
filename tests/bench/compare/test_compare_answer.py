"""The words of an answer follow from the numbers: runs that were never trained, with differences tests know."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions

from reweigh.bench.compare import page, recipe
from reweigh.bench.compare.answer import answer, needed, needed_of_rows, row_name, unit_of
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.search import MOST
from reweigh.bench.lab import plan, results
from reweigh.bench.lab.results import ColumnResults, Outcome, RowResults
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Column
from reweigh.bench.report import advice, write
from reweigh.bench.train import scores as metrics

BALANCED = metrics.CLASSIFICATION[0]
ERROR = metrics.REGRESSION[0]
NOISE = (0.004, -0.004, 0.002, -0.002, 0.003, -0.003, 0.001, -0.001)


def problem(**changes):
    given = {
        "name": "made up",
        "kind": "binary",
        "classes": ("no", "<b>yes</b>"),
        "class_counts": (90, 10),
        "rows": 100,
    }
    return Problem(**{**given, "notes": (), "test_share": 0.2, **changes})


def record(key, value, per_class):
    numbers = {"accuracy": 0.9, "auroc": 0.8, "loss": 0.3, "worst_class": min(per_class)}
    numbers |= {"calibration_error": 0.02, "worst_tenth_loss": 2.0, key: value, "class_accuracy": list(per_class)}
    return {f"{part}/{name}": v for part in ("val", "test") for name, v in numbers.items()} | {
        "epoch": 1,
        "progress": 1.0,
    }


def gathered(root, gains, *, metric=BALANCED, base=0.8, sizes=NOISE, models=("mlp",), of=None, changes=None):
    """Results of eight splits in which each row differs from plain training by its gain and a little noise.

    `changes` are what every row but plain training changes of other metrics.
    """
    of = of or problem()
    columns = tuple(Column(name=name, settings={"model": name}) for name in models)
    methods = ("mean", *(label for label in gains if label not in plan.CONTROLS))
    table = recipe.table(of, columns, methods, "rgd", metric)
    runs = []
    for name in models:
        rows = {"mean": 0.0, **gains}
        for label, gain in rows.items():
            for seed, noise in enumerate(sizes):
                text = {plan.NORMALISED: "rgd:tau=3,normalize=mean", "rgd": "rgd:tau=3"}.get(label, label)
                spec = Spec(recipe="compare", column=name, label=label, settings={"lr": 1.0}, method=text, seed=seed)
                run = Run(spec, root)
                own = noise if label != "mean" else 0.0
                value = base + gain + own
                written = record(metric.key, value, (0.95, 0.65 + 2 * gain + own))
                for key, change in (changes or {}).items() if label != "mean" else ():
                    written[f"test/{key}"] += change + noise / 8
                with run.open() as writer:
                    writer.record(written)
                    writer.finish({"seconds": 1.0})
                runs.append(run)
    return results.of_runs("compare", table, runs)


def answered(root, gains, **more):
    known = metrics.REGRESSION if more.get("metric") is ERROR else metrics.CLASSIFICATION
    of = more.get("of") or problem()
    return answer(gathered(root, gains, **more), known, of.classes, of.groups)


def test_a_gain_is_decided_with_its_interval_and_for_whom(tmp_path):
    found = answered(tmp_path, {"rgd": 0.012, plan.NORMALISED: 0.011})
    assert found.strength == "decided"
    assert found.headline.startswith("Use RGD (tau 3): better than plain training in balanced accuracy, +1.2 points [+")
    assert found.headline.endswith("8 splits.")
    assert (found.model, found.row) == ("mlp", "rgd")
    words = " ".join(found.details)
    assert "1 class gains: '<b>yes</b>' +2.4 [" in words
    assert "No change seen in accuracy, log-loss and calibration error" in words
    assert "RGD (tau 3) against plain training with mlp: is better in balanced accuracy, +1.2 points [" in words
    assert "survives weights normalised to mean one" in words
    # Nadeau and Bengio by hand: sd of the noise, 8 pairs, a fifth of the rows tested on and three fifths trained on.
    sd = np.std(NOISE, ddof=1)
    half = 2.3646242510 * sd * np.sqrt(1 / 8 + 0.2 / 0.6)
    apart = found.models[0].primary
    assert (apart.high - apart.low) / 2 == pytest.approx(half, rel=1e-6)


def test_a_gain_that_normalising_takes_away_is_called_a_larger_step(tmp_path):
    found = answered(tmp_path, {"rgd": 0.012, plan.NORMALISED: 0.0})
    assert found.row == "rgd"
    assert "no longer seen: it may be just a larger step" in found.declared[0]


def test_plain_training_is_kept_only_where_it_is_shown_to_be_within_the_margin(tmp_path):
    found = answered(tmp_path / "narrow", {"rgd": 0.001, "focal": -0.0005})
    assert found.headline == (
        "Keep plain training: none of the 2 alternatives is better by more than 1 point in balanced accuracy."
    )
    assert (found.strength, found.row) == ("decided", "mean")
    # Eight times the noise: the interval reaches five points to either side and shows nothing of the kind.
    wide = answered(tmp_path / "wide", {"rgd": 0.001, "focal": -0.0005}, sizes=tuple(8 * n for n in NOISE))
    assert wide.strength == "undecided"
    assert wide.headline.startswith(
        "Undecided: the best so far is RGD (tau 3). It is ahead of plain training in balanced"
    )
    assert wide.headline.endswith("the model that is kept uses plain training.")
    assert "Keep" not in wide.headline
    # By hand as above, for the larger of both means.
    most = 0.001 + 2.3646242510 * 8 * np.std(NOISE, ddof=1) * np.sqrt(1 / 8 + 0.2 / 0.6)
    assert f"exclude gains above {100 * most:.1f} points" in wide.headline


def test_what_is_behind_plain_training_is_not_called_the_best(tmp_path):
    found = answered(tmp_path, {"rgd": -0.002, "focal": -0.01}, sizes=tuple(8 * n for n in NOISE))
    assert found.strength == "undecided"
    assert found.headline.startswith(
        "Undecided: nothing is ahead of plain training in balanced accuracy. The closest is RGD (tau 3), -0.2 points ["
    )


def test_one_split_is_never_ahead_of_what_has_more(tmp_path):
    whole = gathered(tmp_path, {"rgd": 0.0, "focal": 0.03, "class_balanced": 0.05})
    (column,) = whole.columns
    rows = dict(column.rows)
    once = {0: rows["class_balanced"].outcomes[0]}
    rows["class_balanced"] = dataclasses.replace(rows["class_balanced"], outcomes=once)
    partial = dataclasses.replace(whole, columns=[dataclasses.replace(column, rows=rows)])
    found = answer(partial, metrics.CLASSIFICATION, ("no", "yes"), ())
    assert (found.strength, found.row) == ("decided", "focal")
    assert found.headline.startswith("Use focal: better than plain training")
    assert found.decision.best.label == "focal"
    assert found.decision.ranked[-1].label == "class_balanced"


def test_what_would_keep_plain_training_follows_from_the_margin(tmp_path):
    found = answered(tmp_path / "rows", {"rgd": 0.001, "focal": -0.0005}, sizes=tuple(8 * n for n in NOISE))
    # By hand: more splits leave 1.96 sd sqrt(1/3) of the half-width, and the larger gain leaves 0.9 points of room.
    sd = 8 * np.std(NOISE, ddof=1)
    times = (1.959964 * sd * np.sqrt(1 / 3) / 0.009) ** 2
    (line,) = found.unanswered
    assert line == (
        f"More time cannot decide it: about {times:.1f} times as many rows would probably show that nothing is better "
        "than plain training by more than 1 point."
    )
    # Half the room is left after eight splits, and more of them are enough.
    sizes = tuple(2.3 * n for n in NOISE)
    soon = answered(tmp_path / "time", {"rgd": 0.001, "focal": -0.0005}, sizes=sizes)
    assert soon.strength == "undecided"
    assert soon.unanswered[0].startswith("A budget of about ")
    assert "would probably show that nothing is better than plain training by more than 1 point" in soon.unanswered[0]


def test_a_lead_is_named_with_its_probability(tmp_path):
    # By hand: t = 0.0155 / (sd sqrt(1/8 + 1/3)) = 1.96 with 4 times the noise; with 7 degrees, 1 - p/2 = 0.95.
    found = answered(tmp_path, {"rgd": -0.03, "focal": 0.0155}, sizes=tuple(4 * n for n in NOISE))
    assert found.strength == "leading"
    assert found.row == "focal"
    assert found.headline.startswith("Leading, not decided: focal. It is ahead of plain training in balanced accuracy")
    assert "the probability that it is better is 95 %" in found.headline


def test_what_would_decide_follows_from_the_width(tmp_path):
    sd, floor = 0.02, 0.25

    def half(n, level):
        return distributions.t.ppf(level, n - 1) * sd * np.sqrt(1 / n + floor)

    def apart(mean):
        return Difference(n=5, mean=mean, sd=sd, low=-1.0, high=1.0, effect=1.0, p=0.5)

    splits, factor = needed(apart(0.024), 0.25, 1)
    assert half(splits, 0.975) < 0.024 <= half(splits - 1, 0.975)
    assert factor == 1.0
    # However many splits are run, half the width stays above 1.96 * 0.02 * 0.5 = 0.0196: four times the rows halve it.
    assert needed(apart(0.0098), 0.25, 1) == (None, pytest.approx(4.0, rel=1e-3))
    assert needed(apart(0.0), 0.25, 1) == (None, math.inf)
    assert needed(apart(0.024), 0.25, 12)[0] is None


def test_intervals_over_rows_are_decided_by_rows_unless_more_splits_may_do():
    def apart(mean, n=5):
        return Difference(n=n, mean=mean, sd=1.0, low=mean - 0.02, high=mean + 0.02, effect=1.0, p=0.5)

    # Half the width is twice the effect: four times the rows. A second comparison asks for 2.2414 / 1.96 of the width.
    assert needed_of_rows(apart(0.01), 1) == (None, pytest.approx(4.0))
    assert needed_of_rows(apart(0.01), 2) == (None, pytest.approx(4 * (2.241403 / 1.959964) ** 2, rel=1e-5))
    assert needed_of_rows(apart(-0.018), 1) == (10, pytest.approx((0.02 / 0.018) ** 2))
    assert needed_of_rows(apart(0.018, n=MOST), 1)[0] is None
    assert needed_of_rows(apart(0.0), 1) == (None, math.inf)


def test_equal_scores_on_every_split_cannot_be_told_apart(tmp_path):
    found = answered(tmp_path, {"rgd": 0.0}, sizes=(0.0,) * 8)
    assert found.headline.startswith("Keep plain training: the alternative is not better by more than 1 point")


def test_equal_differences_have_no_interval(tmp_path):
    few = answered(tmp_path / "few", {"rgd": 0.021}, sizes=(0.0,) * 4)
    assert few.strength == "leading", "four equal pairs have p = 1/8"
    assert "+2.1 points, the same on each of 4 splits" in few.headline
    many = answered(tmp_path / "many", {"rgd": 0.021}, sizes=(0.0,) * 8)
    assert many.strength == "decided"
    assert "+2.1 points, the same on each of 8 splits" in many.headline
    worse = answered(tmp_path / "worse", {"rgd": -0.021}, sizes=(0.0,) * 8)
    assert worse.headline.startswith("Keep plain training")
    assert "is worse in balanced accuracy, -2.1 points, the same on each of 8 splits" in worse.declared[0]
    shown = page.with_answer(gathered(tmp_path / "few", {"rgd": 0.021}, sizes=(0.0,) * 4), few)
    ranked = next(figure for figure in shown.extra if figure.title == "What to use, best first")
    assert "+2.1 on every split" in ranked.markup
    assert "[+2.1, +2.1]" not in shown.extra[0].markup


def test_a_split_without_a_metric_is_left_out_of_its_mean(tmp_path):
    found = with_groups(tmp_path, {"mean": [[], [], []], "rgd": [[], [], []]}, auroc=(0.8, math.nan, 0.6))
    (one,) = answer(found, metrics.CLASSIFICATION, ("no", "yes"), ()).models
    for scores in one.scores.values():
        (area,) = (score for score in scores if score.metric.key == "auroc")
        assert area.mean == pytest.approx(0.7)


def with_groups(root, scores, auroc=(0.8, 0.8, 0.8)):
    """Results of splits whose scores are, for each row and split, those of all groups."""
    columns = (Column(name="mlp", settings={"model": "mlp"}),)
    table = recipe.table(problem(), columns, ("mean", "rgd"), "rgd", BALANCED)
    runs = []
    for label, splits in scores.items():
        for seed, groups in enumerate(splits):
            spec = Spec(recipe="compare", column="mlp", label=label, settings={"lr": 1.0}, method=label, seed=seed)
            run = Run(spec, root)
            value = 0.8 + (0.05 + NOISE[seed] if label == "rgd" else 0.0)
            with run.open() as writer:
                writer.record(
                    record("balanced_accuracy", value, (0.9, math.nan))
                    | {"test/group_score": groups, "test/auroc": auroc[seed]}
                )
                writer.finish({"seconds": 1.0})
            runs.append(run)
    return results.of_runs("compare", table, runs)


def test_a_group_counts_in_the_splits_that_test_on_it(tmp_path):
    nan = math.nan
    found = with_groups(
        tmp_path,
        {
            "mean": [[0.8, nan, nan, 0.0], [nan, 0.7, nan, nan], [0.8, 0.7, nan, nan]],
            "rgd": [[0.9, nan, nan, 1.0], [nan, 0.7, nan, nan], [0.9, 0.8, nan, nan]],
        },
    )
    words = answer(found, metrics.CLASSIFICATION, ("no", "yes"), ("a", "b", "untested", "once"))
    assert {part.name: (part.plain, part.ours) for part in words.groups} == {
        "a": (0.8, 0.9),
        "b": (0.7, pytest.approx(0.75)),
        "once": (0.0, 1.0),
    }
    assert [part.name for part in words.classes] == ["no"]
    assert "'once'" not in " ".join(words.details), "one split says nothing about the group 'once'"
    assert "nan" not in "".join(figure.markup for figure in page.with_answer(found, words).extra)
    json.dumps(page.as_data(words, []), allow_nan=False)


def test_harm_is_called_harm_and_plain_training_kept(tmp_path):
    found = answered(tmp_path, {"rgd": -0.02})
    assert found.row == "mean"
    assert found.headline.startswith("Keep plain training")
    assert "is worse in balanced accuracy, -2.0 points [" in found.declared[0]


def test_another_method_is_decided_only_if_it_survives_correction(tmp_path):
    found = answered(tmp_path, {"rgd": 0.001, "focal": 0.03})
    assert found.row == "focal"
    assert found.headline.startswith("Use focal: better than plain training")
    assert "corrected for 2 comparisons" in found.headline
    assert "RGD (tau 3) against plain training with mlp" in found.declared[0]


def test_costs_are_named_with_intervals(tmp_path):
    found = answered(tmp_path, {"class_balanced": 0.05}, changes={"accuracy": -0.03, "auroc": 0.0})
    assert found.row == "class_balanced"
    words = " ".join(found.costs)
    assert "It costs: accuracy -3.0 points [-" in words
    assert "Only the cut between classes moved: the ranking is the same (AUROC" in words


def test_what_costs_no_training_is_named_beside_a_retrained_winner(tmp_path):
    found = answered(tmp_path, {"class_balanced": 0.05, "mean+prior": 0.048}, changes={"auroc": 0.0})
    assert found.row == "class_balanced"
    assert "Nearly the same without another training: plain training with prior, +4.8 points [" in " ".join(found.costs)
    worse = answered(tmp_path / "worse", {"class_balanced": 0.05, "mean+prior": 0.03}, changes={"auroc": 0.0})
    assert "without another training" not in " ".join(worse.costs), "two points are more than the margin"


def test_scale_controls_are_never_used_and_cost_no_other_row_its_p_value(tmp_path):
    found = answered(tmp_path / "a", {"rgd": 0.0, plan.SCALED_BASELINE: 0.05, plan.NORMALISED: 0.05})
    assert found.row == "mean"
    assert found.decision.comparisons == 1
    # Holm over focal and term alone: the smaller p-value is doubled, with or without the controls.
    for controls in ({}, {plan.SCALED_BASELINE: 0.001, plan.NORMALISED: 0.001}):
        root = tmp_path / f"b{len(controls)}"
        rows = gathered(root, {"rgd": 0.0, "focal": 0.01, "term:t=0.5": 0.004, **controls}).columns[0].differences
        assert rows["focal"].p_holm == pytest.approx(2 * rows["focal"].p)


def test_less_error_is_a_gain(tmp_path):
    numbers = problem(kind="regression", classes=(), class_counts=())
    sizes = tuple(100 * n for n in NOISE)
    found = answered(tmp_path, {"rgd": -20.0}, metric=ERROR, base=150.0, sizes=sizes, of=numbers)
    assert (found.row, found.strength) == ("rgd", "decided")
    assert "better than plain training in root mean squared error, -20 [" in found.headline


def test_one_split_says_nothing(tmp_path):
    found = answered(tmp_path, {"rgd": 0.1}, sizes=NOISE[:1])
    assert found.headline.startswith("Undecided: too little has finished")
    assert found.strength == "undecided"


def test_two_splits_say_something(tmp_path):
    found = answered(tmp_path, {"rgd": 0.1}, sizes=NOISE[:2])
    assert "too little" not in found.headline
    assert "rgd" in found.headline.lower()


def test_models_are_compared_on_test_rows_with_the_best_plain_one(tmp_path):
    weak = gathered(tmp_path / "a", {"focal": 0.1}, base=0.7, models=("mlp",))
    strong = gathered(tmp_path / "b", {"focal": 0.0}, base=0.9, models=("lightgbm",))
    both = dataclasses.replace(weak, columns=[*weak.columns, *strong.columns])
    found = answer(both, metrics.CLASSIFICATION, ("no", "yes"), ())
    assert found.decision.reference.key == ("lightgbm", "mean")
    assert found.headline.startswith("Keep plain lightgbm"), "focal helps the mlp, and not enough"
    ranked = [action.key for action in found.decision.ranked]
    assert ranked[-1] == ("mlp", "mean")
    shown = page.with_answer(both, found)
    assert shown.columns[0].differences["focal"].mean == pytest.approx(-0.1)


def test_the_ranking_is_compared_within_the_model_and_between_models(tmp_path):
    weak = gathered(tmp_path / "a", {"class_balanced": 0.05}, base=0.8, models=("mlp",), changes={"auroc": 0.0})
    strong = gathered(tmp_path / "b", {"rgd": 0.0}, base=0.81, models=("lightgbm",))
    both = dataclasses.replace(weak, columns=[*weak.columns, *strong.columns])
    found = answer(both, metrics.CLASSIFICATION, ("no", "yes"), ())
    assert (found.model, found.row) == ("mlp", "class_balanced")
    words = " ".join(found.costs)
    assert "Only the cut between classes moved against plain mlp: the ranking is the same (AUROC" in words
    assert "As another model, it ranks rows as well as plain lightgbm (AUROC" in words


def test_partial_rounds_count_pair_by_pair(tmp_path):
    whole = gathered(tmp_path, {"rgd": 0.0, "focal": 0.03})
    (column,) = whole.columns
    rows = dict(column.rows)
    outcomes = {seed: o for seed, o in rows["focal"].outcomes.items() if seed < 6}
    rows["focal"] = dataclasses.replace(rows["focal"], outcomes=outcomes)
    partial = dataclasses.replace(whole, columns=[dataclasses.replace(column, rows=rows)])
    by_key = {a.label: a for a in answer(partial, metrics.CLASSIFICATION, ("no", "yes"), ()).decision.ranked}
    assert (by_key["focal"].difference.n, by_key["rgd"].difference.n) == (6, 8)


values = st.lists(st.floats(-0.06, 0.06), min_size=5, max_size=5)


@settings(deadline=None, max_examples=80)
@given(
    rows=st.dictionaries(
        st.tuples(st.sampled_from(["mlp", "logistic"]), st.sampled_from(["rgd", "focal", "term:t=0.5"])),
        values,
        min_size=1,
    ),
    plain=values,
    other=values,
    shift=st.floats(-0.1, 0.1),
    missing=st.integers(0, 3),
)
def test_the_table_and_the_headline_never_contradict_each_other(rows, plain, other, shift, missing):
    base = {"mlp": [0.8 + v for v in plain], "logistic": [0.8 + shift + v for v in other]}
    made: dict[str, dict[str, RowResults]] = {}
    for model, own in base.items():
        made[model] = {"mean": row_of(model, "mean", own)}
    for k, ((model, label), gains) in enumerate(rows.items()):
        finished = 5 - (missing if k == 0 else 0)
        made[model][label] = row_of(model, label, [b + g for b, g in zip(base[model], gains, strict=True)][:finished])
    columns = tuple(Column(name=name, settings={}) for name in made)
    table = recipe.table(problem(), columns, ("mean", "rgd", "focal", "term:t=0.5"), "rgd", BALANCED)
    found = results.Results(
        recipe="compare",
        table=table,
        columns=[ColumnResults(column=c, rows=made[c.name], differences={}) for c in columns],
        unfinished=(),
    )
    said = answer(found, (BALANCED,), (), ())
    decision = said.decision
    marks = {a.key: a.difference.conclusion() for a in decision.ranked if a.difference is not None}
    better = [a for a in decision.ranked if marks.get(a.key) == "better"]
    gains = [decision.gain(a) for a in decision.ranked]
    assert gains == sorted(gains, reverse=True), "the best comes first"
    assert all(a.difference is None for a in decision.ranked if a.key == decision.reference.key)
    if better:
        assert said.strength == "decided"
        assert decision.use.key == better[0].key
        assert said.headline.startswith("Use ")
        assert advice.amount(decision.use.difference, said.unit) in said.headline
    elif said.strength == "decided":
        assert said.headline.startswith("Keep plain ")
        assert decision.keeps_plain
        assert all(a.difference.high <= decision.margin for a in decision.ranked if a.difference)
    else:
        assert "Keep" not in said.headline
        assert not said.headline.startswith("Use ")
    if said.headline.startswith("Keep"):
        assert not better
    # The page reads the same differences.
    for column in page.with_answer(found, said).columns:
        for label, apart in column.differences.items():
            assert apart.conclusion() == marks[column.name, label]


def row_of(model, label, numbers):
    """A row whose runs were never written."""
    outcomes = {}
    for seed, value in enumerate(numbers):
        spec = Spec(recipe="compare", column=model, label=label, settings={"lr": 1.0}, method=label, seed=seed)
        fields = {"test/balanced_accuracy": value, "val/balanced_accuracy": value}
        outcomes[seed] = Outcome(run=Summed(spec), records=[fields], chosen=0, value=value, last=value)
    return RowResults(label=label, outcomes=outcomes)


class Summed:
    """A run that took a second."""

    def __init__(self, spec):
        self.spec = spec

    def summary(self):
        return {"seconds": 1.0}


def test_nothing_finished_is_no_answer(tmp_path):
    empty = results.of_runs("compare", recipe.table(problem(), (), ("mean",), "rgd", BALANCED), [])
    assert answer(empty, metrics.CLASSIFICATION, (), ()) is None


def test_rows_are_named_for_people():
    assert row_name("mean", "mean") == "plain training"
    assert row_name("rgd:divergence=revkl", "rgd:tau=2,divergence=revkl") == "RGD with reverse KL (tau 2)"
    assert row_name(plan.NORMALISED, "rgd:tau=3,normalize=mean") == "RGD (tau 3, mean weight one)"
    assert row_name("focal", "focal:gamma=2") == "focal:gamma=2"
    assert row_name("class_balanced+rgd", "class_balanced+rgd") == "class_balanced+rgd"


def test_the_page_leads_with_the_answer_and_escapes_names(tmp_path):
    found = gathered(tmp_path, {"rgd": 0.012})
    words = answer(found, metrics.CLASSIFICATION, ("no", "<b>yes</b>"), ())
    model = tmp_path / "my runs" / "model"
    shown = page.with_answer(found, words, caveats=["Said for the test."], model=model)
    path = write([shown], tmp_path / "page.html")
    text = path.read_text()
    assert "Use RGD (tau 3)" in text
    assert "Said for the test." in text
    assert "<b>yes</b>" not in text
    assert "calibration error" in text
    assert f"reweigh predict &#39;{model}&#39; rows.csv -o predictions.csv" in text
    assert "reweigh.method(" in text
    assert "paper" not in text.partition("</style>")[2].partition("<script>")[0], "the page is about somebody's data"
    json.dumps(page.as_data(words, []), allow_nan=False)


def test_the_page_offers_no_model_and_no_method_that_there_is_not(tmp_path):
    found = gathered(tmp_path, {"rgd": 0.0005})
    opening = page.with_answer(found, answer(found, metrics.CLASSIFICATION, ("no", "yes"), ())).opening
    assert "No model has been kept yet; it would use <b>plain training</b>." in opening
    assert "reweigh predict" not in opening
    assert "reweigh.method(" not in opening


def test_numbers_that_are_none_are_null_for_scripts(tmp_path):
    words = answered(tmp_path, {"rgd": 0.021}, sizes=(0.0,) * 8)
    apart = page.as_data(words, [])["models"][0]["scores"]["rgd"]["balanced_accuracy"]["difference"]
    assert apart["effect"] is None
    assert apart["mean"] == pytest.approx(0.021)


@pytest.mark.parametrize(("typical", "digits"), [(1234.0, 0), (12.0, 1), (0.05, 4), (1e-9, 6), (0.0, 2)])
def test_numbers_without_a_percentage_have_three_digits_that_say_something(typical, digits):
    assert unit_of(metrics.Metric(key="mae", name="mae", percent=False), typical).digits == digits
