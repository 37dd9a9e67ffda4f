"""The recipe behind `reweigh compare`: the user's data instead of a preset, splits instead of seeds.

A column is a model, a row is a method, and a seed deals the rows of the data out anew. Trainings of small networks on
small data run many at once; everything else is a process of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.compare import shared
from reweigh.bench.compare.folder import NAME, results_at
from reweigh.bench.compare.problem import DataQuestion, Problem, deal, load, parts_of
from reweigh.bench.errors import UserError
from reweigh.bench.lab.recipe import Trainee, plain
from reweigh.bench.lab.runs import Record, Writer
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import Supervised
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.device import Precision
from reweigh.bench.train.driver import fit
from reweigh.bench.train.programs import boosting as boosters
from reweigh.bench.train.scores import Metric
from reweigh.bench.train.task import Task
from reweigh.method import Method, method

#: The question is not a preset's: the folder of a comparison stores it, and `results_at` reads it back.
__all__ = ["METHODS", "NAME", "NETWORKS", "Settings", "group", "results_at", "train", "train_group"]
#: What `--model` names, and what it is called among the models of the bench.
NETWORKS = {"mlp": "mlp", "logistic": "linear", "cnn": "cnn"}
#: The rows unless `--method` names others; a regression has no classes to balance, and boosters take fewer.
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd_auto",
    "redescending",
    "term:t=0.5",
    "focal",
    "class_balanced",
)
#: From this many numbers of training data on a training's time is arithmetic, and batching is not worth it.
_LARGE = 4_000_000
#: Steps that a network is trained for, between the fewest and the most epochs.
_STEPS, _EPOCHS = 1500, (5, 60)


@dataclass(frozen=True, kw_only=True)
class Settings(Supervised, DataQuestion):
    """Settings of a run: how to train, and the question whose data it trains on."""

    #: Whether there is so much data that a process for each training is faster than one program for many.
    large: bool = False

    def question(self) -> DataQuestion:
        """The part of the settings that says which data."""
        names = {field.name for field in dataclasses.fields(DataQuestion)}
        return DataQuestion(**{name: value for name, value in dataclasses.asdict(self).items() if name in names})


def settings(question: DataQuestion, problem: Problem, width: int, precision: Precision = "float32") -> dict[str, Any]:
    """The settings that all models share, as plain values."""
    rows = round(problem.rows * problem.train_share)
    batch = 64
    while batch < 1024 and rows / batch > 128:
        batch *= 2
    epochs = min(max(round(_STEPS * batch / max(rows, 1)), _EPOCHS[0]), _EPOCHS[1])
    shared = Settings(
        **dataclasses.asdict(question),
        data="",
        optimizer="adam",
        lr=5e-3,
        batch_size=batch,
        epochs=epochs,
        large=rows * width > _LARGE,
        precision=precision,
    )
    return plain(shared)


def column(model: str, problem: Problem, rows: Sequence[str], unmoved: Sequence[str] = ()) -> Column:
    """The column of a model: its settings, and the rows it can have; `unmoved` rows are refused, not left out."""
    own: dict[str, Any] = {"model": NETWORKS.get(model, model)}
    if model in boosters.LIBRARIES:
        own |= {"lr": boosters.RATE, "epochs": boosters.ROUNDS}
    elif model == "logistic":
        own |= {"lr": 1e-2}
    wanted = tuple(row for row in rows if row in unmoved or _fits(method(row), model, problem))
    # A booster divides gradients by curvature: a factor on the loss, all the controls are about, cancels there.
    return Column(name=model, settings=own, methods=wanted, controls=model not in boosters.LIBRARIES)


def _fits(row: Method, model: str, problem: Problem) -> bool:
    if problem.regression and row.loss is not None:
        return False
    return model not in boosters.LIBRARIES or boosters.takes(row)


def table(problem: Problem, columns: tuple[Column, ...], rows: tuple[str, ...], primary: str, metric: Metric) -> Table:
    """The table of a question."""
    return Table(
        title=problem.name,
        question="Does re-weighting help on this data?",
        columns=columns,
        methods=rows,
        metric=f"test/{metric.key}",
        metric_name=metric.name,
        select=f"val/{metric.key}",
        primary=primary,
        smallest=metric.smallest,
        overlap=problem.test_over_train,
        notes=problem.notes,
    )


def metric_named(name: str, problem: Problem) -> Metric:
    """The metric to judge by; without a name the first that the kind of problem has."""
    known = metrics.REGRESSION if problem.regression else metrics.CLASSIFICATION
    lacking = {
        "worst_group": not problem.groups,
        "cost": problem.judging.costs is None,
        "recall_at_precision": len(problem.classes) != 2,
    }
    usable = [m for m in known if not lacking.get(m.key)]
    name = name or ("cost" if problem.judging.costs is not None else "")
    for metric in usable:
        if metric.key == name or not name:
            return metric
    hints = {
        "worst_group": " Give `--group` to have groups.",
        "cost": " Give `--cost` to have costs.",
        "recall_at_precision": " It is for two classes.",
    }
    hint = hints[name] if lacking.get(name) else ""
    raise UserError(f"`--metric` must be one of {', '.join(m.key for m in usable)}, got {name!r}.{hint}")


@functools.lru_cache(maxsize=1)
def _task(question: DataQuestion, seed: int, folder: Path | None) -> Task:
    """The task of one split; a process that trains many methods on it makes it once.

    Large data are encoded by one process, and shared with the others through `folder`.
    """
    problem = load(question)
    encoded = None if folder is None else shared.EncodedRows(folder, f"{question} {seed}")
    return deal(problem, parts_of(problem, seed), encoded)[0]


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """One training."""
    folder = writer.directory.parent.parent / shared.FOLDER if settings.large else None
    if settings.model in boosters.LIBRARIES:
        task = _task(settings.question(), seed, folder)
        return fit(boosters.Boosting(settings.model, task, method, settings.training(), seed), writer)
    # Networks are trained as in every supervised recipe.
    networks = supervised.recipe(lambda settings, seeds: _task(settings.question(), seeds.seed, folder))
    return networks.train(settings, method, seed, writer, scale)


def group(settings: Settings, method: Method) -> str | None:
    """What trainings must share to run as one program; None where running alone is faster or needed."""
    return None if settings.large else supervised.group_of(settings, method)


def train_group(members: Sequence[Trainee]) -> Iterator[list[Record]]:
    """Many trainings at once; splits whose tables became matrices of other widths are separate programs."""
    settings: Settings = members[0][0]
    problem = load(settings.question())
    task_of = functools.cache(lambda seed: deal(problem, parts_of(problem, seed))[0])
    alike: dict[Any, list[int]] = {}
    for k, (_, own, seed, _) in enumerate(members):
        task = task_of(seed)
        balance = task.class_counts if own.loss is not None else ()
        alike.setdefault((tuple(task.x_train.shape), balance), []).append(k)
    programs = [(chosen, supervised.train_together([members[k] for k in chosen], task_of)) for chosen in alike.values()]
    for _ in range(settings.epochs):
        records: list[Record] = [{} for _ in members]
        for chosen, program in programs:
            for k, record in zip(chosen, next(program), strict=True):
                records[k] = record
        yield records
