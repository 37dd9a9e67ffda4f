"""Where results are selected: epochs, settings, rows, models. Test data choose none of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from reweigh import RGD, Monitor
from reweigh.bench.compare import recipe as compare_recipe
from reweigh.bench.compare.answer import answer
from reweigh.bench.compare.model import train_and_save
from reweigh.bench.compare.problem import DataQuestion, Problem
from reweigh.bench.compare.reading import load
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import plan, results, stats
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import settings_of
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.driver import Driver, Program, fit
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task
from reweigh.method import method
from reweigh.objectives import TERMEma
from reweigh.torch import Reweighted

TABLE = Table(
    title="t", question="q", columns=(Column(name="c", settings={}),), methods=("mean", "rgd"), metric="test/accuracy",
    metric_name="accuracy", select="val/accuracy", trials=2, seeds=2, controls=False,
    epoch="best",
)  # fmt: skip


def written(root: Path, spec: Spec, records: list[dict[str, Any]]) -> Run:
    run = Run(spec, root)
    with run.open() as writer:
        for record in records:
            writer.record(record, synced=False)
        writer.finish({"seconds": 1.0})
    return run


def spec(label: str = "mean", seed: int = 0, **more: Any) -> Spec:
    return Spec(recipe="r", column="c", label=label, settings={"lr": 0.1}, method=label, seed=seed, **more)


def course(val: list[float], test: list[float]) -> list[dict[str, Any]]:
    return [
        {"epoch": k + 1, "val/accuracy": v, "test/accuracy": t} for k, (v, t) in enumerate(zip(val, test, strict=True))
    ]


def test_the_reported_epoch_is_the_one_that_validation_chose(tmp_path):
    """Validation is best in the second epoch, the test set in the third, and neither in the last."""
    run = written(tmp_path, spec(), course([0.5, 0.9, 0.6, 0.7], [0.4, 0.5, 0.95, 0.6]))
    (column,) = results.of_runs("r", TABLE, [run]).columns
    outcome = column.rows["mean"].outcomes[0]
    assert (outcome.chosen, outcome.value, outcome.last) == (1, 0.5, 0.6)


def test_a_trial_is_judged_by_its_best_epoch_and_not_by_its_last(tmp_path):
    question = Question(recipe="r", table=TABLE, settings={"lr": 0.1})
    tuning = [one for one in plan.tuning(question) if one.label == "rgd"]
    written(tmp_path, tuning[0], course([0.9, 0.5], [0.1, 0.1]))
    written(tmp_path, tuning[1], course([0.6, 0.7], [0.9, 0.9]))
    assert (
        plan.choose(question, tuning, tmp_path)["c", "rgd"].lr == tuning[0].settings["lr"] != tuning[1].settings["lr"]
    )


def small_task(seed: int = 0) -> Task:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((120, 6))).float()
    y = (x[:, 0] + 0.5 * x[:, 1] > 0.4).long()
    return Task(
        x_train=x[:60], y_train=y[:60], x_val=x[60:90], y_val=y[60:90], x_test=x[90:], y_test=y[90:],
        classes=("a", "b"), meta=(x[60:75], y[60:75]),
    )  # fmt: skip


def small_network(dropout: float = 0.0) -> nn.Module:
    with Seeds(0).ambient("init"):
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 2))


TRAINING = OptimizerPlan(optimizer="adam", lr=0.01, batch_size=16, epochs=4)


def test_scores_are_those_of_evaluation_mode():
    """Dropout off, and batch normalisation by running statistics: as a forward pass by hand has it."""
    task, network = small_task(), small_network(dropout=0.5)
    record = Driver(Supervised(task, network, method("rgd"), TRAINING, Seeds(0))).run_epoch()
    assert not network.training
    with torch.no_grad():
        for part, x, y in (("val", task.x_val, task.y_val), ("test", task.x_test, task.y_test)):
            assert record[f"{part}/loss"] == pytest.approx(float(nn.functional.cross_entropy(network(x), y)), rel=1e-4)


def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.3 * torch.randn(x.shape, generator=generator)


def test_a_resumed_training_goes_on_with_the_augmentation_that_was_to_come(tmp_path):
    def training() -> Program:
        return Supervised(small_task(), small_network(), method("rgd"), TRAINING, Seeds(0), augment=noisy)

    whole, broken = Run(spec(seed=1), tmp_path), Run(spec(seed=2), tmp_path)
    with whole.open() as writer:
        expected = list(fit(training(), writer))
    with broken.open() as writer:
        for record in fit(training(), writer):
            writer.record(record)
            if record["epoch"] == 3:  # the checkpoint after the second epoch has been written
                break
    with broken.open() as writer:
        rest = list(fit(training(), writer))
    assert rest == expected[2:]


PROBLEM = Problem(
    name="made up", kind="binary", classes=("no", "yes"), class_counts=(50, 50), rows=100, notes=(), test_share=0.2
)
NOISE = (0.004, -0.004, 0.002, -0.002, 0.003, -0.003, 0.001, -0.001)


def compared(root: Path, gains: dict[str, dict[str, float]]) -> Any:
    """The answer where each row differs from plain training by these gains, metric by metric, and by noise."""
    table = compare_recipe.table(
        PROBLEM, (Column(name="mlp", settings={}),), tuple(gains), "rgd", metrics.CLASSIFICATION[0]
    )
    runs: list[Run] = []
    for k, (label, gain) in enumerate(gains.items()):
        for seed in range(len(NOISE)):
            noise = 0.0 if label == "mean" else NOISE[(seed + k) % len(NOISE)]
            base = {"balanced_accuracy": 0.8, "accuracy": 0.8, "auroc": 0.8}
            values = {name: value + gain.get(name, 0.0) + noise for name, value in base.items()}
            record = {f"{part}/{name}": value for part in ("val", "test") for name, value in values.items()}
            one = Spec(recipe="compare", column="mlp", label=label, settings={"lr": 1.0}, method=label, seed=seed)
            runs.append(written(root, one, [{"epoch": 1, "test/class_accuracy": [0.8, 0.8], **record}]))
    gathered = results.of_runs("compare", table, runs)
    return answer(gathered, metrics.CLASSIFICATION, PROBLEM.classes, ())


@pytest.mark.parametrize("order", [("rgd", "term:t=0.5", "focal"), ("focal", "term:t=0.5", "rgd")])
def test_the_best_of_several_better_rows_is_proposed(tmp_path, order):
    gains = {"rgd": 0.02, "term:t=0.5": 0.05, "focal": 0.03}
    found = compared(tmp_path, {"mean": {}, **{label: {"balanced_accuracy": gains[label]} for label in order}})
    assert (found.row, found.strength) == ("term:t=0.5", "decided")


def test_every_metric_is_corrected_for_the_number_of_rows(tmp_path):
    """Holm by hand: of m rows that were not declared, the smallest p-value is multiplied by m."""
    gains = {"mean": {}, "rgd": {}, "term:t=0.5": {"auroc": 0.004}, "focal": {}, "redescending": {}}
    found = compared(tmp_path, gains)
    for key in ("balanced_accuracy", "accuracy", "auroc"):
        rows = {
            label: next(s.difference for s in scores if s.metric.key == key)
            for label, scores in found.models[0].scores.items()
        }
        others = {label: d for label, d in rows.items() if d is not None and not d.primary}
        assert len(others) == 3
        ordered = sorted(others.values(), key=lambda d: d.p)
        largest = 0.0
        for k, apart in enumerate(ordered):
            largest = max(largest, min(1.0, (len(ordered) - k) * apart.p))
            assert apart.p_holm == pytest.approx(largest)


@pytest.fixture
def people(tmp_path) -> Path:
    draw = np.random.default_rng(3)
    age, city = draw.integers(18, 80, 300), draw.choice(["Rom", "Bonn", "Oslo"], 300)
    old = np.where(age + 12 * (city == "Rom") + draw.normal(0, 12, 300) > 55, "yes", "no")
    pl.DataFrame({"age": age, "city": city, "old": old}).write_csv(tmp_path / "people.csv")
    return tmp_path / "people.csv"


def question_about(path: Path, **more: Any) -> tuple[DataQuestion, Problem]:
    question = DataQuestion(source=str(path), target="old", **more)
    return question, load(question)


def test_the_kept_model_is_that_of_the_last_epoch_whatever_validation_says(people, tmp_path, monkeypatch):
    """Validation is best in the second of five epochs; every epoch leaves its number in the weights."""
    question, problem = question_about(people)
    table = compare_recipe.table(problem, (), ("mean",), "rgd", compare_recipe.metric_named("", problem))
    settings = compare_recipe.settings(question, problem, 4) | {"epochs": 5, "model": "linear"}
    one = Spec(recipe="compare", column="logistic", label="mean", settings=settings, method="mean", seed=0)
    scripted = [0.6, 0.9, 0.7, 0.8, 0.9]
    train = Driver.run_epoch

    def run_epoch(driver: Driver, *more: Any) -> Any:
        record = train(driver, *more)
        for parameter in driver.program.module.parameters():
            parameter.data.fill_(float(driver.epoch))
        return {**record, table.select: scripted[driver.epoch - 1], table.metric: driver.epoch / 10}

    monkeypatch.setattr(Driver, "run_epoch", run_epoch)
    folder = train_and_save(problem, one, tmp_path / "model", expected={})
    card = json.loads((folder / "model.json").read_text())
    assert card["epoch"] == 5
    assert {float(value.unique()) for value in load_file(folder / "weights.safetensors").values()} == {5.0}


def test_equal_scores_count_half_in_auroc():
    """By hand: the positives 0.5 and 0.8 against the negatives 0.5 and 0.2 win 3.5 of 4 pairs."""
    positive = np.array([0.5, 0.5, 0.2, 0.8])
    found = metrics.auroc(np.stack([1 - positive, positive], 1), np.array([0, 1, 0, 1]), np.array([True, True]))
    assert found == pytest.approx(3.5 / 4)
    constant = np.full((6, 2), 0.5)
    assert metrics.auroc(constant, np.array([0, 1, 0, 1, 1, 1]), np.array([True, True])) == pytest.approx(0.5)


@pytest.mark.parametrize("masked_first", [True, False])
def test_micro_batches_with_and_without_a_mask_are_one_step(masked_first):
    """The state after two micro-batches is that after both at once, whichever of them leaves units out."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, generator=draw), torch.randn(8, generator=draw)
    mask = torch.tensor([0.0, 0.0, 0.0, 1.0])
    parts = [(x[:4], y[:4], mask), (x[4:], y[4:], None)]
    if not masked_first:
        parts.reverse()
    split = Reweighted(nn.L1Loss(), TERMEma(t=1.0), accumulation=2)
    whole = Reweighted(nn.L1Loss(), TERMEma(t=1.0))
    for output, target, kept in parts:
        split(output, target, sample_weight=kept)
    outputs, targets = (torch.cat([part[k] for part in parts]) for k in range(2))
    whole(outputs, targets, sample_weight=torch.cat([torch.ones(4) if kept is None else kept for *_, kept in parts]))
    assert split.state_dict().keys() == whole.state_dict().keys()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(split.state_dict()[name], value)


def test_a_loss_at_the_clip_level_is_clipped():
    """At the level the weight is the largest there is; half of these losses are there or above."""
    losses = np.array([0.5, 0.9, 1.0, 2.0])
    for monitor in (Monitor(tau=1.0), Monitor.of(RGD(tau=1.0))):
        monitor.update(losses, np.exp(np.clip(losses, 0, 1) / 2))
        assert monitor.stats()["clip_share"] == 0.5


# Test data choose nothing.


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("preset", ["smoke", "cpu", "paper"])
def test_no_recipe_selects_by_test_data(tmp_path, name, preset):
    """Runs of its columns and rows with random courses: test scores that are shuffled change no epoch, no setting."""
    recipe = recipes.load(name)
    if preset not in recipe.PRESETS:
        pytest.skip(f"{name} has no preset {preset}")
    table = recipe.table(preset)
    table = dataclasses.replace(
        table,
        columns=tuple(dataclasses.replace(c, seeds=1, trials=min(table.trials_of(c), 3)) for c in table.columns[:2]),
        methods=table.methods[:3],
    )
    table = dataclasses.replace(
        table, columns=tuple(dataclasses.replace(c, methods=table.methods_of(c)[:3]) for c in table.columns)
    )
    assert not table.select.startswith("test/")
    question = Question(recipe=name, table=table, settings=dataclasses.asdict(recipe.PRESETS[preset]))
    choices = [_choices(tmp_path / str(k), question, shuffled=bool(k)) for k in range(2)]
    assert choices[0]["trials"] == choices[1]["trials"]
    assert choices[0]["epochs"] == choices[1]["epochs"]
    if table.metric != table.select:
        assert choices[0]["values"] != choices[1]["values"], "nothing was shuffled"


def _choices(root: Path, question: Question, *, shuffled: bool) -> dict[str, Any]:
    table = question.table

    def train(one: Spec) -> Run:
        draw = np.random.default_rng(int(one.id, 16))
        # A recipe whose only record is its result is selected by that record.
        tested = draw.uniform(size=5)
        if shuffled and table.metric != table.select:
            tested = np.random.default_rng(0).uniform(size=5) + tested.mean()
        values = [{"epoch": k + 1, table.metric: float(t), "lr": 0.1} for k, t in enumerate(tested)]
        if table.metric != table.select:
            for record, v in zip(values, draw.uniform(size=5), strict=True):
                record[table.select] = float(v)
        return written(root, one, values)

    tuning = plan.tuning(question)
    for one in tuning:
        train(one)
    trials = plan.choose(question, tuning, root)
    final = [train(one) for one in plan.comparison(question, trials)]
    found = results.of_runs(question.recipe, table, final)
    outcomes = {
        (column.name, label): outcome
        for column in found.columns
        for label, row in column.rows.items()
        for outcome in row.outcomes.values()
    }
    return {
        "trials": trials,
        "epochs": {key: outcome.chosen for key, outcome in outcomes.items()},
        "values": [outcome.value for outcome in outcomes.values()],
    }


@pytest.mark.parametrize(
    "text", ["rgd", "rgd+swad", "rgd+ema", "l2rw", "importance", "rgd+sam", "mean+threshold", "mean+prior"]
)
def test_no_training_looks_at_test_labels(tmp_path, text):
    """Shuffled test labels change test scores and nothing else: not a record, an array, a kept state."""
    task = small_task()
    order = torch.randperm(len(task.y_test), generator=torch.Generator().manual_seed(1))
    kept: list[tuple[list[dict[str, Any]], dict[str, Any], bytes]] = []
    for k, own in enumerate((task, dataclasses.replace(task, y_test=task.y_test[order]))):
        run = Run(spec(text, seed=k), tmp_path)
        with run.open() as writer:
            program = Supervised(own, small_network(), method(text), TRAINING, Seeds(0))
            records = list(fit(program, writer))
        arrays = {path.name: path.read_bytes() for path in (run.directory / "arrays").glob("*")}
        state = json.dumps({n: v.tolist() for n, v in program.module.state_dict().items()}).encode()
        kept.append((records, arrays, state))
    (first, arrays, state), (second, other_arrays, other_state) = kept
    assert [_without_test(r) for r in first] == [_without_test(r) for r in second]
    assert arrays == other_arrays
    assert state == other_state
    assert first[-1]["test/accuracy"] != second[-1]["test/accuracy"]


def _without_test(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith("test/")}


@pytest.mark.parametrize("model", ["mlp", "lightgbm"])
def test_no_comparison_chooses_epochs_settings_or_models_weights_by_test_labels(people, tmp_path, model):
    """The same rows to test on with their labels shuffled: tuning, epochs and the kept model stay the same."""
    frame = pl.read_csv(people)
    frame[:220].write_csv(tmp_path / "train.csv")
    labels = frame[220:]["old"]
    choices: list[dict[str, Any]] = []
    for k, test in enumerate((labels, labels.shuffle(seed=1))):
        folder = tmp_path / str(k)
        folder.mkdir()
        frame[220:].with_columns(old=test).write_csv(folder / "test.csv")
        question, problem = question_about(tmp_path / "train.csv", test=str(folder / "test.csv"))
        metric = compare_recipe.metric_named("", problem)
        column = compare_recipe.column(model, problem, ("mean", "rgd"))
        table = dataclasses.replace(
            compare_recipe.table(problem, (column,), ("mean", "rgd"), "rgd", metric), trials=2, seeds=1
        )
        settings = compare_recipe.settings(question, problem, 4) | {"epochs": 4}
        asked = Question(recipe="compare", table=table, settings=settings)
        tuning = plan.tuning(asked)
        for one in tuning:
            _train(folder, one)
        trials = plan.choose(asked, tuning, folder)
        final = [_train(folder, one) for one in plan.comparison(asked, trials)]
        outcomes = results.of_runs("compare", table, final).columns[0].rows
        saved = train_and_save(problem, final[-1].spec, folder / "model", expected={})
        weights = next(path for path in saved.iterdir() if path.name.startswith(("weights", "booster")))
        choices.append(
            {
                "trials": trials,
                "epochs": {label: row.outcomes[0].chosen for label, row in outcomes.items()},
                "records": [[_without_test(r) for r in run.records()] for run in final],
                "model": weights.read_bytes(),
                "tested": [row.values for row in outcomes.values()],
            }
        )
    tested = [choice.pop("tested") for choice in choices]
    assert choices[0] == choices[1]
    assert tested[0] != tested[1]


def _train(root: Path, one: Spec) -> Run:
    run = Run(one, root)
    with run.open() as writer:
        settings = settings_of(compare_recipe.Settings, one)
        for record in compare_recipe.train(settings, method(one.method), one.seed, writer, None):
            writer.record(record)
        writer.finish({"seconds": 1.0})
    return run


def test_holm_is_the_correction():
    """Of three p-values 0.01, 0.02 and 0.04, Holm makes 0.03, 0.04 and 0.04."""
    ours = {
        str(p): dataclasses.replace(stats.paired([1.0, 2.0, 4.0], [0.5, 1.0, 2.0]), p=p) for p in (0.02, 0.01, 0.04)
    }
    assert {d.p: pytest.approx(d.p_holm) for d in stats.corrected(ours).values()} == {
        0.01: 0.03,
        0.02: 0.04,
        0.04: 0.04,
    }
