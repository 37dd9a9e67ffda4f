"""What the image recipes share: settings, the way from a data set to tensors, and training alone or in groups."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench import catalogue, models
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.draws import split
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.recipe import LATER, Scale, Trainee
from reweigh.bench.train import frozen
from reweigh.bench.train.driver import fit
from reweigh.bench.train.pixels import Augment, as_tensor, normalize, pixel_statistics
from reweigh.bench.train.precision import Precision
from reweigh.bench.train.programs.supervised import Supervised as Program
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.stacked import Member, fit_many, group_key
from reweigh.bench.train.task import Task
from reweigh.method import Method

#: Models whose steps are mostly overhead, so that batching is worth it.
BATCHED_MODELS = ("mlp", "linear")


@dataclass(frozen=True, kw_only=True)
class SupervisedSettings:
    """Settings that every supervised recipe has; the fields of `OptimizerPlan` are passed on to it.

    With `augment`, images are shifted and mirrored at random, and half of them lose a square of `cutout` pixels a side.
    """

    data: str = "digits"
    model: str = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    batch_size: int = 64
    epochs: int = 40
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    milestones: tuple[float, ...] = (0.8, 0.9)
    decay: float = field(default=0.1, metadata=LATER)
    warmup: float = 0.0
    augment: bool = False
    cutout: int = field(default=0, metadata=LATER)
    precision: Precision = "float32"
    validation: float = 0.2
    #: Training examples to draw before anything else is done to them; 0 takes all.
    rows: int = 0
    compiled: bool = field(default=False, metadata=LATER)

    def training(self) -> OptimizerPlan:
        """The part of the settings that says how to train."""
        names = {field.name for field in dataclasses.fields(OptimizerPlan)}
        return OptimizerPlan(**{k: v for k, v in dataclasses.asdict(self).items() if k in names})


@dataclass(frozen=True, kw_only=True)
class EncodableSettings(SupervisedSettings):
    """Settings of recipes whose images may come through a frozen network.

    With `encoder`, such as `"efficientnet_lite0:weights=imagenet"`, the model learns from that network's features and
    not from pixels.
    """

    encoder: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        if self.augment and self.encoder:
            raise ValueError("`augment` changes pixels, and with `encoder` no pixels are learnt from. Leave one out.")


Indices = np.ndarray[Any, Any]
MakeTask = Callable[[Any, Seeds], Task]


class Hooks(NamedTuple):
    """The parts of a recipe's contract that train: one run, whether it may be grouped, and a group."""

    train: Callable[[Any, Method, int, Writer, Scale], Iterator[Record]]
    group: Callable[[Any, Method], str | None]
    train_group: Callable[[Sequence[Trainee]], Iterator[list[Record]]]


def recipe(make_task: MakeTask) -> Hooks:
    """A supervised recipe, given how it makes its task of its settings and a seed."""

    def train(
        settings: SupervisedSettings, method: Method, seed: int, writer: Writer, scale: Scale
    ) -> Iterator[Record]:
        seeds = Seeds(seed)
        task = make_task(settings, seeds)
        with seeds.ambient("init"):
            model = build(settings, task, method)
        if settings.model not in BATCHED_MODELS:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        augment = Augment(cutout=settings.cutout) if settings.augment else None
        program = Program(task, model, method, settings.training(), seeds, augment=augment)
        return fit(program, writer, scale=scale)

    def train_group(members: Sequence[Trainee]) -> Iterator[list[Record]]:
        return train_together(members, functools.cache(lambda seed: make_task(members[0][0], Seeds(seed))))

    return Hooks(train, group_of, train_group)


def train_together(members: Sequence[Trainee], task_of: Callable[[int], Task]) -> Iterator[list[Record]]:
    """Trainings that share everything but seeds and numbers, as one program for each shape of their data.

    A split of drawn examples rounds by class, so that one seed may train on an example more than another; and a table
    may become a wider matrix in one split than in another.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for k, (_, _, seed, _) in enumerate(members):
        alike.setdefault(tuple(task_of(seed).x_train.shape), []).append(k)
    programs = [(chosen, _as_one([members[k] for k in chosen], task_of)) for chosen in alike.values()]
    for _ in range(members[0][0].epochs):
        records: list[Record] = [{} for _ in members]
        for chosen, program in programs:
            for k, record in zip(chosen, next(program), strict=True):
                records[k] = record
        yield records


def _as_one(members: Sequence[Trainee], task_of: Callable[[int], Task]) -> Iterator[list[Record]]:
    trainings = [
        Member(task=task_of(seed), method=method, training=own.training(), seeds=Seeds(seed), scale=scale)
        for own, method, seed, scale in members
    ]
    compiled = trainings[0].training.compiled or None  # unless asked for, where it pays
    return fit_many(trainings, lambda: build(members[0][0], trainings[0].task, members[0][1]), compiled=compiled)


def group_of(settings: SupervisedSettings, method: Method) -> str | None:
    """What trainings must share to run as one program; None where running alone is faster or needed."""
    if settings.model not in BATCHED_MODELS or settings.augment:
        return None
    key = group_key(method, settings.training())
    rest = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("lr", "weight_decay")}
    return None if key is None else f"{key}|{sorted(rest.items())}"


def build(settings: SupervisedSettings, task: Task, method: Method) -> nn.Module:
    """The model of the settings for the task's shapes, with the last layer that the method's loss asks for.

    A regression has one output.
    """
    options: dict[str, Any] = {"hidden": settings.hidden} if settings.model == "mlp" else {}
    head = getattr(method.loss, "head", "linear")
    return models.build(settings.model, tuple(task.x_train.shape[1:]), len(task.classes) or 1, head=head, **options)


@functools.cache
def load(name: str, encoder: str = "") -> Dataset:
    """The data set, from the folder of official files if one was given, read once per process.

    With `encoder`, its images are the features from that frozen network.
    """
    root = os.environ.get("REWEIGH_DATA")
    dataset = catalogue.load(name, Dataset, root=Path(root) if root else None)
    return frozen.vectors(dataset, encoder) if encoder else dataset


@functools.cache
def _statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of a data set's pixels, counted once per process."""
    return pixel_statistics(dataset.x_train)


def held_out(y: Indices, share: float, draw: np.random.Generator) -> tuple[Indices, Indices]:
    """Indices to train on and to choose by, each class alike; with a share of 0 all are trained on."""
    return split(y, share, draw) if share else (np.arange(len(y)), np.arange(0))


def to_task(
    dataset: Dataset,
    train: Indices,
    val: Indices,
    *,
    train_labels: np.ndarray[Any, Any] | None = None,
    noisy: np.ndarray[Any, Any] | None = None,
    meta: Indices | None = None,
) -> Task:
    """The task on some of the training examples, others held out for validation, and the whole test set.

    Images are normalised by the mean and deviation of all training images, and the features of a frozen network are
    taken as they are; `train_labels` replace the true ones.
    """

    def images(part: np.ndarray[Any, Any]) -> Tensor:
        if part.dtype != np.uint8:
            return torch.from_numpy(part)
        mean, deviation = _statistics(dataset)
        return normalize(as_tensor(np.ascontiguousarray(part)), mean, deviation)

    return Task(
        x_train=images(dataset.x_train[train]),
        y_train=torch.from_numpy(dataset.y_train[train] if train_labels is None else train_labels),
        x_val=images(dataset.x_train[val]),
        y_val=torch.from_numpy(dataset.y_train[val]),
        x_test=images(dataset.x_test),
        y_test=torch.from_numpy(dataset.y_test),
        classes=dataset.classes,
        noisy=None if noisy is None else torch.from_numpy(noisy),
        meta=None if meta is None else (images(dataset.x_train[meta]), torch.from_numpy(dataset.y_train[meta])),
    )
