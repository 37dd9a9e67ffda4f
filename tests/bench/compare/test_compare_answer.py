"""The words of an answer follow from the numbers: runs that were never trained, with differences tests know."""

import json
import math

import numpy as np
import pytest

from reweigh.bench.compare import page, recipe
from reweigh.bench.compare.answer import answer, row_name
from reweigh.bench.compare.problem import Problem
from reweigh.bench.lab import plan, results
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column
from reweigh.bench.report import write
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


def gathered(root, gains, *, metric=BALANCED, base=0.8, sizes=NOISE, models=("mlp",), of=None):
    """Results of eight splits in which each row differs from plain training by its gain and a little noise."""
    of = of or problem()
    columns = tuple(Column(name=name, settings={"model": name}) for name in models)
    table = recipe.table(of, columns, ("mean", *gains), "rgd", metric)
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
                with run.open() as writer:
                    writer.record(record(metric.key, value, (0.95, 0.65 + 2 * gain + own)))
                    writer.finish({"seconds": 1.0})
                runs.append(run)
    return results.of_runs("compare", table, runs)


def said(root, gains, **more):
    known = metrics.REGRESSION if more.get("metric") is ERROR else metrics.CLASSIFICATION
    of = more.get("of") or problem()
    return answer(gathered(root, gains, **more), known, of.classes, of.groups)


def test_a_gain_is_told_with_its_interval_and_for_whom(tmp_path):
    found = said(tmp_path, {"rgd": 0.012, plan.NORMALISED: 0.011})
    assert found.headline == "Re-weighting helps here: train with RGD (tau 3)."
    assert (found.model, found.row) == ("mlp", "rgd")
    sentence = found.details[0]
    assert sentence.startswith("mlp: RGD (tau 3) improves balanced accuracy by 1.2 points [")
    assert "8 splits" in sentence
    assert "largest gain in class '<b>yes</b>' (+2.4)" in sentence
    assert "no change seen in accuracy and AUROC" in sentence
    assert "survives" in found.details[1]
    # Nadeau and Bengio by hand: sd of the noise, 8 pairs, a fifth of the rows tested on and three fifths trained on.
    sd = np.std(NOISE, ddof=1)
    half = 2.3646242510 * sd * np.sqrt(1 / 8 + 0.2 / 0.6)
    apart = found.models[0].primary
    assert (apart.high - apart.low) / 2 == pytest.approx(half, rel=1e-6)


def test_a_gain_that_normalising_takes_away_is_called_a_larger_step(tmp_path):
    found = said(tmp_path, {"rgd": 0.012, plan.NORMALISED: 0.0})
    assert found.row == "rgd"
    assert "larger step" in found.details[1]
    assert "no longer seen" in found.details[1]


def test_no_evidence_keeps_plain_training_and_says_what_would_have_been_seen(tmp_path):
    found = said(tmp_path, {"rgd": 0.001, "focal": -0.0005})
    assert found.headline == "No evidence that re-weighting helps here: keep plain training."
    assert found.row == "mean"
    assert "no evidence that RGD (tau 3) changes balanced accuracy: +0.1 points [" in found.details[0]
    assert "would not have been detected with 8 splits" in found.details[-1]


def test_equal_scores_on_every_split_are_no_precision(tmp_path):
    found = said(tmp_path, {"rgd": 0.0}, sizes=(0.0,) * 8)
    assert found.details[-1] == "Both score the same on every split: balanced accuracy cannot tell them apart here."


def test_equal_differences_are_told_without_an_interval(tmp_path):
    few = said(tmp_path / "few", {"rgd": 0.021}, sizes=(0.0,) * 4)
    assert few.details == [
        "mlp: no evidence that RGD (tau 3) changes balanced accuracy: +2.1 points, the same on each of 4 splits.",
        "Equal differences have no interval, and fewer than six of them may be chance.",
    ]
    many = said(tmp_path / "many", {"rgd": 0.021}, sizes=(0.0,) * 8)
    assert "improves balanced accuracy by 2.1 points, the same on each of 8 splits;" in many.details[0]
    worse = said(tmp_path / "worse", {"rgd": -0.021}, sizes=(0.0,) * 8)
    assert worse.details == ["mlp: RGD (tau 3) worsens balanced accuracy by 2.1 points, the same on each of 8 splits."]
    shown = page.with_answer(gathered(tmp_path / "few", {"rgd": 0.021}, sizes=(0.0,) * 4), few)
    assert "+2.1 on every split" in shown.extra[0].markup
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
    (one,) = words.models
    assert {part.name: (part.plain, part.ours) for part in one.groups} == {
        "a": (0.8, 0.9),
        "b": (0.7, pytest.approx(0.75)),
        "once": (0.0, 1.0),
    }
    assert [part.name for part in one.classes] == ["no"]
    assert "largest gain in group 'a' (+10.0)" in words.details[0], "one split says nothing about the group 'once'"
    assert "nan" not in "".join(figure.markup for figure in page.with_answer(found, words).extra)
    json.dumps(page.as_data(words, []), allow_nan=False)


def test_harm_is_called_harm(tmp_path):
    found = said(tmp_path, {"rgd": -0.02})
    assert found.row == "mean"
    assert "worse here: keep plain training" in found.headline
    assert "worsens balanced accuracy by 2.0 points [" in found.details[0]


def test_another_method_is_named_only_if_it_survives_correction(tmp_path):
    found = said(tmp_path, {"rgd": 0.001, "focal": 0.03})
    assert found.row == "focal"
    assert found.headline.startswith("Use focal")
    assert "correction for 2 comparisons" in found.headline


def test_the_scaled_baseline_is_a_control_and_never_recommended(tmp_path):
    found = said(tmp_path, {"rgd": 0.0, plan.SCALED_BASELINE: 0.05})
    assert found.row == "mean"


def test_less_error_is_a_gain(tmp_path):
    numbers = problem(kind="regression", classes=(), class_counts=())
    found = said(tmp_path, {"rgd": -20.0}, metric=ERROR, base=150.0, sizes=tuple(100 * n for n in NOISE), of=numbers)
    assert found.row == "rgd"
    assert "improves root mean squared error by 20 [" in found.details[0]


def test_one_split_says_nothing(tmp_path):
    found = said(tmp_path, {"rgd": 0.1}, sizes=NOISE[:1])
    assert found.headline.startswith("Too little has finished")
    assert found.row == "mean"


def test_the_model_with_the_best_validation_is_proposed(tmp_path):
    first = gathered(tmp_path / "a", {"rgd": 0.0}, base=0.7, models=("mlp",))
    second = gathered(tmp_path / "b", {"rgd": 0.0}, base=0.9, models=("lightgbm",))
    import dataclasses

    both = dataclasses.replace(first, columns=[*first.columns, *second.columns])
    assert answer(both, metrics.CLASSIFICATION, ("no", "yes"), ()).model == "lightgbm"


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
    path = write([page.with_answer(found, words, caveats=["Said for the test."])], tmp_path / "page.html")
    text = path.read_text()
    assert "Re-weighting helps here" in text
    assert "Said for the test." in text
    assert "<b>yes</b>" not in text
    assert "calibration error" in text
    json.dumps(page.as_data(words, []), allow_nan=False)


def test_numbers_that_are_none_are_null_for_scripts(tmp_path):
    words = said(tmp_path, {"rgd": 0.021}, sizes=(0.0,) * 8)
    apart = page.as_data(words, [])["models"][0]["scores"]["rgd"]["balanced_accuracy"]["difference"]
    assert apart["effect"] is None
    assert apart["mean"] == pytest.approx(0.021)
