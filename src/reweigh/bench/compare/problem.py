"""From a file, a folder or a name to parts that can be trained on, one draw a seed."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from reweigh.bench import data, tables
from reweigh.bench.compare import metrics
from reweigh.bench.data import longtail_indices
from reweigh.bench.seeds import Seeds
from reweigh.bench.tables import Encoder, Schema, TableError
from reweigh.bench.tables import named as named_tables
from reweigh.bench.task import Task

Array = np.ndarray[Any, Any]

#: What is compared on when nothing is named: scikit-learn's digits, thinned to a long tail.
EMBEDDED = "digits"
_EMBEDDED_IMBALANCE = 20.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a person asked for, as plain values: they are part of every run's identity.

    Parameters
    ----------
    source
        A file, a folder of class folders of images, a named table, or `digits`.
    sha256
        Of the file, so that a changed file is another question.
    target, task, categorical, drop, group, time, test
        As on the command line; empty for what was not given.
    """

    source: str = EMBEDDED
    sha256: str = ""
    target: str = ""
    task: str = ""
    categorical: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    group: str = ""
    time: str = ""
    test: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A question with its data read: what it is about, and how a seed deals it out."""

    name: str
    kind: str
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    groups: tuple[str, ...]
    rows: int
    notes: tuple[str, ...]
    #: Share of all rows that a split tests on.
    test_share: float
    images: bool = False
    frame: pl.DataFrame | None = field(default=None, repr=False)
    schema: Schema | None = field(default=None, repr=False)
    test_rows: Array | None = field(default=None, repr=False)
    dataset: data.Dataset | None = field(default=None, repr=False)

    @property
    def regression(self) -> bool:
        """Whether a number is predicted and not a class."""
        return self.kind == "regression"


def hash_of(source: str) -> str:
    """The hash of a file; of a folder, that of its files' names and sizes; empty for a name."""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    if path.is_dir():
        listing = "\n".join(f"{p.relative_to(path)} {p.stat().st_size}" for p in sorted(path.rglob("*")) if p.is_file())
        return hashlib.sha256(listing.encode()).hexdigest()[:16]
    return ""


@functools.lru_cache(maxsize=2)
def load(question: Question) -> Problem:
    """Read the data of a question; a process reads it once."""
    path = Path(question.source)
    if question.source == EMBEDDED:
        return _digits()
    if path.is_dir():
        return _image_folder(path)
    if question.source in named_tables.names() and not path.exists():
        found = named_tables.load(question.source, download=True)
        test_rows = None if found.test_rows is None else np.asarray(found.test_rows)
        return _table(question, found.frame, question.target or found.target, test_rows, found.notes)
    frame = tables.read(path)
    if not question.target:
        raise TableError(
            f"`--target` must name the column to predict; {path.name} has {', '.join(map(repr, frame.columns[:12]))}"
            f"{' …' if len(frame.columns) > 12 else ''}."
        )
    return _table(question, frame, question.target, None, ())


def deal(problem: Problem, seed: int) -> tuple[Task, Encoder | None]:
    """The task of one seed, and for a table the encoder that its training rows made."""
    if problem.dataset is not None:
        return _deal_images(problem, problem.dataset, seed), None
    assert problem.frame is not None
    assert problem.schema is not None
    parts = tables.split(problem.frame, problem.schema, seed=seed, test_rows=problem.test_rows)
    encoder = Encoder.fit(problem.frame, problem.schema, parts.train)
    groups = _group_indices(problem)

    def numbers(rows: Array) -> Tensor:
        return torch.from_numpy(encoder.transform(problem.frame, rows))  # pyright: ignore[reportArgumentType]

    def targets(rows: Array) -> Tensor:
        return torch.tensor(encoder.transform_target(problem.frame, rows))  # pyright: ignore[reportArgumentType]

    rows = {"train": parts.train, "val": parts.val, "test": parts.test}
    truth = {part: targets(chosen) for part, chosen in rows.items()}
    scale = float(getattr(encoder.target, "deviation", 1.0))

    def score(part: str, outputs: Tensor) -> dict[str, Any]:
        own = None if groups is None else groups[rows[part]]
        if problem.regression:
            # Back in the target's own unit, which is what a person can judge.
            return metrics.regression(outputs.numpy() * scale, truth[part].numpy() * scale, own)
        return metrics.classification(outputs.numpy(), truth[part].numpy(), len(problem.classes), own)

    task = Task(
        x_train=numbers(parts.train),
        y_train=truth["train"],
        x_val=numbers(parts.val),
        y_val=truth["val"],
        x_test=numbers(parts.test),
        y_test=truth["test"],
        classes=problem.classes,
        rows=torch.from_numpy(parts.train),
        scorer=score,
    )
    return task, encoder


def _table(
    question: Question, frame: pl.DataFrame, target: str, test_rows: Array | None, notes: tuple[str, ...]
) -> Problem:
    schema = tables.describe(
        frame,
        target=target,
        task=question.task or None,  # pyright: ignore[reportArgumentType]
        categorical=question.categorical,
        drop=question.drop,
        group=question.group or None,
        time=question.time or None,
    )
    if question.test:
        frame, test_rows = tables.append(frame, tables.read(Path(question.test)), schema)
    labelled = schema.labelled(frame)
    if test_rows is not None and labelled.height != frame.height:
        kept = np.flatnonzero(schema.labels(frame).is_not_null().to_numpy())
        test_rows = np.flatnonzero(np.isin(kept, test_rows))
    share = 0.2 if test_rows is None else len(test_rows) / labelled.height
    groups = () if schema.group is None else tuple(labelled.get_column(schema.group).cast(pl.String).unique().sort())
    return Problem(
        name=Path(question.source).name,
        kind=schema.task,
        classes=schema.classes,
        class_counts=schema.class_counts,
        groups=tuple(str(g) for g in groups),
        rows=labelled.height,
        notes=(*notes, *schema.notes),
        test_share=share,
        frame=labelled,
        schema=schema,
        test_rows=test_rows,
    )


def _group_indices(problem: Problem) -> Array | None:
    if problem.schema is None or problem.frame is None or problem.schema.group is None:
        return None
    names = problem.frame.get_column(problem.schema.group).cast(pl.String)
    return names.replace_strict(list(problem.groups), list(range(len(problem.groups))), default=0).to_numpy()


def _digits() -> Problem:
    dataset = data.load("digits")
    counts = data.longtail_counts(10, _EMBEDDED_IMBALANCE, int(dataset.counts()[0].min()))
    return Problem(
        name="scikit-learn's digits, thinned to a long tail",
        kind="multiclass",
        classes=dataset.classes,
        class_counts=tuple(counts),
        groups=(),
        rows=sum(counts),
        notes=(
            f"Class 0 keeps {counts[0]} images and class 9 keeps {counts[-1]}; the test images are balanced.",
            "Each split draws other images and holds other ones out for validation.",
        ),
        test_share=0.3,
        images=False,
        dataset=dataset,
    )


def _image_folder(path: Path) -> Problem:
    dataset = data.load(f"image_folder:folder={path.name}", root=path.parent)
    counts = np.bincount(dataset.y_train, minlength=len(dataset.classes))
    return Problem(
        name=path.name,
        kind="binary" if len(dataset.classes) == 2 else "multiclass",
        classes=dataset.classes,
        class_counts=tuple(counts.tolist()),
        groups=(),
        rows=len(dataset.y_train) + len(dataset.y_test),
        notes=(),
        test_share=len(dataset.y_test) / (len(dataset.y_train) + len(dataset.y_test)),
        images=True,
        dataset=dataset,
    )


def _deal_images(problem: Problem, dataset: data.Dataset, seed: int) -> Task:
    """Images of one seed; the embedded digits are thinned anew, a folder is split anew for validation."""
    draw = Seeds(seed).numpy("data")
    kept = np.arange(len(dataset.y_train))
    if not problem.images:
        kept = longtail_indices(dataset.y_train, _EMBEDDED_IMBALANCE, draw)
    train, val = data.split(dataset.y_train[kept], 0.25, draw)
    mean, deviation = data.pixel_statistics(dataset.x_train)

    def images(part: Array) -> Tensor:
        return data.normalize(data.as_tensor(np.ascontiguousarray(part)), mean, deviation)

    truth = {"val": dataset.y_train[kept[val]], "test": dataset.y_test}

    def score(part: str, outputs: Tensor) -> dict[str, Any]:
        return metrics.classification(outputs.numpy(), truth[part], len(dataset.classes))

    return Task(
        x_train=images(dataset.x_train[kept[train]]),
        y_train=torch.from_numpy(dataset.y_train[kept[train]]),
        x_val=images(dataset.x_train[kept[val]]),
        y_val=torch.from_numpy(truth["val"]),
        x_test=images(dataset.x_test),
        y_test=torch.from_numpy(dataset.y_test),
        classes=dataset.classes,
        rows=torch.from_numpy(kept[train]),
        scorer=score,
    )
