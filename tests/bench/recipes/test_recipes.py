"""Recipes end to end: complete, resumable, unharmed by a kill or by a second command, and right where theory is."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import random
import sys
import time
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from children import moments, output_of, started
from scipy import optimize

from reweigh.bench import catalogue, draws
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import experiment, plan
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.conclusions import conclusions
from reweigh.bench.lab.results import collect
from reweigh.bench.lab.runs import Run, RunTakenError, Spec, load_runs
from reweigh.bench.recipes import convergence, cost, noise, sam, suspects, toy
from reweigh.method import method


class Quiet:
    """A display that keeps what it is told."""

    def __init__(self):
        self.stages, self.failures = [], []

    def stage(self, title, groups, finished):
        self.stages.append((title, sum(map(len, groups)), finished))

    def update(self, running, finished):
        pass

    def failed(self, failure):
        self.failures.append(failure)

    def damaged(self, run, reason):
        pytest.fail(f"{run.spec.id}: {reason}")


def run_recipe(name, folder, **options):
    chosen = experiment.Options(preset="smoke", runs_dir=folder, **options)
    asked, display = experiment.question(name, chosen), Quiet()
    failures = experiment.run(asked, chosen, display)
    assert not failures, failures[0].reason
    return asked, display


def train(recipe, settings, text, folder, seed=0):
    """One run of a recipe in this process; returns the run and its records."""
    spec = Spec(recipe="r", column="c", label=text, settings=dataclasses.asdict(settings), method=text, seed=seed)
    run = Run(spec, folder)
    with run.open() as writer:
        records = list(recipe.train(settings, method(text), seed, writer, None))
    return run, records


def test_seeds_that_train_on_more_examples_are_programs_of_their_own():
    """Splits of drawn examples are rounded by class."""
    settings = dataclasses.replace(noise.PRESETS["smoke"], rows=305, epochs=2)
    sizes = [len(noise.task(settings, Seeds(seed)).x_train) for seed in range(12)]
    assert len(set(sizes)) > 1, "the test needs splits of different sizes"
    members = [(settings, method("rgd"), seed, None) for seed in range(12)]
    assert len({noise.group(*member[:2]) for member in members}) == 1
    together = list(noise.train_group(members))
    assert len(together) == 2
    for k in (sizes.index(min(sizes)), sizes.index(max(sizes))):
        alone = list(noise.train_group([members[k]]))
        assert together[-1][k]["train/loss"] == pytest.approx(alone[-1][0]["train/loss"], rel=1e-5)
        assert len(together[-1][k]["arrays"]["loss_trajectory"][0]) == sizes[k]


@pytest.mark.parametrize(
    ("recipe", "text", "why"),
    [
        (toy, "rgd+prior", "with an objective alone, got .* with a post"),
        (toy, "rgd+sam", "with an objective alone, got .* with a step"),
        (suspects, "rgd+threshold", "Leave the correction out"),
    ],
)
def test_what_a_recipe_would_ignore_is_refused(recipe, text, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        train(recipe, recipe.PRESETS["smoke"], text, tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("name", recipes.names())
def test_smoke_is_complete_and_done_once(name, tmp_path):
    asked, _ = run_recipe(name, tmp_path, jobs=2 if name in ("longtail", "sam") else 1)
    table, runs = asked.table, load_runs(tmp_path)
    assert all(run.done and run.records() for run in runs)
    found = {(run.spec.column, run.spec.label, run.spec.seed) for run in runs if run.spec.stage == "final"}
    labels = [*table.methods, *((plan.NORMALISED, plan.SCALED_BASELINE) if table.controls else ())]
    assert {key for key in found if key[1] != plan.AT_PLAIN_RATE} == {
        (column.name, label, seed)
        for column in table.columns
        for label in labels
        for seed in range(table.seeds_of(column))
    }
    tuned = [run for run in runs if run.spec.stage == "tune"]
    tried: dict[tuple[str, str], set[float]] = {}
    for run in tuned:
        settings = run.spec.settings
        tried.setdefault((run.spec.column, run.spec.label), set()).add(settings[table.draws or "lr"])
    cells = [(column.name, label) for column in table.columns for label in table.methods] if table.trials > 1 else []
    assert {cell: len(values) for cell, values in tried.items()} == dict.fromkeys(cells, table.trials)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    began = time.process_time()
    _, display = run_recipe(name, tmp_path, jobs=1)
    assert {to_do for _, to_do, _ in display.stages} == {0}
    assert sum(done for _, _, done in display.stages) == len(runs)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    assert time.process_time() - began < 10

    (results,) = collect(tmp_path, preset="smoke")
    shows_it = table.controls and table.trials > 1 and not table.draws
    labels += [plan.AT_PLAIN_RATE] if shows_it else []
    assert [column.name for column in results.columns] == [column.name for column in table.columns]
    for column in results.columns:
        assert list(column.rows) == labels
        assert set(column.differences) == set(labels) - {"mean"}
        assert all(np.isfinite(row.values).all() for row in column.rows.values())
        assert all(difference.n == table.seeds for difference in column.differences.values())
    assert not results.unfinished
    if name in ("convergence", "cost"):  # their question has an answer of its own, which is the number itself
        for column in results.columns:
            assert f"{np.mean(column.rows['rgd'].values):.{2 if name == 'convergence' else 3}f} [" in results.headline
    elif name == "suspects" and importlib.util.find_spec("cleanlab"):
        assert "cleanlab's find" in results.headline
        assert "of 1 settings" in results.headline
        assert "Compared with cleanlab" in results.details[0]
    elif name == "sam":
        (column,) = results.columns
        added = np.mean(column.rows["rgd+sam"].values) - np.mean(column.rows["sam"].values)
        (one,) = conclusions(results)
        assert one.difference.mean == pytest.approx(added)
        assert one.gain == pytest.approx(0.001)
    for figure in results.extra:
        shown = ElementTree.fromstring(f"<div>{figure.markup}</div>")  # well-formed, or this raises
        assert not any("</" in text for text in shown.itertext())  # no markup that is shown as text


def test_noise_takes_as_many_rows_as_it_is_told_and_no_other_draw_where_it_takes_all():
    settings = noise.Settings(rate=0.4)
    dataset, seeds = catalogue.load("digits"), Seeds(3)
    few, everything = (noise.task(dataclasses.replace(settings, rows=rows), seeds) for rows in (200, 0))
    assert len(few.x_train) + len(few.x_val) == 200
    assert abs(len(few.x_val) - 40) <= 5  # a fifth of each class, rounded
    assert len(everything.x_train) + len(everything.x_val) == len(dataset.y_train)
    _, val = draws.split(dataset.y_train, settings.validation, Seeds(3).numpy("data"))
    assert np.array_equal(everything.y_val.numpy(), dataset.y_train[val])  # clean, and in the order of the split
    for task in (few, everything):
        assert 0.2 < float(task.noisy.double().mean()) < 0.5  # uniform noise may draw the old label again
        assert float(task.noisy.double().std()) > 0


def test_sam_looks_at_as_many_test_images_as_it_is_told_the_same_for_every_method():
    settings = sam.Settings(data="digits", rows=300, test_rows=50)
    first, again, other = (sam.task(settings, Seeds(seed)) for seed in (0, 0, 1))
    assert (len(first.x_train) + len(first.x_val), len(first.x_test)) == (300, 50)
    assert torch.equal(first.x_test, again.x_test)
    assert not torch.equal(first.x_test, other.x_test)
    whole = sam.task(dataclasses.replace(settings, test_rows=0), Seeds(0))
    places = [int((whole.x_test == image).flatten(1).all(1).int().argmax()) for image in first.x_test]
    assert torch.equal(whole.y_test[places], first.y_test)  # images kept their labels


#: Both ways to train: `mean` and `rgd` in groups, `importance` on its own with checkpoints; tuning and controls too.
COMMAND = ("longtail", "--preset", "smoke", "--method", "rgd", "--method", "importance", "--set", "epochs=8", "--seeds",
           "2", "--tune", "2", "--jobs", "2")  # fmt: skip


def start(folder):
    command = [sys.executable, "-m", "reweigh", "run", *COMMAND, "--runs-dir", folder]
    return started(command, env={**os.environ, "COLUMNS": "200"})


def finish(folder):
    with start(folder) as process:
        output_of(process)


def contents(folder):
    """The bytes of all records and arrays, by path; every run must be done."""
    runs = load_runs(folder)
    assert all(run.done for run in runs)
    files = [path for run in runs for path in run.directory.rglob("*") if path.suffix in (".jsonl", ".npy")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    finish(folder)
    return contents(folder)


def lines(folder):
    return sum(path.read_text().count("\n") for path in folder.glob("*/*/records.jsonl"))


def kill_at_work(folder, delay):
    """Start the command, kill it `delay` seconds after its first record; its processes must end by themselves."""
    with start(folder) as process:
        for _ in moments(200, every=0.02):
            if lines(folder) or process.poll() is not None:
                break
        time.sleep(delay)
        process.kill()
        process.wait()
        for _ in moments(60):
            if all_let_go(folder):
                return
        pytest.fail("a process outlived its command")


def all_let_go(folder):
    """Whether every run can be taken, which it cannot while a process works on it."""
    with contextlib.ExitStack() as stack:
        try:
            for run in load_runs(folder):
                stack.enter_context(run.open())
        except RunTakenError:
            return False
    return True


@pytest.mark.processes
def test_killed_it_ends_with_the_same_bits(unbroken, tmp_path):
    delay = random.uniform(0, 0.5)
    kill_at_work(tmp_path, delay)
    finish(tmp_path)
    ended = contents(tmp_path)
    assert ended.keys() == unbroken.keys(), delay
    assert [name for name in ended if ended[name] != unbroken[name]] == [], delay


@pytest.mark.processes
def test_two_commands_at_once_share_the_work(unbroken, tmp_path):
    with start(tmp_path) as one, start(tmp_path) as other:
        for process in (one, other):
            output_of(process)
    ended = contents(tmp_path)
    assert ended.keys() == unbroken.keys()
    assert [name for name in ended if ended[name] != unbroken[name]] == []


@pytest.mark.processes
def test_a_run_that_another_command_abandons_is_taken_over(tmp_path):
    """While somebody holds a run the others are done; it is waited for, and done once it is let go."""
    chosen = experiment.Options(preset="smoke", runs_dir=tmp_path, jobs=1, seeds=2)
    asked = experiment.question("toy", chosen)
    spec = plan.comparison(asked, plan.as_written(asked))[0]

    class Releasing(Quiet):
        def update(self, running, finished):
            if finished == 5 and held is not None:  # three rows of two seeds, less the one we hold
                release()

    held = contextlib.ExitStack()
    held.enter_context(Run(spec, tmp_path).open())

    def release():
        nonlocal held
        held.close()
        held = None

    assert experiment.run(asked, chosen, Releasing()) == []
    assert held is None
    assert all(run.done for run in load_runs(tmp_path))
    assert len(load_runs(tmp_path)) == 8


#: Distance to the truth on the rare coordinates after 0, 10, 50, 100 and 200 steps, seed 0, to the digits given.
TRAJECTORIES = {
    "mean": "2.1965 1.8753 0.9963 0.4519 0.0930",
    "rgd": "2.1965 1.7801 0.8749 0.3889 0.0796",
    "rgd:tau=3": "2.1965 1.8294 0.9318 0.4177 0.0857",
    "rgd:tau=9": "2.1965 1.8574 0.9696 0.4375 0.0899",
    "rgd:divergence=revkl": "2.1965 1.759 0.8616 0.3831 0.0785",
    "rgd:divergence=chi2": "2.1965 1.722 0.8063 0.3540 0.0723",
    "rgd:divergence=chi2,scaled=true": "2.1965 1.722 0.8063 0.3540 0.0723",
}


@pytest.mark.parametrize(("text", "expected"), TRAJECTORIES.items())
def test_the_toy_problem_follows_its_reference(text, expected, tmp_path):
    _, records = train(toy, toy.PRESETS["cpu"], text, tmp_path)
    rare = {record["step"]: record["rare"] for record in records}
    for step, number in zip((0, 10, 50, 100, 200), expected.split(), strict=True):
        last_digit = 10.0 ** -len(number.partition(".")[2])
        assert rare[step] == pytest.approx(float(number), abs=0.6 * last_digit, rel=0)


def test_the_toy_problem_unclipped_diverges_and_says_so(tmp_path):
    _, records = train(toy, toy.Settings(lr=100.0), "rgd:tau=none,gamma=1", tmp_path)
    assert records[-1]["diverged"]
    assert records[-1]["rare"] == float("inf")
    assert json.loads(json.dumps(records[-1]))["rare"] == float("inf")


@pytest.mark.parametrize("schedule", ["decaying", "constant"])
@pytest.mark.parametrize("text", ["mean", "rgd"])
def test_the_gap_to_the_optimum_falls(text, schedule, tmp_path):
    settings = dataclasses.replace(convergence.PRESETS["smoke"], schedule=schedule)
    _, records = train(convergence, settings, text, tmp_path)
    assert records[-1]["slope"] < 0
    assert all(record["gap"] >= 0 for record in records)
    assert records[-1]["gap"] < records[0]["gap"]


@pytest.mark.parametrize("text", ["mean", "rgd", "rgd:tau=3", "rgd:divergence=revkl"])
def test_the_optimum_is_that_of_a_general_solver(text):
    objective, radius = convergence._checked(method(text)), 5.0
    x, y = convergence._problem()

    def value(theta):
        losses = np.log1p(np.exp(-y * (x @ theta)))
        return np.mean(losses if objective is None else objective.weight.phi(losses))

    found = optimize.minimize(
        value,
        np.zeros(x.shape[1]),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda theta: radius**2 - theta @ theta, "jac": lambda theta: -2 * theta},
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    assert found.success
    assert convergence._optimum(objective, radius) == pytest.approx(found.fun, abs=1e-6)


def test_convergence_refuses_what_has_no_rate():
    with pytest.raises(ValueError, match="term"):
        convergence._checked(method("term"))


SMALL = dataclasses.replace(suspects.PRESETS["smoke"], rows=500)


def test_suspects_are_found_beside_cleanlab(tmp_path):
    _, (record,) = train(suspects, dataclasses.replace(SMALL, epochs=20), "mean", tmp_path)
    chance = record["wrong"] / 400  # of the 500 rows a fifth is for validation
    assert 0.1 < chance < 0.3
    assert record["average_precision"] > 3 * chance
    assert record["flagged_precision"] > 2 * chance
    assert record["losses/average_precision"] > 2 * chance
    assert 0 <= record["false_alarms"] < 0.1
    if importlib.util.find_spec("cleanlab"):
        assert record["cleanlab/average_precision"] > 2 * chance
        assert 0 < record["cleanlab/flagged_recall"] <= 1
        assert 0 < record["cleanlab/false_alarms"] < 0.2


def test_suspects_go_without_cleanlab(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, (record,) = train(suspects, SMALL, "rgd", tmp_path)
    assert not [name for name in record if name.startswith("cleanlab")]


def test_suspects_resume_after_the_last_epoch(tmp_path):
    """Killed between the training and its ranking: the checkpoint has every epoch, and nothing is lost."""
    settings = dataclasses.replace(SMALL, folds=0)
    run, expected = train(suspects, settings, "mean", tmp_path)
    assert (run.directory / "checkpoint.pt").exists()
    assert train(suspects, settings, "mean", tmp_path)[1] == expected


def test_suspects_need_something_to_find(tmp_path):
    with pytest.raises(ValueError, match="nothing to find"):
        train(suspects, dataclasses.replace(SMALL, rate=0.0), "mean", tmp_path)


@pytest.mark.parametrize("text", cost.METHODS)
def test_every_method_of_the_cost_table_takes_steps(text):
    settings = dataclasses.replace(cost.PRESETS["smoke"], hidden=(8,))
    stepping = cost._stepping(settings, cost._task(settings), method(text), 0)
    stepping.go(2)
    assert stepping.driver.step == 2


@pytest.mark.processes
def test_cost_is_relative_to_plain_training(tmp_path):
    settings = dataclasses.replace(cost.PRESETS["smoke"], turns=15, steps=5, hidden=(256, 256))
    _, (twice,) = train(cost, settings, "sam", tmp_path)
    _, (plain,) = train(cost, dataclasses.replace(settings, memory=True), "mean", tmp_path)
    assert 0.6 < plain["ratio"] < 1.6
    assert twice["ratio"] > 1.3
    assert twice["milliseconds"] > twice["plain_milliseconds"] > 0
    # 64 x 256, 256 x 256 and 256 x 10 parameters, their gradients and their momentum are one megabyte; a part of it may
    # lie in memory that the process had already.
    assert plain["peak_mb"] > 0.5
    assert plain["peak_mb"] == pytest.approx(plain["plain_peak_mb"], abs=25)
