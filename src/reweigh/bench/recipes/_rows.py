"""Rows of numbers for one seed: a named table, or images whose pixels are columns."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from reweigh.bench import catalogue, draws, tables
from reweigh.bench.catalogue import permuted
from reweigh.bench.catalogue.tables import NamedTable
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes._attributes import Attributes, joined
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.tables import Schema, TableEncoder
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.task import Task

Array = np.ndarray[Any, Any]

#: What is tested on is the same for every seed; where nobody set rows aside, this seed does.
_FIXED = Seeds(0)
_TEST_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """Which rows to take, and as what.

    Parameters
    ----------
    data
        A named table, or a data set of images.
    rows, test_rows
        Most rows to train and validate on, drawn by every seed for itself, and most to test on, the same for all seeds;
        0 for all there are.
    validation
        Share of the drawn rows that is held out to choose by.
    side
        Grey pixels in a row of an image; 0 keeps the image as it is.
    levels
        Most levels of a category that get a column of their own.
    attributes
        Whether a table has one column per attribute, and not one per level of a category.
    folds
        With so many folds, each seed tests on another one of them, and every so many seeds on other folds; 0 tests on
        the same rows always.
    adjusted
        Whether outputs are corrected, before they are scored, from the class shares of the training rows to those of
        all test rows, and accuracy weighs classes by the latter: for training rows that were drawn class by class.
    """

    data: str
    rows: int
    test_rows: int
    validation: float
    side: int
    levels: int
    attributes: bool = False
    folds: int = 0
    adjusted: bool = False


def deal(draw: RowSelection, seeds: Seeds) -> Task:
    """The task of one seed: standardised columns, and scores that have AUROC for two classes and accuracy for more."""
    arrays, classes = _dealt(draw, seeds)
    parts = {name: torch.tensor(array) for name, array in arrays.items()}  # copies: what is dealt may be changed
    shares = parts.pop("shares", None)
    return Task(
        x_train=parts["x_train"],
        y_train=parts["y_train"],
        x_val=parts["x_val"],
        y_val=parts["y_val"],
        x_test=parts["x_test"],
        y_test=parts["y_test"],
        classes=classes,
        scorer=functools.partial(_score, parts, len(classes), shares),
    )


@functools.lru_cache(maxsize=8)
def _dealt(draw: RowSelection, seeds: Seeds) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The parts of one seed; kept for a few, since a process trains many rows of the table on the same seeds."""
    return _table(draw, seeds) if draw.data in catalogue.names("tables") else _pixels(draw, seeds)


def _score(parts: dict[str, Tensor], classes: int, shares: Tensor | None, part: str, outputs: Tensor) -> dict[str, Any]:
    targets = parts[f"y_{part}"]
    scores = metrics.classification(outputs.numpy(), targets.numpy(), classes)
    scores["accuracy_or_auroc"] = scores["auroc" if classes == 2 else "accuracy"]
    if shares is not None:
        scores["accuracy_or_auroc"] = adjusted_accuracy(outputs, targets, parts["y_train"], shares)
    return scores


def adjusted_accuracy(outputs: Tensor, targets: Tensor, trained: Tensor, shares: Tensor) -> float:
    """Accuracy where classes have other shares than among the labels that were trained on.

    Outputs, as log-probabilities up to a constant, move by the logarithm of the ratio of the shares (Bayes' rule), and
    the accuracy of each class counts by its share.
    """
    trained_shares = torch.bincount(trained, minlength=len(shares)) / len(trained)
    right = (outputs + (shares / trained_shares.clamp_min(1e-12)).log()).argmax(-1) == targets
    counts = torch.bincount(targets, minlength=len(shares))
    hits = torch.bincount(targets[right], minlength=len(shares))
    present = counts > 0
    return float((shares[present] * hits[present] / counts[present]).sum() / shares[present].sum())


def _pixels(draw: RowSelection, seeds: Seeds) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Images as permuted columns, all on one scale: that of the training rows' pixels."""
    dataset = supervised.load(draw.data)
    train, val = _choose(dataset.y_train, np.arange(len(dataset.y_train)), draw, seeds)
    test = _capped(np.arange(len(dataset.y_test)), draw.test_rows)
    x = {name: permuted.columns(images[chosen], draw.side) for name, images, chosen in (
        ("x_train", dataset.x_train, train), ("x_val", dataset.x_train, val), ("x_test", dataset.x_test, test)
    )}  # fmt: skip
    mean, deviation = x["x_train"].mean(), x["x_train"].std()
    standard = {name: (part - mean) / deviation for name, part in x.items()}
    y = {"y_train": dataset.y_train[train], "y_val": dataset.y_train[val], "y_test": dataset.y_test[test]}
    return standard | y, dataset.classes


def _table(draw: RowSelection, seeds: Seeds) -> tuple[dict[str, Array], tuple[str, ...]]:
    """A table as the encoder of its training rows makes it."""
    frame, schema, pool, held = _read(draw.data, draw.attributes)
    labels = schema.labels(frame).cast(pl.Int64).to_numpy()
    if draw.folds:
        pool, held = _fold(labels, draw.folds, seeds.seed)
    train, val = _choose(labels, pool, draw, seeds)
    rows = {"train": train, "val": val, "test": _capped(held, draw.test_rows)}
    if draw.attributes:
        encoder: Attributes | TableEncoder = Attributes.fit(frame, schema, train)
    else:
        encoder = TableEncoder.fit(frame, schema, train, levels=draw.levels)
    x = {f"x_{part}": encoder.transform(frame, chosen) for part, chosen in rows.items()}
    y = {f"y_{part}": labels[chosen] for part, chosen in rows.items()}
    if draw.adjusted:
        y["shares"] = np.bincount(labels[held], minlength=len(schema.classes)) / len(held)
    return x | y, schema.classes


def _fold(labels: Array, count: int, seed: int) -> tuple[Array, Array]:
    """The rows of all folds but one, and of that one; seeds go through the folds of one partition after another."""
    repetition, which = divmod(seed, count)
    fold = draws.folds(labels, count, Seeds(repetition).numpy("folds"))
    return np.flatnonzero(fold != which), np.flatnonzero(fold == which)


@functools.lru_cache(maxsize=2)
def _read(name: str, attributes: bool) -> tuple[pl.DataFrame, Schema, Array, Array]:
    """The labelled rows, what they hold, which may be trained on, and which are for testing; read once per process."""
    root = os.environ.get("REWEIGH_DATA")
    named = catalogue.load(name, NamedTable, root=Path(root) if root else None, download=True)
    whole = joined(named.frame, named.indicators) if attributes else named.frame
    schema = tables.describe(whole, target=named.target)
    if named.test_rows is not None and schema.unlabelled:
        raise ValueError(f"{name} has rows without a target, so its official test rows cannot be found by position.")
    frame = schema.labelled(whole)
    if named.test_rows is not None:
        held = np.asarray(named.test_rows)
        return frame, schema, np.setdiff1d(np.arange(frame.height), held), held
    labels = schema.labels(frame).cast(pl.Int64).to_numpy()
    pool, held = draws.split(labels, _TEST_SHARE, _FIXED.numpy("test rows"))
    return frame, schema, pool, held


def _choose(labels: Array, pool: Array, draw: RowSelection, seeds: Seeds) -> tuple[Array, Array]:
    """Rows to train on and to choose by, out of the pool."""
    return draws.sampled_split(labels, draw.validation, seeds.numpy("data"), rows=draw.rows, pool=pool)


def _capped(rows: Array, most: int) -> Array:
    """At most so many rows, the same for every seed."""
    return draws.subset(rows, most, _FIXED.numpy("which"))
