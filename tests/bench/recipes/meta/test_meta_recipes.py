"""The two recipes end to end: the same tasks for all methods, resumable, and a report that says what the arrays say."""

import base64
import dataclasses
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from synthetic_runs import results_of

from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.recipes import meta, sinusoid
from reweigh.bench.recipes._few_shot import ImageTasks
from reweigh.bench.recipes._figures import tasks as report
from reweigh.bench.recipes.algorithms.meta import MAML
from reweigh.bench.train.programs.episodes import TaskEvaluation
from reweigh.method import method

SMOKE = {"meta": meta.PRESETS["smoke"], "sinusoid": sinusoid.PRESETS["smoke"]}
RECIPES = {"meta": meta, "sinusoid": sinusoid}


def run(name, folder, text="mean", seed=0, label=None, scale=None, finish=True, stop=None, **changes):
    """One run of a recipe in this process, killed after `stop` records if given; returns the run and its records."""
    settings = dataclasses.replace(SMOKE[name], **changes)
    column = RECIPES[name].table("smoke").columns[0].name
    spec = Spec(
        recipe=name, column=column, label=label or text, settings=dataclasses.asdict(settings), method=text, seed=seed
    )
    one, records = Run(spec, folder), []
    with one.open() as writer:
        for record in RECIPES[name].train(settings, method(text), seed, writer, scale):
            records.append(record)
            writer.record(record)
            if len(records) == stop:
                return one, records
        if finish:
            writer.finish({"seconds": 0.0})
    return one, records


# --- training ---


@pytest.mark.parametrize("name", SMOKE)
def test_a_killed_run_ends_with_the_same_numbers(name, tmp_path):
    whole, _ = run(name, tmp_path / "whole", "rgd", epochs=4)
    run(name, tmp_path / "broken", "rgd", epochs=4, stop=2)  # dies before its second checkpoint
    broken, again = run(name, tmp_path / "broken", "rgd", epochs=4)
    assert [record["epoch"] for record in again] == [2, 3, 4]
    assert broken.records() == whole.records()
    assert np.array_equal(broken.array("task_scores"), whole.array("task_scores"))
    assert np.array_equal(broken.array("mean_weight"), whole.array("mean_weight"))


@pytest.mark.parametrize("algorithm", ["maml", "protonet", "matching"])
def test_every_algorithm_learns_from_the_same_tasks_and_records_what_weights_did(algorithm, tmp_path):
    one, records = run("meta", tmp_path, "rgd:tau=1", algorithm=algorithm)
    last, weights = records[-1], one.array("mean_weight")
    assert len(weights) == 2 * SMOKE["meta"].steps
    assert 1.0 <= last["weights/min"] <= last["weights/mean"] <= last["weights/max"] <= np.exp(0.5) + 1e-6
    assert records[0]["test_tasks_sha256"] == run("meta", tmp_path, "mean", seed=1)[1][0]["test_tasks_sha256"]
    assert len(one.array("task_scores")) == SMOKE["meta"].test_tasks


def test_test_tasks_are_looked_at_only_where_validation_is_best(tmp_path):
    one, records = run("meta", tmp_path, epochs=6)
    best = -1.0
    for record in records:
        new = record["val/accuracy"] > best
        best = max(best, record["val/accuracy"])
        assert ("test/accuracy" in record) == (new or record is records[-1])
    assert any("test/accuracy" not in record for record in records), "no epoch was worse: the test says nothing"
    chosen = max(records, key=lambda record: record["val/accuracy"])
    scores = one.array("task_scores")
    assert scores.mean() == pytest.approx(chosen["test/accuracy"])
    assert np.sort(scores)[: len(scores) // 10].mean() == pytest.approx(chosen["test/worst10_accuracy"])


def test_a_factor_on_the_loss_is_a_factor_on_the_step(tmp_path):
    """Under plain descent, doubling every step's loss is doubling the rate: the scale control does what it says."""
    steps = 2 * SMOKE["meta"].steps
    plain = {"optimizer": "sgd", "schedule": "constant"}
    _, doubled = run("meta", tmp_path, scale=np.full(steps, 2.0, np.float32), lr=0.01, **plain)
    _, faster = run("meta", tmp_path, lr=0.02, label="faster", **plain)
    assert doubled[-1]["val/loss"] == pytest.approx(faster[-1]["val/loss"], rel=1e-4)
    _, slower = run("meta", tmp_path, lr=0.01, label="slower", **plain)
    assert abs(slower[-1]["val/loss"] - faster[-1]["val/loss"]) > 1e-3


def test_methods_share_initial_parameters_and_tasks(tmp_path):
    """With a clip level near zero all weights are one: rgd is then the mean, to the last bit but rounding."""
    _, plain = run("sinusoid", tmp_path, "mean")
    _, weighed = run("sinusoid", tmp_path, "rgd:tau=1e-9")
    assert weighed[-1]["val/loss"] == pytest.approx(plain[-1]["val/loss"], rel=1e-5)
    _, other = run("sinusoid", tmp_path, "rgd:tau=9")
    assert abs(other[-1]["val/loss"] - plain[-1]["val/loss"]) > 1e-4


def test_what_cannot_be_weighed_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'reptile' has no task losses to weigh.* got 'rgd'"):
        run("meta", tmp_path, "rgd", algorithm="reptile")
    with pytest.raises(ValueError, match="weighed by an objective alone, got focal with a loss of its own"):
        run("meta", tmp_path, "focal")
    assert run("meta", tmp_path, "mean", algorithm="reptile")[1][-1]["weights/mean"] == 1.0


def test_waves_are_waves():
    found = sinusoid.Waves(SMOKE["sinusoid"]).draw(np.random.default_rng(0), 200)
    x = torch.cat([found.support_x, found.query_x], 1)[..., 0].numpy()
    y = torch.cat([found.support_y, found.query_y], 1)[..., 0].numpy()
    assert x.min() >= -5
    assert x.max() <= 5
    for points, values in zip(x, y, strict=True):
        basis = np.stack([np.sin(points), np.cos(points)], 1)
        (a, b), residue, *_ = np.linalg.lstsq(basis, values, rcond=None)
        assert residue.sum() < 1e-9  # a sine of period 2 pi and nothing else
        assert 0.1 - 1e-4 <= np.hypot(a, b) <= 5.0
        assert 0 <= np.arctan2(-b, a) <= np.pi


def test_maml_learns_waves_that_the_start_does_not_know(tmp_path):
    _, records = run("sinusoid", tmp_path, epochs=2, steps=150, batch_size=10, lr=5e-3)
    assert records[-1]["test/loss"] < 0.8 * 4.25  # guessing zero: half the mean of squares of numbers from 0.1 to 5
    assert records[-1]["test/loss"] < records[0]["train/loss"]


def test_settings_reach_the_algorithm():
    found = meta._algorithm(meta.Settings(algorithm="maml", inner_lr=0.2, first_order=True, batched=False))
    assert found == MAML(inner_lr=0.2, first_order=True, batched=False)
    assert meta._algorithm(meta.Settings(algorithm="matching", scale=5.0)).scale == 5.0
    assert not hasattr(meta._algorithm(meta.Settings(algorithm="protonet")), "inner_lr")


def test_the_papers_settings_are_the_papers():
    paper = meta.PRESETS["paper"]
    assert (paper.width, paper.downsample, paper.queries, paper.tasks, paper.inner_lr) == (64, "pool", 15, 32, 0.4)
    assert (paper.epochs * paper.steps, paper.lr, paper.schedule) == (15_000, 1e-3, "constant")
    columns = {column.name: column for column in meta.table("paper").columns}
    twenty = columns["MAML, Omniglot 20-way"]
    assert (twenty.settings["inner_steps"], twenty.settings["inner_lr"], twenty.settings["tasks"]) == (5, 0.1, 16)
    assert twenty.paper == {"mean": 84.33, "rgd": 86.61, "reptile, 20-way": 83.13}
    assert twenty.methods == ("mean", "rgd", "reptile, 20-way")

    def settings(column, label):
        return dataclasses.replace(paper, **{**columns[column].settings, **meta.table("paper").row(label).settings})

    reptile = settings("MAML, Omniglot 20-way", "reptile, 20-way")
    assert (reptile.inner_steps, reptile.inner_lr, reptile.tasks, reptile.lr) == (10, 0.01, 32, 5e-4)
    assert (reptile.epochs, reptile.steps, reptile.ways) == (50, 250, 20)
    five = settings("MAML, Omniglot 5-way", "reptile")
    assert (five.inner_steps, five.tasks, five.lr, five.epochs) == (5, 32, 1e-3, 150)
    for name in ("ProtoNet", "Matching"):
        metric = settings(f"{name}, Omniglot 20-way", "mean")
        assert (metric.tasks, metric.epochs, metric.lr, metric.schedule) == (32, 100, 1e-3, "constant")
    assert settings("Matching, Omniglot 5-way", "mean").weight_decay == 1e-4
    small = {column.name: column.settings for column in meta.table("cpu").columns}
    assert {s.get("downsample", meta.PRESETS["cpu"].downsample) for s in small.values()} == {"pool"}
    assert columns["ProtoNet, miniImageNet 5-way"].paper == {"mean": 30.93}


def test_a_diverged_validation_never_counts_as_best():
    watch = TaskEvaluation(sinusoid.Waves(SMOKE["sinusoid"]), MAML(), torch.device("cpu"))
    assert [watch.is_best(value) for value in (float("nan"), 3.0, 3.0, 2.0, float("nan"))] == [
        False, True, False, True, False,
    ]  # fmt: skip


def test_test_tasks_are_looked_at_once_where_no_epoch_is_chosen(tmp_path):
    often, seen = run("meta", tmp_path, "mean", 0, label="often")
    once, last = run("meta", tmp_path, "mean", 0, label="once", final_only=True)
    assert ["test/accuracy" in record for record in last] == [False] * (len(last) - 1) + [True]
    assert all("val/accuracy" in record for record in last)
    assert last[-1]["test/accuracy"] == seen[-1]["test/accuracy"] == pytest.approx(once.array("task_scores").mean())
    assert often.spec.id != once.spec.id


def test_many_at_once_are_what_each_is_alone(tmp_path):
    """Other methods, rates, seeds and a scale next to it change nothing but the last digits."""
    settings, scale = SMOKE["sinusoid"], np.linspace(1.0, 2.0, 40, dtype=np.float32)
    members = [
        (settings, method("mean"), 0, None),
        (dataclasses.replace(settings, lr=3e-3), method("rgd:tau=3"), 0, None),
        (settings, method("absgd"), 1, None),
        (settings, method("mean"), 1, scale),
    ]
    together = list(sinusoid.train_group(members))
    for k, (own, text, seed, factor) in enumerate(members):
        one, alone = run("sinusoid", tmp_path, str(text), seed, lr=own.lr, scale=factor, label=str(k))
        for epoch, record in enumerate(alone):
            found = dict(together[epoch][k])
            arrays = found.pop("arrays")
            assert found.keys() == record.keys()
            for name, value in record.items():
                if isinstance(value, float):
                    assert found[name] == pytest.approx(value, rel=2e-3), name
        assert np.allclose(arrays["mean_weight"], one.array("mean_weight"), rtol=1e-3)
        assert arrays["task_scores"].shape == one.array("task_scores").shape
    keys = {sinusoid.group(own, text) for own, text, *_ in members}
    assert len(keys) == 1
    assert sinusoid.group(dataclasses.replace(settings, shots=5), method("mean")) not in keys


# --- the report ---


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        for text in ("mean", "rgd"):
            run("meta", folder, text, seed)
    return folder


def figures(folder, recipe="meta"):
    (results,) = results_of(folder, recipe)
    return results, {figure.title: figure for figure in results.extra}


def test_worst_shares_in_the_report_are_those_of_the_arrays(runs):
    results, found = figures(runs)
    table = ElementTree.fromstring(found["Worst shares of the pool"].markup)
    rows = {tr.findtext("th"): [td.text for td in tr.findall("td")] for tr in table.iter("tr")}
    for label in ("mean", "rgd"):
        scores = [o.run.array("task_scores") for o in results.columns[0].rows[label].outcomes.values()]
        for i, percent in enumerate((10, 20, 30, 40, 50, 100)):
            expected = np.mean([np.sort(s)[: percent * len(s) // 100].mean() for s in scores])
            assert float(rows[label][i].split(" ± ")[0]) == pytest.approx(100 * expected, abs=0.006)


def test_identical_tasks_are_compared_in_pairs(runs):
    results, found = figures(runs)
    table = ElementTree.fromstring(found["On identical tasks"].markup)
    columns = next([td.text for td in tr.findall("td")] for tr in table.iter("tr") if tr.findtext("th") == "rgd")
    ours, theirs = (
        np.mean([o.run.array("task_scores") for o in results.columns[0].rows[label].outcomes.values()], 0, np.float64)
        for label in ("rgd", "mean")
    )
    mean = float(columns[0].split(" ")[0].replace("−", "-"))
    assert mean == pytest.approx(100 * float((ours - theirs).mean()), abs=0.006)
    assert columns[2] == f"{np.mean(ours - theirs > 1e-6):.0%}"


def test_the_hardest_tasks_are_drawn(runs):
    results, found = figures(runs)
    markup = found["The hardest tasks"].markup
    ElementTree.fromstring(f"<div>{markup}</div>")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', markup)
    assert len(images) == 8
    picture = Image.open(io.BytesIO(base64.b64decode(images[0])))
    assert picture.size == (2 * (2 * 11 + 3), 2 * (2 * 11 + 3))  # two ways of 8 x 8 in two lines, twice as large
    shown = np.array(picture.convert("RGB"))[::2, ::2]
    baseline = results.columns[0].rows["mean"].outcomes
    mean = np.mean([o.run.array("task_scores") for o in baseline.values()], 0)
    kept = {t: o.run for o in reversed(baseline.values()) for t in o.run.array("hardest").tolist()}
    task = min(kept, key=lambda t: (mean[t], t))
    place = kept[task].array("hardest").tolist().index(task)
    support = kept[task].array("hardest_support")[place]
    for way in range(2):
        drawn = shown[3:11, 3 + 11 * way : 11 + 11 * way].astype(int)
        assert np.abs(drawn - (255 - support[way, 0].astype(int))[..., None]).max() <= 24  # sixteen greys


def test_runs_on_different_pools_are_not_compared(tmp_path, monkeypatch):
    run("meta", tmp_path, "mean")
    facts = ImageTasks.facts
    monkeypatch.setattr(ImageTasks, "facts", lambda tasks: {**facts(tasks), "test_tasks_sha256": "other"})
    run("meta", tmp_path, "rgd")
    with pytest.raises(ValueError, match="2 different pools of tasks"):
        results_of(tmp_path, "meta")


def test_losses_are_read_from_the_other_end(tmp_path):
    for text in ("mean", "rgd"):
        run("sinusoid", tmp_path, text)
    results, found = figures(tmp_path, "sinusoid")
    assert list(found) == ["Worst shares of the pool", "On identical tasks", "All tasks, from worst to best"]
    scores = next(iter(results.columns[0].rows["mean"].outcomes.values())).run.array("task_scores")
    table = ElementTree.fromstring(found["Worst shares of the pool"].markup)
    first = next([td.text for td in tr.findall("td")] for tr in table.iter("tr") if tr.findtext("th") == "mean")
    assert float(first[0].split(" ± ")[0]) == pytest.approx(float(np.sort(scores)[-6:].mean()), abs=0.0006)
    curve = report._ordered(
        report.TaskScores(seeds=[0], scores=scores[None].astype(float)), np.array([0.0, 100.0]), True
    )
    assert curve.tolist() == pytest.approx([scores.max(), scores.min()])


@pytest.mark.slow
def test_prototypes_tell_sketches_apart(tmp_path):
    """Digits, six to learn from and two that were never seen: far above chance after a minute, whatever the weights."""
    _, records = run(
        "meta", tmp_path, "rgd", algorithm="protonet", width=32, epochs=3, steps=100, tasks=8, test_tasks=256
    )
    assert records[-1]["test/accuracy"] > 0.8
