"""The recipe behind `reweigh compare`: a person's data instead of a preset, splits instead of seeds.

A cell is a model, a row is a method, and a seed deals the rows of the data out anew. Trainings of small networks on
small data run many at once; everything else is a process of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.compare import boosters, metrics
from reweigh.bench.compare.metrics import Metric
from reweigh.bench.compare.problem import Problem, Question, deal, load, parts_of
from reweigh.bench.recipes import _supervised as supervised
from reweigh.bench.recipes._supervised import Supervised, Trainee
from reweigh.bench.recipes._table import Cell, Table
from reweigh.bench.results import Results
from reweigh.bench.runs import Record, Run, Writer
from reweigh.bench.seeds import Seeds
from reweigh.bench.sweep import Member, fit_many
from reweigh.bench.task import Task
from reweigh.method import Method, method

#: The name under which runs are kept.
NAME = "compare"
#: What a person may ask for, and what it is called among the models of the bench.
NETWORKS = {"mlp": "mlp", "logistic": "linear", "cnn": "cnn"}
#: The rows unless others are asked for; a regression has no classes to balance, and boosters take fewer.
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
#: From this many numbers of training data on a training's time is arithmetic, and company does not pay.
_LARGE = 4_000_000
#: Steps that a network is trained for, between the fewest and the most epochs.
_STEPS, _EPOCHS = 1500, (5, 60)


@dataclass(frozen=True, kw_only=True)
class Settings(Supervised, Question):
    """What a run needs to know: how to train, and the question whose data it trains on."""

    #: Whether there is so much data that a process for each training is faster than one program for many.
    large: bool = False

    def question(self) -> Question:
        """The part of the settings that says which data."""
        names = {field.name for field in dataclasses.fields(Question)}
        return Question(**{name: value for name, value in dataclasses.asdict(self).items() if name in names})


def settings(question: Question, problem: Problem, width: int) -> dict[str, Any]:
    """The settings that all models share, as plain values."""
    rows = round(problem.rows * (1 - problem.test_share) * 0.75)
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
    )
    return dataclasses.asdict(shared)


def cell(model: str, problem: Problem, rows: Sequence[str], unmoved: Sequence[str] = ()) -> Cell:
    """The column of a model: its settings, and the rows it can have; `unmoved` rows are refused, not left out."""
    own: dict[str, Any] = {"model": NETWORKS.get(model, model)}
    if model in boosters.LIBRARIES:
        own |= {"lr": boosters.RATE, "epochs": boosters.ROUNDS}
    elif model == "logistic":
        own |= {"lr": 1e-2}
    wanted = tuple(row for row in rows if row in unmoved or _fits(method(row), model, problem))
    # A booster divides gradients by curvature: a factor on the loss, all the controls are about, cancels there.
    return Cell(name=model, settings=own, methods=wanted, controls=model not in boosters.LIBRARIES)


def _fits(row: Method, model: str, problem: Problem) -> bool:
    if problem.regression and row.loss is not None:
        return False
    return model not in boosters.LIBRARIES or boosters.takes(row)


def table(problem: Problem, cells: tuple[Cell, ...], rows: tuple[str, ...], primary: str, metric: Metric) -> Table:
    """The table of a question."""
    return Table(
        title=problem.name,
        question="Does re-weighting help on this data?",
        cells=cells,
        methods=rows,
        metric=f"test/{metric.key}",
        metric_name=metric.name,
        select=f"val/{metric.key}",
        primary=primary,
        smallest=metric.smallest,
        overlap=problem.test_share,
        notes=problem.notes,
    )


def table_at(root: Path) -> Table:
    """The table of a comparison that was begun in a folder, as it was written down there."""
    saved: dict[str, Any] = json.loads((root / "compare.json").read_text())["table"]
    cells = tuple(Cell(**_with_tuples(one)) for one in saved.pop("cells"))
    return Table(**_with_tuples(saved), cells=cells)


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """What JSON reads back, with tuples where it has lists."""
    lists: dict[str, Any] = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return values | lists


def results_at(root: Path, runs: Sequence[Run]) -> Results:
    """The results of a comparison in a folder, as they were last answered."""
    from reweigh.bench.compare import command  # which stands on this file

    return command.results_at(root, runs)


def metric_named(name: str, problem: Problem) -> Metric:
    """The metric to judge by; without a name the first that the kind of problem has."""
    known = metrics.REGRESSION if problem.regression else metrics.CLASSIFICATION
    usable = [m for m in known if m.key != "worst_group" or problem.groups]
    for metric in usable:
        if metric.key == name or not name:
            return metric
    hint = " Give `--group` to have groups." if name == "worst_group" else ""
    raise ValueError(f"`--metric` must be one of {', '.join(m.key for m in usable)}, got {name!r}.{hint}")


@functools.lru_cache(maxsize=1)
def _task(question: Question, seed: int) -> Task:
    """The task of one split; a process that trains many methods on it makes it once."""
    problem = load(question)
    return deal(problem, parts_of(problem, seed))[0]


#: Networks are trained as in every supervised recipe.
_NETWORKS = supervised.recipe(lambda settings, seeds: _task(settings.question(), seeds.seed))


def train(
    settings: Settings, method: Method, seed: int, writer: Writer, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """One training."""
    if settings.model in boosters.LIBRARIES:
        task = _task(settings.question(), seed)
        return boosters.fit(settings.model, task, method, settings.training(), seed, writer)
    return _NETWORKS.train(settings, method, seed, writer, scale)


def group(settings: Settings, method: Method) -> str | None:
    """What trainings must share to run as one program; None where running alone is faster or needed."""
    return None if settings.large else supervised.group_of(settings, method)


def train_group(members: Sequence[Trainee]) -> Iterator[list[Record]]:
    """Many trainings at once; splits whose tables became matrices of other widths are programs of their own."""
    settings: Settings = members[0][0]
    problem = load(settings.question())
    task_of = functools.cache(lambda seed: deal(problem, parts_of(problem, seed))[0])
    alike: dict[Any, list[int]] = {}
    for k, (_, own, seed, _) in enumerate(members):
        task = task_of(seed)
        balance = task.class_counts if own.loss is not None else ()
        alike.setdefault((tuple(task.x_train.shape), balance), []).append(k)
    programs = [(chosen, _program([members[k] for k in chosen], task_of)) for chosen in alike.values()]
    for _ in range(settings.epochs):
        records: list[Record] = [{} for _ in members]
        for chosen, program in programs:
            for k, record in zip(chosen, next(program), strict=True):
                records[k] = record
        yield records


def _program(members: Sequence[Trainee], task_of: Callable[[int], Task]) -> Iterator[list[Record]]:
    trainings = [
        Member(task=task_of(seed), method=method, training=own.training(), seeds=Seeds(seed), scale=scale)
        for own, method, seed, scale in members
    ]
    settings: Settings = members[0][0]
    return fit_many(trainings, lambda: supervised.build(settings, trainings[0].task, members[0][1]))
