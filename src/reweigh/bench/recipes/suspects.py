"""Suspected label errors: do the losses of a training tell which labels are wrong?

Question: a share of the training labels is wrong on purpose. The ranking and the flags of `reweigh.bench.lab.suspects`,
from the losses of a training and the probabilities of five-fold cross-validation of the same model, method and
settings, are compared with what was planted; and so is cleanlab's confident learning, on the same probabilities. Then
all of it once more with the true labels: whatever is flagged there is a false alarm.

    reweigh run suspects                      # digits with an MLP, Fashion-MNIST with a small CNN, CIFAR-10's features
    reweigh run suspects --preset smoke       # seconds

The `cpu` preset: digits with 10 paired seeds, three kinds of noise, 40 epochs; 4 000 images of Fashion-MNIST with a
CNN of half the usual width, 5 paired seeds, two kinds of noise, 8 epochs; frozen features of 4 000 images of CIFAR-10
with a small head, 5 paired seeds, two kinds of noise, 20 epochs.

Nothing is tuned and nothing is chosen with the help of the true labels. With `folds=0` there are no probabilities: the
losses of the one training decide alone, without another training. Without cleanlab installed its rows are left out.
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
from reweigh.bench.lab.suspects import Ranking, precision_recall, suspects
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
        Parts of the cross-validation behind the probabilities; with 0 the losses of the one training decide alone.
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
#: Scores and flags were chosen by looking at the draws of seeds from 0, 3000 and 4000 on; others are reported.
_FRESH = 1000
FASHION = {"data": "fashion_mnist", "model": "cnn:width=8", "rows": 4000, "epochs": 8}
FEATURES: dict[str, Any] = {
    "data": "cifar10", "encoder": "efficientnet_lite0:weights=imagenet", "hidden": (64,), "rows": 4000, "epochs": 20,
}  # fmt: skip


def table(preset: str) -> Table:
    """Rows and columns; the paper has no such experiment."""
    smoke = preset == "smoke"
    digits = tuple(_column("CIFAR-10" if preset == "paper" else "digits", kind, rate, {}) for kind, rate in KINDS)
    others = tuple(
        _column(data, kind, rate, settings, seeds=5)
        for data, settings in (("Fashion-MNIST", FASHION), ("CIFAR-10 features", FEATURES))
        for kind, rate in KINDS
        if rate == 0.2
    )
    return Table(
        title="Suspected label errors",
        question="Which training's losses show wrong labels best?",
        columns=digits[1:2] if smoke else digits + (others if preset == "cpu" else ()),
        methods=("mean", "rgd"),
        metric="average_precision",
        metric_name="average precision of the ranking",
        select="progress",
        seeds=2 if smoke else 10,
        trials=1,
        notes=(
            "The ranking is read off the training losses of every epoch and the probabilities of cross-validation; "
            "nothing is selected.",
            "How our score and flags are computed was chosen on other draws of the same data, cleanlab runs with its "
            "defaults.",
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
    """Train, cross-validate, rank in each way, and see what is flagged without noise: one record."""
    if method.post is not None:
        raise ValueError(
            f"rankings are read off the losses of training, before {method} corrects outputs. Leave the correction out."
        )
    seeds = Seeds(_FRESH + seed)
    problem = task(settings, seeds)
    if problem.noisy is None or not problem.noisy.any():
        raise ValueError(f"no label is wrong at a rate of {settings.rate}: there is nothing to find.")
    model = _fitted(settings, problem, method, seeds, writer, scale)
    truth, losses = problem.noisy.numpy(), writer.run.array("loss_trajectory")
    record: Record = {"epoch": settings.epochs, "progress": 1.0, "wrong": int(truth.sum())}
    if settings.folds:
        probabilities = _out_of_fold(settings, problem, method, seeds, scale)
        record |= _all_described(problem, losses, probabilities, truth)
        clean = dataclasses.replace(task(dataclasses.replace(settings, rate=0.0), seeds), noisy=None)
        record |= _false_alarms(settings, clean, method, seeds, scale)
    else:
        record |= _described("", suspects(losses, problem.y_train.numpy()), truth)
    for part, x in (("val", problem.x_val), ("test", problem.x_test)):
        record[f"{part}/accuracy"] = problem.score(part, predict(model, x).cpu())["accuracy"]
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


def _all_described(problem: Task, losses: Floats, probabilities: Floats, truth: Floats) -> Record:
    """Our ranking and flags, those of the losses alone, and cleanlab's."""
    labels = problem.y_train.numpy()
    record = _described("", suspects(losses, labels, probabilities=probabilities), truth)
    record |= _described("losses/", suspects(losses, labels), truth)
    if importlib.util.find_spec("cleanlab"):
        order, flagged = _cleanlab(labels, probabilities)
        record["cleanlab/average_precision"] = precision_recall(order, truth).average_precision
        record |= _flags_described("cleanlab/", flagged, truth)
    return record


def _false_alarms(
    settings: Settings, problem: Task, method: Method, seeds: Seeds, scale: Floats | None
) -> dict[str, float]:
    """The shares of true labels that are flagged."""
    program = Program(
        problem, _untrained(settings, problem, method, seeds), method, settings.training(), seeds,
        augment=_augment(settings),
    )  # fmt: skip
    driver = Driver(program, scale)
    while not driver.over:
        driver.run_epoch()
    labels, losses = problem.y_train.numpy(), torch.stack(driver.trajectory).numpy()
    probabilities = _out_of_fold(settings, problem, method, seeds, scale)
    flagged = {
        "": suspects(losses, labels, probabilities=probabilities).of_kind("suspected label error"),
        "losses/": suspects(losses, labels).of_kind("suspected label error"),
    }
    if importlib.util.find_spec("cleanlab"):
        flagged["cleanlab/"] = _cleanlab(labels, probabilities)[1]
    return {f"{prefix}false_alarms": len(which) / len(labels) for prefix, which in flagged.items()}


def _cleanlab(labels: Floats, probabilities: Floats) -> tuple[Floats, Floats]:
    """Confident learning: its ranking of all labels, and the set it would have removed."""
    from cleanlab.filter import find_label_issues  # pyright: ignore[reportUnknownVariableType]
    from cleanlab.rank import get_label_quality_scores  # pyright: ignore[reportUnknownVariableType]

    quality: Any = get_label_quality_scores(labels, probabilities)
    issues: Any = find_label_issues(labels, probabilities, n_jobs=1)
    return np.argsort(quality, kind="stable"), np.flatnonzero(issues)


def _described(prefix: str, ranking: Ranking, truth: Floats) -> Record:
    return {
        f"{prefix}average_precision": precision_recall(ranking, truth).average_precision,
        **_flags_described(prefix, ranking.of_kind("suspected label error"), truth),
    }


def _flags_described(prefix: str, flagged: Floats, truth: Floats) -> Record:
    """Of the labels that are called wrong, how many are; of the wrong ones, how many are called so."""
    hits = int(truth[flagged].sum())
    return {
        f"{prefix}flagged": len(flagged),
        f"{prefix}flagged_precision": hits / len(flagged) if len(flagged) else 0.0,
        f"{prefix}flagged_recall": hits / int(truth.sum()),
    }


def answer(results: Results) -> Sequence[str]:
    """How our flags compare with confident learning's; then the rankings, and which training's losses serve best."""
    from reweigh.bench.lab.plan import BASELINE
    from reweigh.bench.report.verdict import tally, verdict

    beside = [
        (column, difference)
        for column in results.columns
        if BASELINE in column.rows and (difference := _to_cleanlab(column, BASELINE, "average_precision")) is not None
    ]
    if not beside:
        return ("",)
    columns, differences = zip(*beside, strict=True)
    return (
        _flags(columns),
        f"Compared with cleanlab, our ranking finds wrong labels {tally(differences)}.",
        f"Which training's losses? {verdict(results).headline}",
    )


def _flags(columns: Sequence[ColumnResults]) -> str:
    """How the labels that are called wrong fare, ours and cleanlab's, over the settings."""

    def span(name: str) -> str:
        values = [_mean(column, name) for column in columns]
        low, high = (f"{100 * value:.{1 if 'alarms' in name else 0}f}" for value in (min(values), max(values)))
        return f"{low} %" if low == high else f"{low} to {high} %"

    both = [
        all(
            _mean(column, name) >= _mean(column, f"cleanlab/{name}") for name in ("flagged_recall", "flagged_precision")
        )
        for column in columns
    ]
    return (
        f"Labels flagged as wrong: ours find {span('flagged_recall')} of the wrong ones and are right in "
        f"{span('flagged_precision')} of cases; cleanlab's find {span('cleanlab/flagged_recall')} and are right in "
        f"{span('cleanlab/flagged_precision')}. Ours find at least as many at no worse precision in {sum(both)} of "
        f"{len(columns)} settings. Of true labels ours flag {span('false_alarms')}, cleanlab's "
        f"{span('cleanlab/false_alarms')}."
    )


def _mean(column: ColumnResults, name: str) -> float:
    """A number of the plain training, averaged over seeds."""
    from reweigh.bench.lab.plan import BASELINE

    return float(np.mean([float(outcome.records[-1][name]) for outcome in column.rows[BASELINE].outcomes.values()]))


def _to_cleanlab(column: ColumnResults, label: str, name: str) -> Difference | None:
    """A number of ours minus cleanlab's on the same runs."""
    from reweigh.bench.lab import stats

    records = [outcome.records[-1] for outcome in column.rows[label].outcomes.values()]
    if len(records) < 2 or not all(f"cleanlab/{name}" in record for record in records):
        return None
    ours, theirs = ([float(record[f"{prefix}{name}"]) for record in records] for prefix in ("", "cleanlab/"))
    return stats.paired(ours, theirs)


#: Numbers of a ranking and its flags, with whether a difference to cleanlab's is shown beside.
_SHOWN = {
    "average_precision": ("average precision", True),
    "flagged": ("flags", False),
    "flagged_precision": ("precision of flags", True),
    "flagged_recall": ("recall of flags", True),
    "false_alarms": ("flags among true labels", False),
}


def figures(results: Results) -> Sequence[Figure]:
    """Our rankings and flags next to cleanlab's, as a table."""
    from reweigh.bench.lab.results import Figure
    from reweigh.bench.report.markup import table

    heads = ["", "ranking"]
    for head, compared in _SHOWN.values():
        heads += [head, "difference, 95 %"] if compared else [head]
    rows = [row for column in results.columns for row in _rows(column)]
    if not rows:
        return ()
    missing = " cleanlab was not installed when these runs ran."
    return (
        Figure(
            title="Beside confident learning",
            markup=table(heads, rows, names=2),
            caption="Mean over seeds. A difference is ours minus cleanlab's with the same models, paired by seed; "
            "flags are the labels each calls wrong, those among true labels from a training without noise."
            + ("" if any("cleanlab" in row[1] for row in rows) else missing),
        ),
    )


def _rows(column: ColumnResults) -> Iterator[list[str]]:
    """Our ranking by each training, that of its losses alone, and cleanlab's by the same settings."""
    from reweigh.bench.lab.plan import BASELINE

    names = {"": "ours", "losses/": "losses alone", "cleanlab/": "cleanlab"}
    for label in (label for label in (BASELINE, "rgd") if label in column.rows):
        records = [outcome.records[-1] for outcome in column.rows[label].outcomes.values()]
        for prefix, name in names.items():
            if not all(f"{prefix}false_alarms" in record for record in records):
                continue
            shown: list[str] = []
            for key, (_, compared) in _SHOWN.items():
                mean = float(np.mean([float(record[f"{prefix}{key}"]) for record in records]))
                shown.append(f"{mean:.0f}" if key == "flagged" else f"{mean:.3f}")
                if compared:
                    d = None if prefix else _to_cleanlab(column, label, key)
                    shown.append("" if d is None else f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})")
            yield [column.name, f"{name}, {label}", *shown]


def _column(data: str, kind: str, rate: float, settings: dict[str, Any], **fewer: Any) -> Column:
    return Column(name=f"{data}, {kind} {rate:.0%}", settings={**settings, "noise": kind, "rate": rate}, **fewer)
