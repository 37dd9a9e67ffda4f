"""Suspected label errors: do the losses of a training tell which labels are wrong?

Question: a share of the training labels is wrong on purpose. The ranking of `reweigh.bench.lab.suspects`, read off the
loss trajectory of a plain training and of a re-weighted one, is compared with what was planted, and so is
cleanlab's confident learning, on probabilities from five-fold cross-validation of the same model, method and settings.

    reweigh run suspects                      # digits with an MLP, Fashion-MNIST with a small CNN
    reweigh run suspects --preset smoke       # seconds

The `cpu` preset: digits with 10 paired seeds, three kinds of noise, 40 epochs; 4 000 images of Fashion-MNIST with a
CNN of half the usual width, 5 paired seeds, two kinds of noise, 8 epochs.

Nothing is tuned and nothing is chosen with the help of the true labels. Cross-validation costs four trainings more than
the one there is anyway; without cleanlab installed its column is left out.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from reweigh.bench.draws import noisy_labels, sampled_split
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.runs import RunWriter
from reweigh.bench.lab.suspects import PrecisionRecall, precision_recall, suspects
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import EncodableSettings
from reweigh.bench.train.driver import Driver, fit
from reweigh.bench.train.pixels import Augment
from reweigh.bench.train.programs.supervised import Supervised as Program
from reweigh.bench.train.records import Record
from reweigh.bench.train.task import Task, predict
from reweigh.method import Method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import ColumnResults, Figure, Results
    from reweigh.bench.lab.stats import Difference

Floats = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Settings(EncodableSettings):
    """Settings of the recipe: what every supervised recipe has, the noise, and the folds.

    Parameters
    ----------
    noise, rate
        Kind and share of the planted noise.
    folds
        Parts of the cross-validation behind cleanlab's ranking; 0 leaves it out.
    """

    noise: Literal["uniform", "flip", "flip2"] = "uniform"
    rate: float = 0.2
    folds: int = 5


PRESETS = {
    "smoke": Settings(epochs=4, folds=2),
    "cpu": Settings(epochs=40, lr=0.05),
    "paper": Settings(
        data="cifar10", model="resnet32", lr=0.1, weight_decay=5e-4, batch_size=100, epochs=100, schedule="steps",
        augment=True,
    ),
}  # fmt: skip
KINDS: tuple[tuple[Literal["uniform", "flip"], float], ...] = (
    ("uniform", 0.1),
    ("uniform", 0.2),
    ("flip", 0.2),
)
#: The ranking's score was chosen by looking at the draws of the first few seeds, so it is reported on others.
_FRESH = 1000
FASHION = {"data": "fashion_mnist", "model": "cnn:width=8", "rows": 4000, "epochs": 8}


def table(preset: str) -> Table:
    """Rows and columns; the paper has no such experiment."""
    smoke = preset == "smoke"
    digits = tuple(_column("CIFAR-10" if preset == "paper" else "digits", kind, rate, {}) for kind, rate in KINDS)
    fashion = tuple(_column("Fashion-MNIST", kind, rate, FASHION, seeds=5) for kind, rate in KINDS if rate == 0.2)
    return Table(
        title="Suspected label errors",
        question="Which training's losses show wrong labels best?",
        columns=digits[1:2] if smoke else digits + (fashion if preset == "cpu" else ()),
        methods=("mean", "rgd"),
        metric="average_precision",
        metric_name="average precision of the ranking",
        select="progress",
        seeds=2 if smoke else 10,
        trials=1,
        notes=(
            "The ranking is read off the training losses of every epoch; nothing is selected.",
            "How our score is computed was chosen on other draws of the same data, cleanlab runs with its defaults.",
            "Uniform noise of 20 % changes 18 % of the labels, since a label may be drawn again as itself.",
        ),
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """Noisy training labels on some of the training examples; clean validation and test labels."""
    dataset, draw = supervised.load(settings.data, settings.encoder), seeds.numpy("data")
    train, val = sampled_split(dataset.y_train, settings.validation, draw, rows=settings.rows)
    noisy = noisy_labels(
        dataset.y_train[train], settings.noise, settings.rate, len(dataset.classes), seeds.numpy("noise")
    )
    return supervised.to_task(dataset, train, val, train_labels=noisy.labels, noisy=noisy.changed)


def train(settings: Settings, method: Method, seed: int, writer: RunWriter, scale: Floats | None) -> Iterator[Record]:
    """Train, rank, cross-validate, rank again: one record."""
    if method.post is not None:
        raise ValueError(
            f"rankings are read off the losses of training, before {method} corrects outputs. Leave the correction out."
        )
    seeds = Seeds(_FRESH + seed)
    problem = task(settings, seeds)
    if problem.noisy is None or not problem.noisy.any():
        raise ValueError(f"no label is wrong at a rate of {settings.rate}: there is nothing to find.")
    model = _fitted(settings, problem, method, seeds, writer, scale)
    truth, labels = problem.noisy.numpy(), problem.y_train.numpy()
    ranking = suspects(writer.run.array("loss_trajectory"), labels)
    record: Record = {
        "epoch": settings.epochs,
        "progress": 1.0,
        "wrong": int(truth.sum()),
        **_described("", precision_recall(ranking, truth)),
        **_set_described("", ranking.of_kind("suspected label error"), truth),
    }
    for part, x in (("val", problem.x_val), ("test", problem.x_test)):
        record[f"{part}/accuracy"] = problem.score(part, predict(model, x).cpu())["accuracy"]
    if settings.folds and importlib.util.find_spec("cleanlab"):
        record |= _cleanlab(labels, _out_of_fold(settings, problem, method, seeds, scale), truth)
    yield record


def _fitted(
    settings: Settings, problem: Task, method: Method, seeds: Seeds, writer: RunWriter, scale: Floats | None
) -> torch.nn.Module:
    """The trained model; its records are not kept, its arrays and checkpoints are."""
    model = _untrained(settings, problem, method, seeds)
    program = Program(problem, model, method, settings.training(), seeds, augment=_augment(settings))
    for _ in fit(program, writer, scale=scale):
        pass
    return model.eval()


def _untrained(settings: Settings, problem: Task, method: Method, seeds: Seeds) -> torch.nn.Module:
    with seeds.ambient("init"):
        model = supervised.build(settings, problem, method)
    if problem.x_train.ndim == 4:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return model


def _augment(settings: Settings) -> Augment | None:
    return Augment() if settings.augment else None


def _out_of_fold(settings: Settings, problem: Task, method: Method, seeds: Seeds, scale: Floats | None) -> Floats:
    """For every training example the probabilities of a model that was not trained on it."""
    from sklearn.model_selection import StratifiedKFold

    labels = problem.y_train.numpy()
    probabilities = np.empty((len(labels), len(problem.classes)))
    folds = StratifiedKFold(settings.folds, shuffle=True, random_state=seeds.integer("folds") % 2**32)
    for stay, held in folds.split(labels, labels):
        part = dataclasses.replace(
            problem,
            x_train=problem.x_train[stay],
            y_train=problem.y_train[stay],
            noisy=None,
            # Epochs are not chosen here, so that what is evaluated after each may be little.
            x_val=problem.x_train[held[:1]],
            y_val=problem.y_train[held[:1]],
            x_test=problem.x_train[held[:1]],
            y_test=problem.y_train[held[:1]],
        )
        model = _untrained(settings, part, method, seeds)
        # Nothing of a fold is written: it is short, and only what it says of the other examples is kept.
        program = Program(part, model, method, settings.training(), seeds, augment=_augment(settings))
        driver = Driver(program, scale)  # fewer examples are fewer steps: only the first factors are used
        while not driver.over:
            driver.run_epoch()
        probabilities[held] = predict(model.eval(), problem.x_train[held]).cpu().double().softmax(-1).numpy()
    return probabilities


def _cleanlab(labels: Floats, probabilities: Floats, truth: Floats) -> Record:
    """Confident learning: its ranking of all labels, and the set it would have removed."""
    from cleanlab.filter import find_label_issues  # pyright: ignore[reportUnknownVariableType]
    from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportUnknownVariableType]

    quality: Any = get_label_quality_scores(labels, probabilities)
    issues: Any = find_label_issues(labels, probabilities, n_jobs=1)
    order = np.argsort(quality, kind="stable")
    return {
        **_described("cleanlab/", precision_recall(order, truth)),
        **_set_described("cleanlab/", np.flatnonzero(issues), truth),
    }


def _described(prefix: str, curve: PrecisionRecall) -> Record:
    return {f"{prefix}average_precision": curve.average_precision, f"{prefix}precision": curve.at_planted}


def _set_described(prefix: str, flagged: Floats, truth: Floats) -> Record:
    """Of the labels that are called wrong, how many are; of the wrong ones, how many are called so."""
    hits = int(truth[flagged].sum())
    return {
        f"{prefix}flagged": len(flagged),
        f"{prefix}flagged_precision": hits / len(flagged) if len(flagged) else 0.0,
        f"{prefix}flagged_recall": hits / int(truth.sum()),
    }


def answer(results: Results) -> Sequence[str]:
    """Whether losses of a plain training rank better than confident learning; then which training ranks best."""
    from reweigh.bench.lab.plan import BASELINE
    from reweigh.bench.report.verdict import tally, verdict

    beside = [
        (column, difference)
        for column in results.columns
        if BASELINE in column.rows and (difference := _to_cleanlab(column, BASELINE)) is not None
    ]
    if not beside:
        return ("",)
    columns, differences = zip(*beside, strict=True)
    return (
        f"Compared with cleanlab, the losses of a plain training rank wrong labels {tally(differences)}.",
        _flags(columns),
        f"Which training's losses? {verdict(results).headline}",
    )


def _flags(columns: Sequence[ColumnResults]) -> str:
    """How the labels that are called wrong fare, ours and cleanlab's, over the settings."""
    from reweigh.bench.lab.plan import BASELINE

    def span(name: str) -> str:
        values = [
            np.mean([float(outcome.records[-1][name]) for outcome in column.rows[BASELINE].outcomes.values()])
            for column in columns
        ]
        low, high = (f"{100 * value:.0f}" for value in (min(values), max(values)))
        return f"{low} %" if low == high else f"{low} to {high} %"

    return (
        f"Labels flagged as wrong: ours are right in {span('flagged_precision')} of cases and find "
        f"{span('flagged_recall')} of the wrong ones; cleanlab's are right in {span('cleanlab/flagged_precision')} and "
        f"find {span('cleanlab/flagged_recall')}."
    )


def _to_cleanlab(column: ColumnResults, label: str) -> Difference | None:
    """Average precision of our ranking minus cleanlab's on the same runs."""
    from reweigh.bench.lab import stats

    records = [outcome.records[-1] for outcome in column.rows[label].outcomes.values()]
    if len(records) < 2 or not all("cleanlab/average_precision" in record for record in records):
        return None
    ours, theirs = ([float(record[f"{prefix}average_precision"]) for record in records] for prefix in ("", "cleanlab/"))
    return stats.paired(ours, theirs)


def figures(results: Results) -> Sequence[Figure]:
    """Our rankings next to cleanlab's, as a table."""
    from reweigh.bench.lab.results import Figure
    from reweigh.bench.report.markup import table

    heads = ("", "ranking", "average precision", "difference, 95 %", "precision at the planted number", "flags",
             "precision of flags", "recall of flags")  # fmt: skip
    rows = [row for column in results.columns for row in _rows(column)]
    if not rows:
        return ()
    missing = " cleanlab was not installed when these runs ran."
    return (
        Figure(
            title="Beside confident learning",
            markup=table(heads, rows, names=2),
            caption="Mean over seeds. The difference is that of our ranking of the same training minus cleanlab's, "
            "paired by seed; flags are the labels each calls wrong."
            + ("" if any("cleanlab" in row[1] for row in rows) else missing),
        ),
    )


def _rows(column: ColumnResults) -> Iterator[list[str]]:
    """Our ranking by each training, and cleanlab's by the same settings."""
    from reweigh.bench.lab.plan import BASELINE

    for label in (label for label in (BASELINE, "rgd") if label in column.rows):
        records = [outcome.records[-1] for outcome in column.rows[label].outcomes.values()]
        both = all("cleanlab/average_precision" in record for record in records)
        for prefix in ("", "cleanlab/") if both else ("",):
            means = {
                name: float(np.mean([float(record[f"{prefix}{name}"]) for record in records]))
                for name in ("average_precision", "precision", "flagged", "flagged_precision", "flagged_recall")
            }
            shown = [f"{mean:.0f}" if name == "flagged" else f"{mean:.3f}" for name, mean in means.items()]
            d = None if prefix else _to_cleanlab(column, label)
            shown.insert(1, "" if d is None else f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})")
            yield [column.name, f"{'cleanlab, folds trained by' if prefix else 'losses of'} {label}", *shown]


def _column(data: str, kind: str, rate: float, settings: dict[str, Any], **fewer: Any) -> Column:
    return Column(name=f"{data}, {kind} {rate:.0%}", settings={**settings, "noise": kind, "rate": rate}, **fewer)
