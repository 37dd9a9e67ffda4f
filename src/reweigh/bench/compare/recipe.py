"""The recipe behind `reweigh compare`: the user's data instead of a preset, splits instead of seeds.

A column is a model, a row is a method, and a seed deals the rows of the data out anew. Trainings of small networks on
small data run many at once; everything else is a process of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from reweigh.bench import tables
from reweigh.bench.compare import features, tasks
from reweigh.bench.compare.folder import NAME, results_at
from reweigh.bench.compare.problem import DataQuestion, Problem
from reweigh.bench.compare.tasks import SplitOfRows
from reweigh.bench.errors import UserError
from reweigh.bench.lab.recipe import LATER, Trainee, plain
from reweigh.bench.lab.runs import Record, Run, RunWriter
from reweigh.bench.lab.table import Column, Row, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import SupervisedSettings
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.correction import corrected, logits_per_output
from reweigh.bench.train.driver import fit
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs import boosting as boosters
from reweigh.bench.train.scores import Metric, ScoringRules
from reweigh.method import Method, method
from reweigh.post import Threshold

#: The question is not a preset's: the folder of a comparison stores it, and `results_at` reads it back.
__all__ = ["METHODS", "NAME", "NETWORKS", "Settings", "group", "results_at", "train", "train_group"]
#: What `--model` names, and what it is called among the models of the bench; `pretrained` is a linear layer on the
#: features of a frozen network.
NETWORKS = {
    "mlp": "mlp",
    "logistic": "linear",
    "cnn": "cnn",
    "pretrained": "linear",
    "finetuned": "efficientnet_lite0:part=last,weights=imagenet",
}
#: The rows unless `--method` names others, in the order in which they are run: plain training and what costs nothing
#: next to it, RGD, and what is likely to be best. A regression has no classes to balance, and boosters take fewer.
METHODS = (
    "mean",
    "mean+prior",
    "mean+threshold",
    "rgd",
    "rgd+prior",
    "class_weights",
    "class_balanced",
    "logit_adjusted",
    "focal",
    "rgd_auto",
    "redescending",
    "term:t=0.5",
)
#: Further rows where `--group` names few large groups, which these see in training and no other row does.
GROUP_METHODS = ("group_dro", "group_balanced")
#: From this many numbers of training data on a training's time is arithmetic, and batching is not worth it.
_LARGE = 4_000_000
#: Steps that a network is trained for, between the fewest and the most epochs.
_STEPS, _EPOCHS = 1500, (5, 60)
#: Epochs that the last convolution of a pretrained network is trained for.
_FINE_TUNING = 10
#: Metrics besides the cost that a threshold can be chosen by.
_CUT_BY = ("accuracy", "balanced_accuracy", "worst_class", "f1", "matthews")


@dataclass(frozen=True, kw_only=True)
class Settings(SupervisedSettings, DataQuestion):
    """Settings of a run: how to train, and the question whose data it trains on."""

    #: Whether there is so much data that a process for each training is faster than one program for many.
    large: bool = False
    #: The schedule anneals, so that the last epoch is the one to keep: a small validation set chooses a worse one.
    final_only: bool = True
    #: The row whose outputs this one corrects, if nothing is trained for it.
    base: str = ""
    #: The frozen network whose features of photos or texts are learnt from; pixels and words if there is none.
    features: str = field(default="", metadata=LATER)
    #: The share of the training rows of a split that is trained on.
    train_share: float = field(default=1.0, metadata=LATER)
    #: Rows of the sample that is compared on; 0 for all rows.
    sample: int = field(default=0, metadata=LATER)

    def question(self) -> DataQuestion:
        """The part of the settings that says which data."""
        names = {field.name for field in dataclasses.fields(DataQuestion)}
        return DataQuestion(**{name: value for name, value in dataclasses.asdict(self).items() if name in names})

    def split(self, seed: int) -> SplitOfRows:
        """The part of the settings that says which rows, of a seed."""
        return SplitOfRows(
            question=self.question(),
            features=self.features,
            sample=self.sample,
            train_share=self.train_share,
            seed=seed,
            large=self.large,
        )


def settings(
    question: DataQuestion, problem: Problem, width: int, precision: Precision = "float32", embedded: str = ""
) -> dict[str, Any]:
    """The settings that all models share, as plain values; `embedded` is the network that texts go through, if any."""
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
        features=embedded,
        sample=problem.sample,
    )
    return plain(shared)


def column(model: str, problem: Problem, rows: Sequence[str]) -> Column:
    """The column of a model: its settings, and the rows it can have."""
    own: dict[str, Any] = {"model": NETWORKS.get(model, model)}
    if model in boosters.LIBRARIES:
        own |= {"lr": boosters.RATE, "epochs": boosters.ROUNDS}
    elif model == "logistic":
        own |= {"lr": 3e-2}  # a third of it leaves a rare class of a small table short of the optimum
    elif model == "pretrained":
        rows_trained = problem.rows * problem.train_share
        large = rows_trained * features.WIDTHS[features.PHOTOS] > _LARGE
        own |= {"lr": 1e-2, "features": features.PHOTOS, "large": large}
    elif model == "finetuned":
        own |= {"lr": 1e-3, "features": features.MAPS, "epochs": _FINE_TUNING}
    wanted = tuple(row for row in rows if fits(method(row), model, problem))
    # A booster divides gradients by curvature: a factor on the loss, all the controls are about, cancels there.
    return Column(name=model, settings=own, methods=wanted, controls=model not in boosters.LIBRARIES)


def methods(problem: Problem) -> tuple[str, ...]:
    """The rows unless `--method` names others."""
    if not problem.groups or tables.keeps_groups_whole(*problem.table):
        return METHODS
    return (*METHODS, *GROUP_METHODS)


def uses_groups(text: str) -> bool:
    """Whether a part of the method is told each training row's group."""
    return any({"groups", "n_groups"} & set(getattr(part, "needs", ())) for _, part in method(text).parts())


def fits(row: Method, model: str, problem: Problem) -> bool:
    """Whether a model can be trained with a method on this kind of problem."""
    if problem.regression and (row.loss is not None or row.post is not None):
        return False
    return model not in boosters.LIBRARIES or boosters.takes(row, cast(Any, problem.kind))


def corrections(rows: Sequence[str], metric: Metric, judging: ScoringRules) -> dict[str, Row]:
    """What the rows stand for that correct the outputs of another: nothing is trained for them.

    A threshold is chosen by the metric or cost that is judged by, unless no cut changes that one.
    """
    texts = {str(method(text)): text for text in rows}
    corrected: dict[str, Row] = {}
    for text in rows:
        row = method(text)
        if row.post is None or row.post.needs_classifier:
            continue
        base = texts.get(str(dataclasses.replace(row, post=None)))
        if row.post == Threshold():
            row = dataclasses.replace(row, post=_cut_by(metric, judging))
        if base is not None:
            corrected[text] = Row(method=str(row), settings={"base": base})
    return corrected


def _cut_by(metric: Metric, judging: ScoringRules) -> Threshold:
    """The cut that is best for a metric; for balanced accuracy where the metric is one of the ranking."""
    if metric.key == "cost" and judging.costs is not None:
        false_positive, false_negative = judging.costs
        return Threshold(
            metric="cost",
            positive=judging.positive,
            false_positive=false_positive,
            false_negative=false_negative,
        )
    if metric.key not in _CUT_BY:
        return Threshold()
    return Threshold(metric=cast(Any, metric.key), positive=judging.positive if metric.key == "f1" else 1)


def table(problem: Problem, columns: tuple[Column, ...], rows: tuple[str, ...], primary: str, metric: Metric) -> Table:
    """The table of a question."""
    return Table(
        title=problem.name,
        question="What should be used on this data?",
        columns=columns,
        methods=rows,
        metric=f"test/{metric.key}",
        metric_name=metric.name,
        select=f"val/{metric.key}",
        rows=corrections(rows, metric, problem.judging),
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


def train(
    settings: Settings, method: Method, seed: int, writer: RunWriter, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """One training, or the correction of one that has finished."""
    if settings.base:
        return _correct(settings, method, seed, writer)
    if settings.model in boosters.LIBRARIES:
        task = tasks.task(settings.split(seed))
        return fit(boosters.Boosting(settings.model, task, method, settings.training(), seed), writer)
    # Networks are trained as in every supervised recipe.
    networks = supervised.recipe(lambda settings, seeds: tasks.task(settings.split(seeds.seed)))
    return networks.train(settings, method, seed, writer, scale)


def _correct(settings: Settings, method: Method, seed: int, writer: RunWriter) -> Iterator[Record]:
    """The outputs of another run after the correction of this method, scored as if it had been trained."""
    spec, plain = writer.run.spec, dataclasses.replace(method, post=None)
    base = dataclasses.replace(spec, label=settings.base, method=str(plain), settings={**spec.settings, "base": ""})
    source, task = Run(base, writer.run.root), tasks.task(settings.split(seed))
    outputs = {part: torch.from_numpy(source.array(f"{part}_outputs")) for part in ("val", "test")}
    built = method.build(task.context(steps=1))
    record: Record = {"epoch": settings.epochs, "progress": 1.0}
    for part, own in corrected(task, built.post, outputs, scale=logits_per_output(built.loss)).items():
        writer.array(f"{part}_outputs", own.float().numpy())
        record |= {f"{part}/{name}": value for name, value in task.score(part, own).items()}
    yield record


def group(settings: Settings, method: Method) -> str | None:
    """What trainings must share to run as one program; None where running alone is faster or needed."""
    return None if settings.large or settings.base else supervised.group_of(settings, method)


def train_group(members: Sequence[Trainee]) -> Iterator[list[Record]]:
    """Many trainings at once."""
    settings: Settings = members[0][0]
    return supervised.train_together(members, lambda seed: tasks.task(settings.split(seed)))
