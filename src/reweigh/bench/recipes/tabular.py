"""Tables and self-supervision: does re-weighting rows help a masked autoencoder, or what is learnt on top of it?

Question: MET-S hides most columns of a row, learns to reconstruct them, and hands its features to a small network. The
paper replaces MET's adversarial step by re-weighting and reports +1.27 points of accuracy and +1.51 of AUROC.
It does not say which loss is re-weighted, so there are three arms: reconstruction, the head's loss, or both (`rgd`).

    reweigh run tabular --data-root DIR       # eight tables; Obesity is read from DIR/obesity/abundance.zip
    reweigh run tabular --preset smoke        # seconds, digits as a table
    reweigh run tabular --preset paper --data-root DIR        # the paper's sizes: weeks of one GPU
    reweigh run tabular --method MLP --method "MLP, rgd"

Rows without a name of their own are MET-S: `mean` is MET-S itself, `rgd` re-weights both of its losses. Departures from
the paper: validation rows choose the head's epoch and the learning rate (its sources choose on test rows); one rate
serves pre-training and head, as in MET; splits where none are official are ours; Bank Marketing is in Criteo's place,
with the `paper` preset Criteo itself, read from DIR/criteo/train.txt. MET-S, MET and MET-R see one column per attribute
as in MET's tables, all others one per level of a category.

The `cpu` preset is small: 1000 rows per seed (800 to train on), 1500 to test on, images as 14 x 14 grey pixels, tokens
16 wide, two blocks, 400 steps of pre-training, 260 of the head, three rates, ten seeds. Income is tested on all its
official test rows; Obesity, which has 253 people, by five folds, drawn again for every five seeds. CovType learns from
all 15,120 official training and validation rows, pre-trained for 40 epochs; these have as many rows of each class, the
test rows far from it, so its accuracy is that of outputs corrected to the test rows' class shares, in choosing as in
reporting. Pre-trained networks are kept next to the runs, for all rows that need the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench import models
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.recipe import LATER
from reweigh.bench.lab.runs import RunWriter
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes import _rows
from reweigh.bench.recipes.algorithms import tabular as algorithms
from reweigh.bench.recipes.algorithms.tabular.self_supervised import SelfSupervised
from reweigh.bench.recipes.algorithms.tabular.store import pretrained
from reweigh.bench.recipes.algorithms.tabular.tabnet import HiddenCells, TabNetClassifier
from reweigh.bench.recipes.kinds.supervised import SupervisedSettings
from reweigh.bench.train import device as devices
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs.rows import CHUNK, encode, steps_of
from reweigh.bench.train.programs.supervised import Supervised as Program
from reweigh.bench.train.records import Record
from reweigh.bench.train.task import Task
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

Floats = np.ndarray[Any, Any]
AlgorithmName = Literal["met_s", "met", "met_r", "rf_g", "mlp", "rf", "gbdt", "vime", "dacl", "subtab", "tabnet"]
ALGORITHMS: tuple[AlgorithmName, ...] = (
    "met_s", "met", "met_r", "rf_g", "mlp", "rf", "gbdt", "vime", "dacl", "subtab", "tabnet",
)  # fmt: skip
ARMS = ("both", "pretrain", "head")


@dataclass(frozen=True, kw_only=True)
class Settings(SupervisedSettings):
    """Settings of the recipe; what every supervised recipe has says how the head is trained.

    Parameters
    ----------
    algorithm
        Where features come from, or the classifier where there are none.
    arm
        Which losses a method re-weights where there is a pre-training: `"pretrain"`, `"head"` or `"both"`.
    lr
        The rate of pre-training and head alike; for `gbdt` its learning rate, and for `rf`, which has none, the columns
        a split chooses from, in units of the square root of their number.
    test_rows, side, levels, folds, adjusted
        See `_rows.RowSelection`.
    columns
        What a column of a table is: `"attributes"` has one per attribute, as MET does, `"levels"` one per level of a
        category, and `"own"` takes the first for MET-S, MET and MET-R and the second for all others.
    pretrain_epochs, pretrain_batch
        Sizes of the pre-training.
    embedding, blocks, feed_forward, dropout, warmup_epochs
        Sizes of MET, and its epochs before adversarial steps.
    width
        Of the encoders of VIME, DACL+ and SubTab; 0 takes each one's own. Random features of RF-G are four times that.
    trees
        Of forest and boosting.
    """

    model: str = "mlp"
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    lr: float = 1e-3
    algorithm: AlgorithmName = "met_s"
    arm: Literal["both", "pretrain", "head"] = "both"
    test_rows: int = 0
    side: int = 0
    levels: int = 32
    columns: Literal["own", "attributes", "levels"] = "own"
    pretrain_epochs: int = 50
    pretrain_batch: int = 126
    embedding: int = 64
    blocks: int = 6
    feed_forward: int = 64
    dropout: float = 0.1
    warmup_epochs: int = 10
    width: int = 0
    trees: int = 500
    folds: int = field(default=0, metadata=LATER)
    adjusted: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        validate.one_of("algorithm", self.algorithm, ALGORITHMS)
        validate.one_of("arm", self.arm, ARMS)
        validate.one_of("columns", self.columns, ("own", "attributes", "levels"))

    @property
    def attributes(self) -> bool:
        """Whether a table has one column per attribute."""
        masked = self.algorithm in ("met_s", "met", "met_r")
        return masked if self.columns == "own" else self.columns == "attributes"


_SMALL = Settings(
    lr=2e-3, embedding=15, blocks=2, feed_forward=32, dropout=0.0, warmup_epochs=2, pretrain_epochs=8,
    pretrain_batch=16, width=64, trees=200, hidden=(64,), epochs=20, batch_size=64, rows=1000, test_rows=1500,
    side=14, levels=8,
)  # fmt: skip
PRESETS = {
    "smoke": dataclasses.replace(
        _SMALL, data="digits", rows=240, test_rows=200, side=0, embedding=7, blocks=1, pretrain_epochs=2, epochs=3,
        trees=20, width=16, warmup_epochs=1,
    ),
    "cpu": _SMALL,
    "paper": Settings(lr=1e-5, hidden=(5040, 256), batch_size=126, epochs=100),
}  # fmt: skip

#: Rows, by label: the algorithm, the method, and the arm where it is not both.
_ROWS: dict[str, tuple[AlgorithmName, str, str]] = {
    "rgd, pre-training only": ("met_s", "rgd", "pretrain"),
    "rgd, head only": ("met_s", "rgd", "head"),
    "revkl, pre-training only": ("met_s", "rgd:divergence=revkl", "pretrain"),
    "revkl, head only": ("met_s", "rgd:divergence=revkl", "head"),
    "MET": ("met", "mean", "both"),
    "MET, rgd": ("met", "rgd", "both"),
    "MET-R": ("met_r", "mean", "both"),
    "MLP": ("mlp", "mean", "both"),
    "MLP, rgd": ("mlp", "rgd", "both"),
    "MLP, revkl": ("mlp", "rgd:divergence=revkl", "both"),
    "MLP, chi2": ("mlp", "rgd:divergence=chi2,scaled=true", "both"),
    "MLP, rgd_auto": ("mlp", "rgd_auto", "both"),
    "RF": ("rf", "mean", "both"),
    "GBDT": ("gbdt", "mean", "both"),
    "RF-G": ("rf_g", "mean", "both"),
    "VIME": ("vime", "mean", "both"),
    "DACL+": ("dacl", "mean", "both"),
    "SubTab": ("subtab", "mean", "both"),
    "TabNet": ("tabnet", "mean", "both"),
}
METHODS = ("mean", "rgd", "rgd:divergence=revkl", *_ROWS)
#: Rows whose plain twin is not MET-S.
PLAIN_OF = {"MET, rgd": "MET", "MLP, rgd": "MLP", "MLP, revkl": "MLP", "MLP, chi2": "MLP", "MLP, rgd_auto": "MLP"}
#: How rows are trained that are not MET; RF's rate is not a learning rate: see `Settings.lr`.
_PAPER: dict[str, dict[str, Any]] = {
    "mlp": {"lr": 1e-3, "hidden": (256, 256)},
    "rf": {"lr": 1.0},
    "gbdt": {"lr": 0.1},
    "rf_g": {"lr": 1e-3, "hidden": (256,)},
    "vime": {"lr": 1e-3, "hidden": (100,), "batch_size": 100, "pretrain_epochs": 10, "pretrain_batch": 128},
    "dacl": {"lr": 1e-3, "hidden": (256,), "pretrain_batch": 128},
    "subtab": {"lr": 1e-3, "hidden": (256,), "pretrain_epochs": 15, "pretrain_batch": 32},
    "tabnet": {"lr": 2e-2, "batch_size": 1024, "pretrain_batch": 1024},
}
#: The others learn from larger batches than MET, and a step of theirs costs far less.
_LIGHT: dict[str, Any] = {"pretrain_batch": 64, "pretrain_epochs": 24}
_CPU: dict[str, dict[str, Any]] = {
    "rf": {"lr": 1.0}, "gbdt": {"lr": 0.1}, "vime": _LIGHT, "dacl": _LIGHT, "subtab": _LIGHT,
    "tabnet": {"lr": 2e-2, "pretrain_batch": 64, "pretrain_epochs": 10},
}  # fmt: skip
_OTHERS = {"smoke": {"rf": {"lr": 1.0}, "tabnet": {"lr": 2e-2}}, "cpu": _CPU, "paper": _PAPER}
#: Parts of Obesity, of which each seed tests on one, trains on 0.8 of the others and chooses by the rest.
_FOLDS = 5
#: Columns that differ from the preset. Obesity has few rows: as many steps as the others need more epochs.
_OWN: dict[str, dict[str, Any]] = {
    "obesity": {"pretrain_epochs": 20, "batch_size": 16, "folds": _FOLDS, "test_rows": 0},
    "adult": {"test_rows": 0},
    "covtype": {
        "rows": 0, "test_rows": 10_000, "adjusted": True, "pretrain_epochs": 40, "pretrain_batch": 64, "batch_size": 128
    },
}  # fmt: skip
#: The rows of CovType, which has fifteen times the rows of the others.
COVTYPE_METHODS = (
    "mean", "rgd", "rgd:divergence=revkl", "rgd, pre-training only", "rgd, head only", "MLP", "MLP, rgd", "MLP, revkl",
    "MLP, chi2", "MLP, rgd_auto", "RF", "GBDT",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column: its data, what the paper's figures are for, and those figures in the order of `PAPER_ROWS`."""

    name: str
    data: str
    binary: bool
    stand_in: str | None
    paper: tuple[float | None, ...]
    #: What still differs with the paper's sizes.
    split: str | None = None
    #: Of the plain MLP, re-weighted and reverse KL: accuracy where AUROC is above.
    mlp_accuracy: tuple[float, ...] = ()


PAPER_ROWS = ("MLP", "RF", "GBDT", "RF-G", "MET-R", "VIME", "DACL+", "SubTab", "TabNet", "MET", "mean",
              "rgd:divergence=revkl", "rgd", "MLP, revkl", "MLP, rgd")  # fmt: skip
_ALL = "all rows and the sizes of its sources"
_CRITEO: tuple[float | None, ...] = (
    79.82, 77.57, 78.77, 80.32, 79.17, 74.28, 75.32, 76.57, 80.91, None, 86.17, 86.92, 86.98, 79.85, 80.1,
)  # fmt: skip
DATA = (
    PaperColumn(
        name="Fashion-MNIST", data="fashion_mnist", binary=False, stand_in=f"28 x 28 pixels, {_ALL}",
        paper=(87.62, 88.43, 88.71, 89.84, 88.84, 80.36, 81.40, 87.59, 88.18, 91.68, 90.94, 91.12, 91.54, 88.52, 89.03),
    ),
    PaperColumn(
        name="CIFAR-10", data="cifar10", binary=False, stand_in=f"32 x 32 x 3 pixels, {_ALL}",
        paper=(16.50, 42.73, 45.7, 29.32, 28.94, 34.00, 39.70, 39.34, 33.75, 47.82, 48.00, 49.17, 49.54, 20.31, 21.32),
    ),
    PaperColumn(
        name="MNIST", data="mnist", binary=False, stand_in=f"28 x 28 pixels, {_ALL}",
        paper=(96.95, 97.62, 100, 97.65, 97.44, 95.77, 91.40, 98.31, 96.63, 99.19, 99.01, 99.28, 99.69, 97.86, 97.57),
    ),
    PaperColumn(
        name="CovType", data="covtype", binary=False, stand_in=_ALL,
        paper=(65.47, 71.37, 72.96, 71.57, 69.68, 62.80, 64.23, 42.36, 65.13, 76.71, 74.11, 79.41, 79.72, 68.81, 69.73),
    ),
    PaperColumn(
        name="Obesity", data="obesity", binary=True, stand_in="another split of what is very probably this table",
        split="another split of what is very probably this table",
        paper=(52.3, 64.36, 64.4, 54.45, 53.2, 57.27, 61.18, 64.92, 69.40, None, 71.84, 76.23, 76.87, 54.31, 55.96),
        mlp_accuracy=(58.1, 58.83, 59.12),
    ),
    PaperColumn(
        name="Income", data="adult", binary=True, stand_in=_ALL,
        paper=(89.39, 91.53, 92.5, 90.09, 83.54, 87.37, 89.01, 88.95, 77.30, None, 93.85, 93.90, 93.96, 91.1, 90.8),
        mlp_accuracy=(84.36, 85.5, 84.5),
    ),
    PaperColumn(
        name="Bank Marketing", data="bank", binary=True, stand_in="Criteo", paper=_CRITEO,
        mlp_accuracy=(74.28, 75.87, 75.06),
    ),
    PaperColumn(
        name="Thyroid", data="hypothyroid", binary=True, stand_in="a table on the thyroid that it does not name",
        split="a table on the thyroid that it does not name",
        paper=(62.3, 99.62, 99.34, 52.65, 82.03, 94.87, 86.63, 88.93, 96.98, None, 99.81, 99.82, 99.92, 62.25, 64),
        mlp_accuracy=(50, 56.04, 57.3),
    ),
)  # fmt: skip
#: In the place of Bank Marketing with the `paper` preset: nobody may pass it on, so it is not part of the others.
CRITEO = PaperColumn(
    name="Criteo", data="criteo", binary=True, stand_in=None, split="rows and a split that it does not name",
    paper=_CRITEO, mlp_accuracy=(74.28, 75.87, 75.06),
)  # fmt: skip
PAPER_DATA = tuple(CRITEO if data_set.data == "bank" else data_set for data_set in DATA)


def table(preset: str) -> Table:
    """Rows, columns and the paper's figures."""
    smoke = preset == "smoke"
    methods = ("mean", "rgd", "rgd, head only", "MET", "MLP, rgd", "RF", "TabNet") if smoke else METHODS
    return Table(
        title="Tables and self-supervision",
        question="Does re-weighting rows help a masked autoencoder, or what is learnt on top of it?",
        columns=(Column(name="digits", settings={}),) if smoke else _columns(preset),
        methods=methods,
        metric="test/accuracy_or_auroc",
        metric_name="accuracy (AUROC for two classes)",
        select="val/accuracy_or_auroc",
        epoch="best",  # a constant rate, as the authors have it
        seeds={"smoke": 2, "cpu": 10, "paper": 5}[preset],
        trials={"smoke": 2, "cpu": 3, "paper": 5}[preset],
        rows={label: _row(label, preset) for label in _ROWS},
        endpoint=Endpoint(columns=() if smoke else ("CovType",)),
        notes=(
            "Rows without a name of their own are MET-S: mean is MET-S itself (the paper's Default), rgd re-weights "
            "both its reconstruction and its head.",
            "Obesity, Income, Bank Marketing, Criteo and Thyroid have two classes and show AUROC, the others accuracy.",
            "MET-S, MET and MET-R see one column per attribute, all others one per level of a category.",
            "Test rows are the same for every seed; seeds differ in the rows drawn for training and validation, in "
            "initial parameters and in the order of batches. On Obesity, with the cpu preset, seeds are the folds of "
            "cross-validations, and intervals are corrected for training rows that they share.",
            "The scale control multiplies both losses of MET-S, step by step, by the mean weights that rgd recorded "
            "in both. Everything is trained by Adam, which a constant factor does not affect.",
            "The paper's figures of MET-S for two classes are those that MET's authors print for MET.",
        ),
    )


def _columns(preset: str) -> tuple[Column, ...]:
    return tuple(_column(data_set, preset) for data_set in (PAPER_DATA if preset == "paper" else DATA))


def _column(data_set: PaperColumn, preset: str) -> Column:
    paper = {label: float(value) for label, value in zip(PAPER_ROWS, data_set.paper, strict=True) if value is not None}
    stand_in = data_set.split if preset == "paper" else data_set.stand_in
    own = _OWN.get(data_set.data, {}) if preset == "cpu" else {}
    return Column(
        name=data_set.name,
        settings={"data": data_set.data, **own},
        paper=paper,
        stand_in=stand_in,
        methods=COVTYPE_METHODS if own.get("adjusted") else None,
        overlap=1 / (_FOLDS - 1) / 0.8 if "folds" in own else 0.0,
        trouble="none",
        model="MET-S on a table",
    )


def _row(label: str, preset: str) -> Row:
    algorithm, method, arm = _ROWS[label]
    own = _OTHERS[preset].get(algorithm, {})
    return Row(method=method, settings={"algorithm": algorithm, "arm": arm, **own})


def train(settings: Settings, method: Method, seed: int, writer: RunWriter, scale: Floats | None) -> Iterator[Record]:
    """Features from unlabelled rows, a head from labelled ones; or a classifier that needs no features."""
    seeds = Seeds(seed)
    draw = _rows.RowSelection(
        data=settings.data, rows=settings.rows, test_rows=settings.test_rows, validation=settings.validation,
        side=settings.side, levels=settings.levels, attributes=settings.attributes, folds=settings.folds,
        adjusted=settings.adjusted,
    )  # fmt: skip
    task = _rows.deal(draw, seeds)
    if settings.algorithm in ("rf", "gbdt"):
        return _classify(settings, method, task, seeds, writer)
    return _learn(settings, method, task, seeds, writer, scale)


def _classify(settings: Settings, method: Method, task: Task, seeds: Seeds, writer: RunWriter) -> Iterator[Record]:
    """Trees on the columns as they are: one record."""
    from threadpoolctl import threadpool_limits

    if str(method) != "mean":
        raise ValueError(f"{settings.algorithm} is trained plainly here, got the method {method}. Leave it at mean.")
    writer.resume()
    state = seeds.integer("trees") % 2**32
    with threadpool_limits(1):  # as everything else; boosting would take all cores
        if settings.algorithm == "rf":
            model: Any = algorithms.RandomForest(trees=settings.trees, columns=settings.lr, random_state=state)
        else:
            model = algorithms.GBDT(trees=settings.trees, lr=settings.lr, random_state=state)
        model.fit(task.x_train.numpy(), task.y_train.numpy())
        record: Record = {"epoch": 1, "step": 1, "progress": 1.0, **task.facts()}
        for part, x in (("val", task.x_val), ("test", task.x_test)):
            outputs = _every_class(model, x, len(task.classes))
            record |= {f"{part}/{name}": value for name, value in task.score(part, outputs).items()}
    yield record


def _every_class(model: Any, x: Tensor, classes: int) -> Tensor:
    """Log-probabilities with a column for every class, also for those that training rows did not have."""
    probabilities = np.full((len(x), classes), 1e-6)
    probabilities[:, model.classes_] = np.maximum(model.predict_proba(x.numpy()), 1e-6)
    return torch.from_numpy(np.log(probabilities))


def _learn(
    settings: Settings, method: Method, task: Task, seeds: Seeds, writer: RunWriter, scale: Floats | None
) -> Iterator[Record]:
    """Pre-train, encode every row once, and train the head on the frozen features."""
    early, late = arms(settings, method)
    transformer = build(settings, early, seeds)
    facts: Record = {"columns": task.x_train.shape[1]}
    network: nn.Module | None = None
    mean_weights: list[float] = []
    if isinstance(transformer, SelfSupervised):
        steps = transformer.epochs * steps_of(len(task.x_train), transformer.batch_size)
        folder = writer.run.root / writer.run.spec.recipe / "pretrained"
        made_of = {
            name: getattr(settings, name) for name in ("data", "rows", "validation", "side", "levels", "attributes")
        }
        if settings.folds:
            made_of["folds"] = settings.folds
        network, losses, mean_weights, clipped = pretrained(
            folder, transformer, task.x_train.numpy(), {**made_of, "seed": seeds.seed},
            None if scale is None or not steps else scale[:steps],
        )  # fmt: skip
        if losses:
            facts |= {"pretrain/first_loss": losses[0], "pretrain/loss": losses[-1]}
            facts |= {
                "pretrain/mean_weight": float(np.mean(mean_weights)),
                "pretrain/clip_share": float(np.mean(clipped)),
            }
    if isinstance(network, HiddenCells):  # TabNet continues to learn with labels from where pre-training left it
        task_of_head = task
        with seeds.ambient("init"):
            model: nn.Module = TabNetClassifier(network.encoder, len(task.classes), sparsity=1e-3)
    else:
        task_of_head = _encoded(task, transformer, network)
        with seeds.ambient("init"):
            shape = tuple(task_of_head.x_train.shape[1:])
            model = models.build("mlp", shape, len(task.classes), hidden=settings.hidden)
        facts["features"] = shape[0]
    rest = None if scale is None else scale[len(mean_weights) :]
    head = Program(task_of_head, model, late, settings.training(), seeds)
    for record in fit(head, writer, scale=rest):
        yield {**record, **facts} if record["epoch"] == 1 else record
    of_head = writer.run.array("mean_weight")
    writer.array("mean_weight", np.concatenate([np.asarray(mean_weights, np.float32), of_head]))


def arms(settings: Settings, method: Method) -> tuple[Any, Method]:
    """The objective of the pre-training and the method of the head."""
    plain = Method()
    if settings.algorithm in ("mlp", "rf_g", "met_r"):  # one loss only
        return plain.objective, method
    early = plain.objective if settings.arm == "head" else method.objective
    return early, plain if settings.arm == "pretrain" else method


def build(settings: Settings, objective: Any, seeds: Seeds) -> Any:
    """The transformer of the settings."""
    state = seeds.integer("pretraining") % 2**32
    training: dict[str, Any] = {
        "objective": objective, "lr": settings.lr, "epochs": settings.pretrain_epochs,
        "batch_size": settings.pretrain_batch, "random_state": state,
    }  # fmt: skip
    sizes: dict[str, Any] = {
        "embedding": settings.embedding, "blocks": settings.blocks, "feed_forward": settings.feed_forward
    }  # fmt: skip
    wide: dict[str, Any] = {"hidden": settings.width} if settings.width else {}
    if settings.algorithm == "met_s":
        return algorithms.METS(**sizes, dropout=settings.dropout, **training)
    if settings.algorithm == "met":
        return algorithms.MET(**sizes, dropout=settings.dropout, warmup=settings.warmup_epochs, **training)
    if settings.algorithm == "met_r":
        return algorithms.METR(**sizes, random_state=state)
    if settings.algorithm == "rf_g":
        return algorithms.RandomFourier(features=4 * (settings.width or 256), random_state=state)
    if settings.algorithm == "mlp":
        return algorithms.RawColumns()
    kinds = {"vime": algorithms.VIME, "dacl": algorithms.DACL, "subtab": algorithms.SubTab}
    if settings.algorithm in kinds:
        return kinds[settings.algorithm](**wide, **training)
    return algorithms.TabNet(**training)


def _encoded(task: Task, transformer: Any, network: Any) -> Task:
    """The task with features in place of columns, each row encoded once."""
    if network is None:
        transformer.fit(task.x_train.numpy())

    def features(x: Tensor) -> Tensor:
        if network is not None:
            return encode(network, x, devices.current())
        return torch.cat([torch.from_numpy(transformer.transform(part.numpy())) for part in x.split(CHUNK)])

    encoded: Mapping[str, Tensor] = {name: features(getattr(task, name)) for name in ("x_train", "x_val", "x_test")}
    return dataclasses.replace(task, **encoded)


def figures(results: Results) -> Sequence[Figure]:
    """Means over tables next to the paper's, every re-weighted row against its own plain one, accuracy of the MLP."""
    from reweigh.bench.recipes._figures import tabular

    datasets = PAPER_DATA if any(column.name == CRITEO.name for column in results.columns) else DATA
    return tabular.figures(results, datasets, PLAIN_OF)
