"""`reweigh.compare` of training code: what it adds, what it refuses, and what survives."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import children
import numpy as np
import pytest
import trainings
from scipy import stats as scipy_stats

import reweigh
from reweigh.bench.lab.runs import load_runs
from reweigh.bench.own import source

HERE = Path(__file__).parent
QUICK = {"metric": "test/loss", "select": "val/loss", "tune": 1, "jobs": 0, "quiet": True}


def compared(train, folder, **options):
    return reweigh.compare(train, out=folder, **({"methods": ["rgd"], "seeds": 3} | QUICK | options))


def values(folder, label):
    runs = [run for run in load_runs(folder) if run.spec.label == label and run.spec.stage == "final"]
    return {run.spec.seed: run.records()[-1]["test/loss"] for run in runs}


def test_the_table_is_that_of_the_runs(tmp_path):
    result = compared(trainings.train, tmp_path, methods=["rgd", "class_balanced"], seeds=4)
    rows = {row["method"]: row for row in result.table().to_dicts()}
    assert list(rows) == ["mean", "rgd", "class_balanced", "rgd, mean weight one", "mean × mean weight of rgd"]
    best = {
        label: [
            min(run.records(), key=lambda record: record["val/loss"])["test/loss"]
            for seed in range(4)
            for run in load_runs(tmp_path)
            if (run.spec.label, run.spec.seed) == (label, seed)
        ]
        for label in ("mean", "rgd")
    }
    assert rows["mean"]["mean"] == pytest.approx(np.mean(best["mean"]))
    expected = scipy_stats.ttest_rel(best["rgd"], best["mean"])
    # Of the five percent a first look, after two seeds, may spend a quarter, and this last one the rest.
    assert rows["rgd"]["p"] == pytest.approx(min(1.0, expected.pvalue * 4 / 3))
    interval = expected.confidence_interval(1 - 0.75 * 0.05)
    assert (rows["rgd"]["low"], rows["rgd"]["high"]) == pytest.approx((interval.low, interval.high))
    assert result.best in {"mean", *(row["method"] for row in rows.values())}
    assert result.page.read_text().count("<article") == 1
    assert "<table>" in result._repr_html_()


def test_the_scale_control_is_plain_training_times_the_mean_weight(tmp_path):
    """By hand: the same loop, the loss of step i times the mean weight that the run of RGD stored for it."""
    import torch
    from torch import nn

    compared(trainings.train, tmp_path, seeds=2)
    (source_run,) = [r for r in load_runs(tmp_path) if (r.spec.label, r.spec.seed) == ("rgd", 0)]
    factors = np.load(source_run.directory / "arrays" / "mean_weight.npy")
    x, y, generator = trainings.problem(0)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    steps = iter(factors)
    for _ in range(2):
        for batch in torch.randperm(120, generator=generator).split(20):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch]) * float(next(steps))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.3 * gradient
    by_hand = nn.functional.cross_entropy(model(x[180:]), y[180:]).item()
    assert values(tmp_path, "mean × mean weight of rgd")[0] == pytest.approx(by_hand, rel=1e-5)


def test_every_method_is_tuned_over_the_same_rates(tmp_path):
    compared(trainings.train, tmp_path, methods=["rgd", "term"], seeds=2, tune=3)
    tuned = [run.spec for run in load_runs(tmp_path) if run.spec.stage == "tune"]
    rates = [{spec.settings["lr"] for spec in tuned if spec.label == label} for label in ("mean", "rgd", "term")]
    assert rates[0] == rates[1] == rates[2]
    assert len(rates[0]) == 3


def test_a_training_may_return_once(tmp_path):
    once = compared(trainings.returns_once, tmp_path / "once")
    yielded = compared(trainings.train, tmp_path / "yielded", methods=["rgd"])
    last = [row["mean"] for row in once.table().to_dicts()]
    assert last[0] == pytest.approx(np.mean(list(values(tmp_path / "yielded", "mean").values())))
    assert once.ended == yielded.ended == "finished"


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        (
            trainings.ignores_seed,
            {},
            r"seeds 0 and 1 give the same scores, 1\.0 in test/loss: the training ignores `run.seed`",
        ),
        (trainings.never_looks, {}, "`train` never used the method it was given"),
        (trainings.looks_only, {}, "rgd scores exactly what plain training scores on 3 seeds"),
        (
            trainings.train,
            {"methods": ["rgd+sam"]},
            r"never used the step of its method. Take it from `run.step\(...\)`",
        ),
        (trainings.without_metric, {}, "reports no 'test/loss'. It reports: 'val/loss', 'accuracy'"),
        (trainings.with_words, {}, "'test/loss' must be a number, got 'low'"),
        (lambda run: None, {}, "must return or yield a dict of scores .* got NoneType"),
        (trainings.train, {"select": "test/loss"}, "`select` must name a validation score"),
        (trainings.train, {"select": "test/other"}, "which is named as a test score"),
        (trainings.train, {"metric": "val/loss", "select": "val/other"}, "`metric` must be a test score"),
        (trainings.train, {"metric": ""}, "`metric` must name the score to judge by"),
        (trainings.train, {"seeds": 1}, "`seeds` must be at least 2, got 1"),
        (trainings.train, {"methods": ["mean"]}, "must name a method other than mean"),
        (trainings.train, {"methods": ["rgdd"]}, "Did you mean 'rgd'"),
        (trainings.train, {"budget": "soon"}, "a budget must be a time such as 90s"),
    ],
)
def test_what_cannot_be_judged_is_refused(train, options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compared(train, tmp_path, **options)


def test_a_rate_that_is_not_used_cannot_be_tuned(tmp_path):
    def fixed_rate(run):
        run.criterion(__import__("torch").nn.CrossEntropyLoss())
        return {"val/loss": 1.0 + run.seed, "test/loss": 1.0 + run.seed}

    with pytest.raises(ValueError, match=r"never used `run.lr_factor`"):
        compared(fixed_rate, tmp_path, tune=3)


def test_one_training_that_raises_is_reported_and_the_others_go_on(tmp_path):
    result = compared(trainings.raises_sometimes, tmp_path, methods=["rgd", "term"])
    assert [(f.spec.label, f.spec.seed) for f in result.failures] == [("term", 1)]
    assert "ZeroDivisionError: the user's own bug" in result.failures[0].reason
    assert "1 trainings failed" in result.verdict
    assert {row["method"]: row["seeds"] for row in result.table().to_dicts()}["term"] == 2


def test_scores_that_do_not_repeat_are_compared_all_the_same(tmp_path):
    first = compared(trainings.nondeterministic, tmp_path / "first")
    again = compared(trainings.nondeterministic, tmp_path / "first")  # what is done is not done again
    other = compared(trainings.nondeterministic, tmp_path / "other")
    assert first.table().equals(again.table())
    assert not first.table().equals(other.table())
    assert first.table()["mean"].to_list() == pytest.approx(other.table()["mean"].to_list(), abs=2e-3)


def test_changed_code_is_another_training(tmp_path):
    def first(run):
        return {"a": 1.0}

    def second(run):
        return {"a": 2.0}

    def same(run):
        return {"a": 1.0}

    prints = [source.of_function(f, tmp_path)[1] for f in (first, second, first)]
    assert prints[0] == prints[2] != prints[1]
    assert source.of_function(same, tmp_path)[1] != prints[1]
    limit = 3

    def uses(run):
        return limit

    before = source.of_function(uses, tmp_path)[1]
    limit = 4
    assert source.of_function(uses, tmp_path)[1] != before


def test_a_file_names_its_function(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def train(run):\n    return {}\n")
    origin, fingerprint = source.of_file(f"{path}:train")
    assert source.load(origin, tmp_path)(None) == {}
    path.write_text("def train(run):\n    return {1: 2}\n")
    assert source.of_file(f"{path}:train")[1] != fingerprint
    with pytest.raises(ValueError, match=r"mine\.py has no function 'fit'. It has: train"):
        source.of_file(f"{path}:fit")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        source.of_file("absent.py:train")


@pytest.mark.processes
def test_processes_give_the_numbers_of_this_one_and_bound_what_a_training_does(tmp_path):
    here = compared(trainings.train, tmp_path / "here", seeds=2)
    loud = compared(trainings.prints_much, tmp_path / "loud", seeds=2, jobs=2)
    assert loud.table()["mean"].to_list() == pytest.approx(here.table()["mean"].to_list(), rel=1e-6)
    outputs = list((tmp_path / "loud").rglob("output.txt"))
    assert outputs
    assert all(0 < path.stat().st_size < 300_000 for path in outputs)
    assert not multiprocessing_children()


@pytest.mark.processes
def test_a_process_that_grows_is_replaced(tmp_path):
    result = compared(trainings.leaks, tmp_path, seeds=2, jobs=1)
    assert not result.failures
    assert result.table()["seeds"].to_list()[:2] == [2, 2]


SCRIPT = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import trainings, reweigh
result = reweigh.compare(trainings.slow_with_checkpoints, methods=["rgd"], metric="test/loss", select="val/loss",
                         seeds=2, tune=1, jobs=1, out="out", quiet=True)
print(result.ended)
"""


@pytest.mark.processes
def test_a_killed_comparison_resumes_from_the_trainings_checkpoint(tmp_path):
    """The script has no main guard, so that it also shows that processes do not import it again."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    with children.started([sys.executable, "mine.py"], cwd=tmp_path) as first:
        wait_for_training(first, tmp_path)
        os.killpg(first.pid, signal.SIGKILL)
    (tmp_path / "out" / "own" / "go").touch()
    again = children.run([sys.executable, "mine.py"], seconds=100, cwd=tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    (resumed,) = [path for path in (tmp_path / "out").rglob("starts.txt") if len(path.read_text().split()) == 2]
    assert resumed.read_text().split() == ["0", "2"]
    records = [json.loads(line) for line in (resumed.parent.parent / "records.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [0, 1, 2, 3]
    assert [record["val/loss"] for record in records] == [1.0, 3.0, 6.0, 10.0]


@pytest.mark.processes
def test_ctrl_c_ends_it_and_keeps_what_is_done(tmp_path):
    (tmp_path / "mine.py").write_text(SCRIPT)
    with children.started([sys.executable, "mine.py"], cwd=tmp_path) as process:
        wait_for_training(process, tmp_path)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate()
    assert printed.strip() == "interrupted"
    assert next((tmp_path / "out").rglob("records.jsonl")).read_text().count("\n") == 2


def wait_for_training(process, folder):
    for _ in children.moments(100):
        assert process.poll() is None, process.stdout.read()
        if list((folder / "out").rglob("waiting")):
            return
    raise AssertionError("the training never began")


def multiprocessing_children():
    """Processes of ours that still do runs."""
    listed = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
            parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid() and "executors.children" in words:
            listed.append(words)
    return listed


@pytest.mark.processes
def test_slurm_jobs_do_the_trainings(tmp_path, monkeypatch):
    """On submitit's local cluster, which is made of processes of this machine."""
    from reweigh.bench.lab.executors import slurm

    monkeypatch.setattr(slurm.SlurmWorkers.__init__, "__kwdefaults__", {
        **slurm.SlurmWorkers.__init__.__kwdefaults__, "cluster": "local"
    })  # fmt: skip
    result = compared(trainings.train, tmp_path / "there", seeds=2, jobs=2, executor="slurm")
    here = compared(trainings.train, tmp_path / "here", seeds=2)
    assert not result.failures
    assert result.table()["mean"].to_list() == pytest.approx(here.table()["mean"].to_list(), rel=1e-6)
