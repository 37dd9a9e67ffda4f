"""Scores that exist already: reading them, pairing them, and the words of the verdict."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl
import pytest
from scipy import stats as scipy_stats

import reweigh
from reweigh.bench.lab.ranks import ranks
from reweigh.bench.own.scores import read_scores

RNG = np.random.default_rng(0)
PLAIN = 0.8 + 0.01 * RNG.normal(size=8)
BETTER = PLAIN + 0.03 + 0.002 * RNG.normal(size=8)
NOISE = PLAIN + 0.02 * RNG.normal(size=8)


def wide(**methods):
    rows = [
        {"method": name, "seed": seed, "accuracy": value}
        for name, values in methods.items()
        for seed, value in enumerate(values)
    ]
    return pl.DataFrame(rows)


def test_the_verdict_is_that_of_a_paired_t_test_corrected_by_holm(tmp_path):
    result = reweigh.judge(
        wide(plain=PLAIN, ours=BETTER, noise=NOISE), baseline="plain", metric="accuracy", out=tmp_path
    )
    rows = {row["method"]: row for row in result.table().to_dicts()}
    p_better, p_noise = (scipy_stats.ttest_rel(values, PLAIN).pvalue for values in (BETTER, NOISE))
    assert rows["ours"]["p"] == pytest.approx(2 * p_better)
    assert rows["noise"]["p"] == pytest.approx(p_noise)
    assert result.best == "ours"
    assert result.verdict.startswith("Use ours: it is better than plain in accuracy, +")
    assert "after correction for 2 comparisons" in result.verdict
    assert "No evidence of a difference in accuracy between noise and plain" in result.verdict
    page = result.page.read_text()
    assert "at the epoch with" not in page
    assert re.search(r"<th scope=\"row\"[^>]*>(<[^>]*>)*\s*plain\s*<", page)


def test_no_gain_is_said_to_be_none():
    result = reweigh.judge(wide(mean=PLAIN, noise=NOISE), metric="accuracy")
    assert result.best == "mean"
    assert result.verdict.startswith(
        "No method is shown to be better than mean in accuracy, after correction for 1 comp"
    )
    assert "could not have been seen with 8 seeds" in result.verdict


def test_less_may_be_better():
    frame = wide(mean=PLAIN, ours=PLAIN - 0.1 + 0.001 * RNG.normal(size=8)).rename({"accuracy": "loss"})
    assert reweigh.judge(frame, metric="loss").best == "ours"
    assert reweigh.judge(frame, metric="loss", smallest=False).best == "mean"


@pytest.mark.parametrize("form", ["wide", "long", "wandb", "mlflow"])
def test_files_of_all_forms_are_read_alike(form, tmp_path):
    frame = wide(mean=PLAIN[:2], rgd=BETTER[:2])
    if form == "long":
        frame = frame.rename({"accuracy": "value"}).with_columns(metric=pl.lit("accuracy"))
        other = frame.with_columns(metric=pl.lit("loss"), value=pl.lit(9.0))
        frame = pl.concat([frame, other.select(frame.columns)])
    elif form == "wandb":
        frame = frame.rename({"method": "config.method", "seed": "config.seed"}).with_columns(Name=pl.lit("run"))
    elif form == "mlflow":
        frame = frame.rename({"method": "params.method", "seed": "params.seed", "accuracy": "metrics.accuracy"})
    path = tmp_path / "scores.csv"
    frame.write_csv(path)
    read = read_scores(path, metric="accuracy")
    assert [(s.method, s.seed) for s in read] == [("mean", "0"), ("mean", "1"), ("rgd", "0"), ("rgd", "1")]
    assert [s.value for s in read] == pytest.approx([*PLAIN[:2], *BETTER[:2]])
    assert {s.data for s in read} == {"all runs"}


def test_unequal_and_unpaired_seeds_are_named(tmp_path):
    frame = pl.concat(
        [wide(mean=PLAIN), wide(few=BETTER[:5]), wide(other=BETTER).with_columns(seed=pl.col("seed") + 100)]
    )
    result = reweigh.judge(frame, metric="accuracy", out=tmp_path)
    assert (
        "few: 5 seeds are shared with mean and compared; 0 of its own and 3 of mean have no partner." in result.verdict
    )
    assert "other: no seeds are shared with mean, so the two are compared unpaired (Welch)" in result.verdict
    without = reweigh.judge(wide(mean=PLAIN, ours=BETTER).drop("seed"), metric="accuracy")
    assert "compared unpaired" in without.verdict


def test_several_data_sets_have_ranks_and_sentences_of_their_own(tmp_path):
    frames = [
        wide(mean=PLAIN + shift, ours=BETTER + shift, noise=NOISE + shift).with_columns(dataset=pl.lit(name))
        for name, shift in (("a", 0.0), ("b", -0.3), ("c", -0.5))
    ]
    result = reweigh.judge(pl.concat(frames), metric="accuracy", out=tmp_path)
    assert result.verdict.startswith("Better than mean in accuracy, after correction for 6 comparisons: ours on 3 of 3")
    assert "Average ranks over 3 data sets: ours 1.00" in result.verdict
    assert [row["setting"] for row in result.table().to_dicts()] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (wide(mean=PLAIN, rgd=BETTER), {"metric": "acuracy"}, "no column 'acuracy'. Did you mean 'accuracy'"),
        (wide(mean=PLAIN, rgd=BETTER), {"baseline": "erm"}, "no training has the baseline 'erm'"),
        (wide(mean=PLAIN), {}, "only one method"),
        (pl.concat([wide(mean=PLAIN), wide(mean=PLAIN)]), {}, "'mean' has two scores for seed 0"),
        (wide(mean=PLAIN, rgd=[math.inf, *BETTER[1:]]), {}, "leave diverged trainings out"),
        (wide(mean=["good"], rgd=["bad"]), {}, "must hold numbers, got 'good' in row 2"),
    ],
)
def test_wrong_scores_are_refused(frame, options, message):
    with pytest.raises(ValueError, match=message):
        reweigh.judge(frame, **({"metric": "accuracy"} | options))


def test_ranks_by_hand_and_critical_differences_by_demsars_table():
    """Ties share their ranks. For the 5 % level Demšar (2006, table 5) lists q = 2.343 of three and 2.569 of four."""
    three = {"a": [0.9, 0.8, 0.7, 0.6], "b": [0.8, 0.8, 0.9, 0.5], "c": [0.1, 0.2, 0.3, 0.6]}
    result = ranks(three)
    assert result.average == {"a": 1.5, "b": 1.875, "c": 2.625}
    assert result.critical == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 4)), abs=1e-3)
    assert ranks(three, smallest=True).average == {"a": 2.5, "b": 2.125, "c": 1.375}
    four = ranks({**three, "d": [0.0, 0.0, 0.0, 0.0]})
    assert four.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 4)), abs=1e-3)
    with pytest.raises(ValueError, match="at least two data sets"):
        ranks({"a": [1.0], "b": [2.0]})
