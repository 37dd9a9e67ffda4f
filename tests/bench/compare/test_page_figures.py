"""Figures of the page that look ahead: more time, more rows, and tau."""

import numpy as np
import polars as pl
import pytest

from reweigh.bench.compare import page, recipe
from reweigh.bench.compare.answer import answer
from reweigh.bench.compare.figures import figures_of
from reweigh.bench.compare.power import power
from reweigh.bench.compare.problem import DataQuestion
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.row_scores import RowScores, keep_splits
from reweigh.bench.compare.sizes import sizes
from reweigh.bench.compare.splits import parts_of
from reweigh.bench.compare.tau_sensitivity import tau_sensitivity
from reweigh.bench.lab.results import difference, of_runs
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column
from reweigh.bench.train import scores as metrics

N = 200


@pytest.fixture
def problem(tmp_path):
    draw = np.random.default_rng(0)
    labels = np.array(["no"] * 150 + ["yes"] * 50)
    pl.DataFrame({"x": draw.normal(size=N), "z": draw.normal(size=N), "y": labels}).write_csv(tmp_path / "rows.csv")
    return load(DataQuestion(source=str(tmp_path / "rows.csv"), target="y"))


def finished(problem, root, label, share, *, seeds=10, stage="final", text="mean", lr=0.1, **settings):
    """Runs that are right about a random share of their test rows."""
    runs = []
    for seed in range(seeds):
        rows = parts_of(problem, seed).test
        targets = problem.labels[rows]
        right = np.random.default_rng([seed, *map(ord, label)]).random(len(rows)) < share
        logits = np.zeros((len(rows), 2), np.float32)
        logits[np.arange(len(rows)), np.where(right, targets, 1 - targets)] = 2.0
        number = seed if stage == "final" else 10_000 + 5 * seed
        spec = Spec(
            recipe="compare",
            column="mlp",
            label=label,
            settings={"lr": lr, **settings},
            method=text,
            seed=number,
            stage=stage,
        )
        run = Run(spec, root)
        scores = metrics.classification(logits, targets, 2)
        record = {f"{part}/{name}": value for part in ("val", "test") for name, value in scores.items()}
        with run.open() as writer:
            writer.array("test_outputs", logits)
            writer.record(record)
            writer.finish({"seconds": 2.0})
        runs.append(run)
    return runs


def answered(problem, root, runs):
    table = recipe.table(problem, (Column(name="mlp", settings={}),), ("mean", "rgd"), "rgd", metrics.CLASSIFICATION[0])
    keep_splits(root / "splits", problem, range(10))
    tested = RowScores(table, root / "splits", problem.judging)
    gathered = of_runs("compare", table, runs, tested.difference)
    return gathered, answer(gathered, metrics.CLASSIFICATION, problem.classes, (), jobs=2), tested


def test_the_power_curve_starts_at_the_interval_and_falls(problem, tmp_path):
    runs = finished(problem, tmp_path, "mean", 0.6) + finished(problem, tmp_path, "rgd", 0.75, text="rgd")
    gathered, given, tested = answered(problem, tmp_path, runs)
    (figure,) = power(given, gathered, tested)
    apart = given.decision.use.difference
    half = 100 * (apart.high - apart.low) / 2
    # One comparison, declared beforehand: there is nothing to correct for.
    assert f"{half:.1f} points now" in figure.caption
    now, then = (float(word) for word in (figure.caption.split(" points now, ")[0].split()[-1], half))
    later = float(figure.caption.split(" points now, ")[1].split()[0])
    assert now == pytest.approx(then, abs=0.06)
    assert later < now
    # Ten splits of two rows, 2 s each, by two processes: 2 s a split; fifty more take 100 s.
    assert "seconds still to spend" in figure.markup


def test_without_an_interval_there_is_no_power_curve(problem, tmp_path):
    runs = finished(problem, tmp_path, "mean", 0.6, seeds=1) + finished(problem, tmp_path, "rgd", 0.75, seeds=1)
    gathered, given, tested = answered(problem, tmp_path, runs)
    assert power(given, gathered, tested) == []


def test_confusions_are_of_the_splits_that_both_have(problem, tmp_path):
    plain = finished(problem, tmp_path, "mean", 0.6)
    gathered, given, tested = answered(
        problem, tmp_path, [*plain, *finished(problem, tmp_path, "rgd", 0.9, seeds=5, text="rgd")]
    )
    shown = next(f for f in figures_of(given, gathered, tested) if f.title == "What is taken for what")
    share = np.mean([float(run.records()[-1]["test/class_accuracy"][0]) for run in plain[:5]])
    everything = np.mean([float(run.records()[-1]["test/class_accuracy"][0]) for run in plain])
    assert share != pytest.approx(everything, abs=1e-3)
    assert f"no taken for no: {100 * share:.1f} %" in shown.markup


@pytest.mark.parametrize("seeds", [1, 10])
def test_plain_training_alone_has_a_page(problem, tmp_path, seeds):
    gathered, given, tested = answered(problem, tmp_path, finished(problem, tmp_path, "mean", 0.6, seeds=seeds))
    shown = page.with_answer(gathered, given, problem=problem, tested=tested)
    path = page.write(shown, tmp_path / "report.html")
    assert given.headline in path.read_text()


def test_the_effect_by_training_rows_is_that_of_the_same_splits(problem, tmp_path):
    runs = finished(problem, tmp_path, "mean", 0.6) + finished(problem, tmp_path, "rgd", 0.75, text="rgd")
    gathered, given, _ = answered(problem, tmp_path, runs)
    assert sizes(given, gathered, [], 120) == []
    half = [
        *finished(problem, tmp_path, "mean", 0.5, seeds=5, train_share=0.5),
        *finished(problem, tmp_path, "rgd", 0.75, seeds=5, text="rgd", train_share=0.5),
    ]
    (figure,) = sizes(given, gathered, half, 120)

    def values(own):
        return [float(run.records()[-1]["test/balanced_accuracy"]) for run in own]

    small = difference(values(half[5:]), values(half[:5]), gathered.table.overlap)
    whole = difference(values(runs[10:15]), values(runs[:5]), gathered.table.overlap)
    assert f"60 rows: {100 * small.mean:+.1f} [{100 * small.low:+.1f}, {100 * small.high:+.1f}]" in figure.caption
    assert f"120 rows: {100 * whole.mean:+.1f} [{100 * whole.low:+.1f}, {100 * whole.high:+.1f}]" in figure.caption


def test_tau_is_drawn_at_the_best_rate_of_each(problem, tmp_path):
    runs = finished(problem, tmp_path, "mean", 0.6) + finished(problem, tmp_path, "rgd", 0.75, text="rgd")
    trials = {(tau, lr): finished(problem, tmp_path, "rgd", 0.6 + 0.05 * tau - lr, seeds=3, stage="tune",
                                  text=f"rgd:tau={tau}", lr=lr) for tau in (1, 3) for lr in (0.05, 0.2)}  # fmt: skip
    tuning = [run for own in trials.values() for run in own]
    plain = finished(problem, tmp_path, "mean", 0.6, seeds=3, stage="tune")
    gathered, given, _ = answered(problem, tmp_path, [*runs, *tuning, *plain])
    (figure,) = tau_sensitivity(given, gathered)

    def best(tau):
        means = [np.mean([float(run.records()[-1]["val/balanced_accuracy"]) for run in trials[tau, lr]])
                 for lr in (0.05, 0.2)]  # fmt: skip
        return 100 * max(means)

    for tau in (1, 3):
        assert f"tau {tau}: {best(tau):.1f}" in figure.markup
    untuned, without, _ = answered(problem, tmp_path, runs)
    assert tau_sensitivity(without, untuned) == []
