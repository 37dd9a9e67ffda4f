"""The recipe on tables: arms re-weight what they say, pre-trainings are shared, and test labels choose nothing."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic_runs import results_of
from torch import nn

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab import experiment, plan
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column, Row, Table
from reweigh.bench.recipes import _rows, tabular
from reweigh.bench.recipes._figures import tabular as drawn_tables
from reweigh.bench.report.tabulate import tables
from reweigh.bench.train.programs.supervised import Supervised
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task
from reweigh.method import method

TINY = dataclasses.replace(
    tabular.PRESETS["smoke"], rows=120, test_rows=60, embedding=3, feed_forward=4, hidden=(8,), pretrain_batch=32
)
#: 96 rows train; three steps an epoch and two epochs, then two steps an epoch and three epochs.
EARLY, LATE = 6, 6


def train(
    text: str, folder: Path, seed: int = 0, scale: Any = None, **changes: Any
) -> tuple[Run, list[dict[str, Any]]]:
    settings = dataclasses.replace(TINY, **changes)
    spec = Spec(recipe="tabular", column="c", label=str(changes), settings=dataclasses.asdict(settings), method=text,
                seed=seed, scale_from=None if scale is None else "x")  # fmt: skip
    run = Run(spec, folder)
    with run.open() as writer:
        records: list[dict[str, Any]] = []
        for record in tabular.train(settings, method(text), seed, writer, scale):
            writer.record(record)
            records.append(record)
        writer.finish({})
    return run, records


# --- arms ---


@pytest.mark.parametrize("arm", ["both", "pretrain", "head"])
def test_an_arm_weighs_what_it_says(arm: str, tmp_path: Path) -> None:
    run, records = train("rgd", tmp_path, arm=arm)
    weights = run.array("mean_weight")
    assert len(weights) == EARLY + LATE
    assert (weights[:EARLY] > 1.01).all() == (arm != "head")
    assert (weights[EARLY:] > 1.01).all() == (arm != "pretrain")
    assert ((weights == 1.0).sum() == 0) == (arm == "both")
    assert (records[0]["pretrain/mean_weight"] > 1) == (arm != "head")
    assert [record["epoch"] for record in records] == [1, 2, 3]


def test_without_pre_training_the_head_is_weighed_in_any_arm(tmp_path: Path) -> None:
    for algorithm in ("mlp", "rf_g", "met_r"):
        run, _ = train("rgd", tmp_path, algorithm=algorithm, arm="pretrain")
        assert (run.array("mean_weight") > 1.01).all()
        assert len(run.array("mean_weight")) == LATE


def test_rows_that_need_the_same_pre_training_share_it(tmp_path: Path) -> None:
    folder = tmp_path / "tabular" / "pretrained"
    train("mean", tmp_path)
    train("rgd", tmp_path, arm="head")
    train("rgd:tau=3", tmp_path, arm="head", epochs=2)
    assert len(list(folder.glob("*.pt"))) == 1
    train("rgd", tmp_path)
    train("rgd", tmp_path, arm="pretrain")
    assert len(list(folder.glob("*.pt"))) == 2
    train("mean", tmp_path, seed=1)
    train("mean", tmp_path, lr=1e-4)
    assert len(list(folder.glob("*.pt"))) == 4


@pytest.mark.parametrize("algorithm", ["met_s", "met", "vime", "subtab", "tabnet"])
def test_from_a_kept_pre_training_or_anew_the_numbers_are_the_same(algorithm: str, tmp_path: Path) -> None:
    _, first = train("rgd", tmp_path, algorithm=algorithm)
    run, again = train("rgd", tmp_path, algorithm=algorithm)
    assert again == first
    shutil.rmtree(tmp_path / "tabular" / "pretrained")
    shutil.rmtree(run.directory)
    assert train("rgd", tmp_path, algorithm=algorithm)[1] == first


def test_scale_reaches_both_stages(tmp_path: Path) -> None:
    plain, records = train("mean", tmp_path)
    assert plain.array("mean_weight").tolist() == [1.0] * (EARLY + LATE)
    assert train("mean", tmp_path, scale=np.ones(EARLY + LATE))[1] == records
    for changed in (slice(1, 3), slice(EARLY + 1, EARLY + 3)):
        scale = np.ones(EARLY + LATE)
        scale[changed] = 50.0  # a factor that comes and goes; Adam would not see one that stays
        _, scaled = train("mean", tmp_path, scale=scale)
        assert scaled[-1]["val/loss"] != records[-1]["val/loss"]
        assert (scaled[0]["pretrain/loss"] == records[0]["pretrain/loss"]) == (changed.start >= EARLY)


def test_test_labels_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, before = train("rgd", tmp_path)
    deal = _rows.deal

    def other_labels(draw: Any, seeds: Seeds) -> Task:
        task = deal(draw, seeds)
        task.y_test.copy_(task.y_test.roll(1))  # in place, so that the scorer sees it too
        return task

    monkeypatch.setattr(_rows, "deal", other_labels)
    _, after = train("rgd", tmp_path)
    for ours, theirs in zip(before, after, strict=True):
        assert {k: v for k, v in ours.items() if "test/" not in k} == {
            k: v for k, v in theirs.items() if "test/" not in k
        }
    assert before[-1]["test/accuracy"] != after[-1]["test/accuracy"]


@pytest.mark.parametrize("algorithm", tabular.ALGORITHMS)
def test_every_algorithm_trains(algorithm: Any, tmp_path: Path) -> None:
    _, records = train("mean", tmp_path, algorithm=algorithm)
    assert len(records) == (1 if algorithm in ("rf", "gbdt") else 3)
    for record in records:
        assert record["val/accuracy_or_auroc"] == record["val/accuracy"]
        assert np.isfinite([record["test/loss"], record["test/auroc"]]).all()


def test_trees_are_not_weighed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rf is trained plainly here, got the method rgd"):
        train("rgd", tmp_path, algorithm="rf")


def test_unknown_names_are_answered() -> None:
    with pytest.raises(ValueError, match=r"`algorithm` must be one of .* Did you mean 'met_s'"):
        tabular.Settings(algorithm="mets")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`arm` must be one of"):
        tabular.Settings(arm="neither")  # pyright: ignore[reportArgumentType]


# --- the table ---


def test_figures_of_the_paper_have_its_means() -> None:
    """The means that the paper prints, which nobody copied into the recipe."""
    printed = {
        False: {"MLP": 66.64, "RF": 75.04, "GBDT": 76.84, "RF-G": 72.10, "MET-R": 71.23, "VIME": 68.23, "DACL+": 69.18,
                "SubTab": 66.90, "TabNet": 70.92, "MET": 78.85, "mean": 78.02, "rgd:divergence=revkl": 79.75,
                "rgd": 80.12, "MLP, revkl": 68.875, "MLP, rgd": 69.41},
        True: {"MLP": 70.95, "RF": 83.27, "GBDT": 83.75, "RF-G": 69.37, "MET-R": 74.49, "VIME": 78.45, "DACL+": 78.04,
               "TabNet": 81.15, "mean": 87.92, "rgd:divergence=revkl": 89.22, "rgd": 89.43, "MLP, revkl": 71.88,
               "MLP, rgd": 72.72},
    }  # fmt: skip
    for binary, rows in printed.items():
        columns = [column for column, found in zip(tabular.table("cpu").columns, tabular.DATA, strict=True)
                 if found.binary is binary]  # fmt: skip
        for label, mean in rows.items():
            assert np.mean([column.paper[label] for column in columns]) == pytest.approx(mean, abs=0.011), label
    accuracy = np.mean([found.mlp_accuracy for found in tabular.DATA if found.binary], axis=0)
    np.testing.assert_allclose(accuracy, [66.69, 69.1, 69.0], atol=0.05)


def test_presets_are_what_they_say() -> None:
    paper = tabular.PRESETS["paper"]
    assert (paper.embedding, paper.blocks, paper.pretrain_batch, paper.pretrain_epochs, paper.lr) == (
        64,
        6,
        126,
        50,
        1e-5,
    )
    assert (paper.rows, paper.test_rows, paper.side, paper.hidden) == (0, 0, 0, (5040, 256))
    for preset in tabular.PRESETS:
        table = tabular.table(preset)
        asked = plan.Question(recipe="tabular", table=table, settings=dataclasses.asdict(tabular.PRESETS[preset]))
        for spec in plan.tuning(asked):
            tabular.Settings(**spec.settings)
        rates = {label: {s.settings["lr"] for s in plan.tuning(asked) if s.label == label} for label in table.methods}
        relative = [sorted(round(lr / max(own), 6) for lr in own) for own in rates.values()]
        assert all(own == relative[0] for own in relative), "the same multiples of its own rate for every row"


# --- rows that are not the text of a method ---


def question(**changes: Any) -> plan.Question:
    table = Table(
        title="t", question="q", columns=(Column(name="c", settings={"size": 3}),),
        metric="m", metric_name="m", select="s",
        methods=("mean", "rgd", "Other", "Other, rgd"), seeds=2, trials=2,
        rows={"Other": Row(method="mean", settings={"kind": "other", "lr": 0.5}),
              "Other, rgd": Row(method="rgd:tau=3", settings={"kind": "other"})},
    )  # fmt: skip
    return plan.Question(
        recipe="r", table=dataclasses.replace(table, **changes), settings={"lr": 0.1, "kind": "own", "size": 1}
    )


def test_rows_have_their_own_method_settings_and_rate() -> None:
    asked = question()
    tuned = [(s.label, s.method, s.settings["kind"], round(s.settings["lr"], 6)) for s in plan.tuning(asked)]
    assert tuned == [
        ("mean", "mean", "own", 0.1),
        ("mean", "mean", "own", 0.15),
        ("rgd", "rgd", "own", 0.1),
        ("rgd", "rgd", "own", 0.15),
        ("rgd", "rgd:tau=9", "own", 0.1),
        ("rgd", "rgd:tau=9", "own", 0.15),
        ("Other", "mean", "other", 0.5),
        ("Other", "mean", "other", 0.75),
        ("Other, rgd", "rgd:tau=3", "other", 0.1),
        ("Other, rgd", "rgd:tau=3", "other", 0.15),
        ("Other, rgd", "rgd:tau=9", "other", 0.1),
        ("Other, rgd", "rgd:tau=9", "other", 0.15),
    ]
    specs = plan.comparison(asked, plan.as_written(asked))
    assert {(s.label, s.method, s.settings["kind"], s.settings["size"]) for s in specs} == {
        ("mean", "mean", "own", 3),
        ("rgd", "rgd", "own", 3),
        ("Other", "mean", "other", 3),
        ("Other, rgd", "rgd:tau=3", "other", 3),
        (plan.NORMALISED, "rgd:normalize=mean", "own", 3),
    }


def test_a_row_may_be_the_one_declared_beforehand() -> None:
    asked = question(primary="Other, rgd")
    specs = plan.comparison(asked, plan.as_written(asked))
    (control,) = {(s.method, s.settings["kind"], s.settings["lr"]) for s in specs if s.label == plan.NORMALISED}
    assert control == ("rgd:tau=3,normalize=mean", "other", 0.1)


@pytest.mark.parametrize("where", ["row", "column"])
def test_an_unknown_setting_of_a_row_or_column_is_refused(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tabular.table("smoke")
    if where == "row":
        wrong = dataclasses.replace(table, rows={**table.rows, "MLP": Row(method="mean", settings={"kinds": 1})})
    else:
        wrong = dataclasses.replace(table, columns=(Column(name="MLP", settings={"kinds": 1}),))
    monkeypatch.setattr(tabular, "table", lambda preset: wrong)
    with pytest.raises(ValueError, match=rf"{where} 'MLP' sets \['kinds'\]"):
        experiment.question("tabular", experiment.Options(preset="smoke"))


def test_settings_of_the_command_line_win_over_those_of_rows() -> None:
    options = experiment.Options(preset="smoke", changes=(("lr", "0.5"),))
    asked = experiment.question("tabular", options)
    assert {s.settings["lr"] for s in plan.comparison(asked, plan.as_written(asked))} == {0.5}
    assert {s.settings["algorithm"] for s in plan.comparison(asked, plan.as_written(asked))} > {"rf", "met", "met_s"}


# --- page ---


def test_rows_of_many_algorithms_stand_in_one_table(tmp_path: Path) -> None:
    """Runs whose settings differ by row are one experiment, and its figures compare each row with its own plain one."""
    table = tabular.table("smoke")
    base = dataclasses.asdict(tabular.PRESETS["smoke"])
    labels = ("mean", "rgd", "MET", "MLP", "MLP, rgd", plan.NORMALISED)
    for label in labels:
        row = table.row("rgd" if label == plan.NORMALISED else label)
        for seed in range(3):
            spec = Spec(recipe="tabular", column="digits", label=label, settings={**base, **row.settings},
                        method=row.method, seed=seed)  # fmt: skip
            value = 0.5 + 0.01 * seed + 0.1 * ("rgd" in label)
            facts = {"pretrain/first_loss": 1.0, "pretrain/loss": 0.5, "pretrain/mean_weight": 1.25,
                     "pretrain/clip_share": 0.1}  # fmt: skip
            with Run(spec, tmp_path).open() as writer:
                writer.record({"epoch": 1, "progress": 1.0, "val/accuracy_or_auroc": value, **facts,
                               "test/accuracy_or_auroc": value, "test/accuracy": value / 2})  # fmt: skip
                writer.finish({})
    (results,) = results_of(tmp_path, "tabular")
    assert set(results.columns[0].rows) == set(labels)
    column = tabular.PaperColumn(
        name="digits", data="digits", binary=True, stand_in=None, paper=(), mlp_accuracy=(1, 2, 3)
    )
    drawn = drawn_tables.figures(results, [column], tabular.PLAIN_OF)
    texts = {figure.title: figure.markup for figure in drawn}
    assert "+10.00 [+10.00, +10.00]" in texts["Against its own plain row"]
    assert "30.50 ± 0.50" in texts["Plain MLP on two classes: accuracy"]  # half of 0.60, 0.61 and 0.62
    assert "<td>51.00</td>" in texts["Means over tables"]
    assert "1.000 → 0.500; weight 1.25, 10%" in texts["Pre-training"]


# --- a model's own regulariser ---


class Shrinking(nn.Module):
    """A linear model, and a parameter that only its penalty knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.extra = nn.Parameter(torch.tensor(3.0))
        self.penalty: Any = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.penalty = 0.5 * self.extra**2
        return self.linear(x)


@pytest.mark.parametrize("text", ["mean", "rgd:tau=3"])
def test_a_penalty_comes_after_weighting(text: str) -> None:
    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    task = Task(x_train=x, y_train=y, x_val=x, y_val=y, x_test=x, y_test=y, classes=("a", "b"))
    model = Shrinking()
    training = OptimizerPlan(optimizer="sgd", lr=0.1, momentum=0.0, batch_size=8, epochs=1)
    Supervised(task, model, method(text), training, Seeds(0)).take(torch.arange(8), 0)
    assert model.extra.item() == pytest.approx(3.0 - 0.1 * 3.0)  # unweighted, whatever the weights are


def test_a_column_that_is_only_tuned_so_far_is_an_empty_column(tmp_path: Path) -> None:
    spec = Spec(recipe="tabular", column="digits", label="mean", settings=dataclasses.asdict(tabular.PRESETS["smoke"]),
                method="mean", seed=plan.TUNING_SEED, stage="tune")  # fmt: skip
    with Run(spec, tmp_path).open() as writer:
        writer.record({"epoch": 1, "progress": 1.0, "val/accuracy_or_auroc": 0.5, "test/accuracy_or_auroc": 0.5})
        writer.finish({})
    text = tables(results_of(tmp_path, "tabular"), "markdown")
    assert "| method | digits |" in text
    assert "over no seeds" in text


def test_accuracy_adjusted_to_other_shares_by_hand() -> None:
    """Two classes trained half and half, tested where three in four are of the first: the odds triple."""
    outputs = torch.tensor([[0.0, 1.0], [0.0, 1.2], [0.0, 1.0], [0.0, 2.0]])  # log 3 is 1.0986
    targets = torch.tensor([0, 0, 1, 1])
    shares = torch.tensor([0.75, 0.25])
    # Moved by log 3, the outputs say 0, 1, 0, 1: half of each class is right, and in all half.
    assert _rows.adjusted_accuracy(outputs, targets, torch.tensor([0, 1]), shares) == pytest.approx(0.5)
    # Of the first class all are right, of the second none: its share of the accuracy is what its share of rows is.
    assert (
        _rows.adjusted_accuracy(outputs - 5 * torch.tensor([0.0, 1.0]), targets, torch.tensor([0, 1]), shares) == 0.75
    )


def test_seeds_go_through_the_folds_of_one_partition_after_another() -> None:
    labels = np.repeat([0, 1], [30, 20])
    held = [_rows._fold(labels, 5, seed)[1] for seed in range(10)]
    for first in (0, 5):
        assert sorted(np.concatenate(held[first : first + 5])) == list(range(50))
    assert not np.array_equal(held[0], held[5])
    assert all((labels[rows] == 1).sum() == 4 for rows in held)


def test_the_cpu_preset_has_the_columns_of_the_plan() -> None:
    columns = {column.name: column for column in tabular.table("cpu").columns}
    assert columns["CovType"].settings["rows"] == 0
    assert columns["CovType"].settings["adjusted"] is True
    assert columns["Income"].settings["test_rows"] == 0
    # A fifth is tested on, and four fifths of the rest are trained on.
    assert columns["Obesity"].overlap == pytest.approx(0.2 / (0.8 * 0.8))
    assert columns["MNIST"].overlap == 0.0
