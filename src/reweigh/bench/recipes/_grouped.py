"""Rows of one seed and their groups: coloured digits, a census table, or comments."""

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
from reweigh.bench.catalogue.permuted import columns as pixels
from reweigh.bench.catalogue.tables import NamedTable
from reweigh.bench.catalogue.texts import labelled
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.tables import Schema, TableEncoder
from reweigh.bench.train import scores
from reweigh.bench.train.task import Task

Array = np.ndarray[Any, Any]
PartArrays = tuple[dict[str, Array], tuple[str, ...], tuple[str, ...]]

#: What is tested on is the same for every seed.
_FIXED = Seeds(0)
#: Features of a comment.
_WORDS = 1024
#: What identities are called in Wikipedia's comments: sexuality, sex, religion and origin.
IDENTITIES = (
    "lesbians?",
    "gays?",
    "bisexuals?",
    "transgender",
    "trans",
    "queer",
    "lgbtq?",
    "homosexuals?",
    "heterosexuals?",
    "male",
    "female",
    "african",
    "blacks?",
    "white",
    "european",
    "hispanic",
    "latinos?",
    "latina",
    "mexicans?",
    "asians?",
    "indian",
    "chinese",
    "japanese",
    "arabs?",
    "christians?",
    "muslims?",
    "islam",
    "jewish",
    "jews?",
    "buddhists?",
    "catholics?",
    "protestants?",
    "sikhs?",
)


@dataclass(frozen=True, kw_only=True)
class GroupedDraw:
    """Which rows to take, and as what; see the recipe's settings."""

    data: str
    rows: int
    test_rows: int
    validation: float
    agreement: float
    side: int


def deal(draw: GroupedDraw, seeds: Seeds) -> Task:
    """The task of one seed, scored by its worst class and worst group."""
    arrays, classes, names = _dealt(draw, seeds)
    parts = {name: torch.tensor(array) for name, array in arrays.items()}
    return GroupedTask(
        x_train=parts["x_train"],
        y_train=parts["y_train"],
        x_val=parts["x_val"],
        y_val=parts["y_val"],
        x_test=parts["x_test"],
        y_test=parts["y_test"],
        classes=classes,
        groups=parts["g_train"],
        n_groups=len(names),
        group_names=names,
        scorer=functools.partial(_score, arrays, len(classes), len(names)),
    )


@dataclass(frozen=True, kw_only=True)
class GroupedTask(Task):
    """A task whose report names the groups."""

    group_names: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Classes and groups, and how many training rows each has."""
        assert self.groups is not None
        counts = torch.bincount(self.groups, minlength=len(self.group_names)).tolist()
        return {**super().facts(), "group_names": list(self.group_names), "group_counts": counts}


def _score(arrays: dict[str, Array], classes: int, n_groups: int, part: str, outputs: Tensor) -> dict[str, Any]:
    """Worst class, worst group, and the mean over groups with the shares that they have in training."""
    targets, groups = arrays[f"y_{part}"], arrays[f"g_{part}"]
    logits = outputs.detach().cpu().double().numpy()
    (scored,) = scores.accuracies(logits[None], targets, classes)
    right = (logits.argmax(1) == targets).astype(np.float64)
    scored |= scores.by_group(right, groups, n_groups, worst=min)
    shares = np.bincount(arrays["g_train"], minlength=n_groups) / len(arrays["g_train"])
    scored["accuracy"] = float(np.nansum(shares * np.array(scored["group_score"])))
    return {**scored, "worst_class": float(np.nanmin(scored["class_accuracy"]))}


@functools.lru_cache(maxsize=32)
def _dealt(draw: GroupedDraw, seeds: Seeds) -> PartArrays:
    """The parts of one seed; kept, since a process trains many rows of the table on the same seeds."""
    return _images(draw, seeds) if draw.data in catalogue.names("images") else _table(draw, seeds)


def _images(draw: GroupedDraw, seeds: Seeds) -> PartArrays:
    """Small or large digits in two colours; in the test part every digit has both."""
    dataset, rng = supervised.load(draw.data), seeds.numpy("data")
    label = (dataset.y_train >= 5).astype(np.int64)
    train, val = draws.sampled_split(label, draw.validation, rng, rows=draw.rows)
    colour = draws.spurious_colours(label, draw.agreement, rng)
    test = draws.subset(np.arange(len(dataset.y_test)), 2 * draw.test_rows, _FIXED.numpy("which"))
    images = np.concatenate([dataset.x_test[test]] * 2)
    chosen = {
        "train": (dataset.x_train[train], label[train], colour[train]),
        "val": (dataset.x_train[val], label[val], colour[val]),
        "test": (images, np.tile((dataset.y_test[test] >= 5).astype(np.int64), 2), np.arange(len(images)) // len(test)),
    }
    arrays: dict[str, Array] = {}
    for part, (grey, y, own) in chosen.items():
        channels = draws.coloured(pixels(grey, draw.side), own)
        arrays |= {f"x_{part}": channels.reshape(len(y), -1), f"y_{part}": y, f"g_{part}": 2 * y + own}
    mean, deviation = arrays["x_train"].mean(), arrays["x_train"].std()
    for part in chosen:
        arrays[f"x_{part}"] = (arrays[f"x_{part}"] - mean) / deviation
    return arrays, ("0 to 4", "5 to 9"), tuple(f"{k}, {c}" for k in ("0 to 4", "5 to 9") for c in ("red", "green"))


def _table(draw: GroupedDraw, seeds: Seeds) -> PartArrays:
    """A table as the encoder of all rows that may be drawn makes it: seeds that train together share its columns."""
    frame, schema, groups, names, pool, held = _read(draw.data)
    labels = schema.labels(frame).cast(pl.Int64).to_numpy()
    train, val = draws.sampled_split(labels, draw.validation, seeds.numpy("data"), rows=draw.rows, pool=pool)
    rng = _FIXED.numpy("which")
    test = np.concatenate([draws.subset(held[groups[held] == g], draw.test_rows, rng) for g in range(len(names))])
    encoder = _encoder(draw.data)
    arrays: dict[str, Array] = {}
    for part, rows in (("train", train), ("val", val), ("test", test)):
        arrays |= {f"x_{part}": encoder.transform(frame, rows), f"y_{part}": labels[rows], f"g_{part}": groups[rows]}
    return arrays, schema.classes, names


@functools.lru_cache(maxsize=2)
def _encoder(name: str) -> TableEncoder:
    """The encoder of a table's rows that are not tested on; it looks at no label."""
    frame, schema, _, _, pool, _ = _read(name)
    return TableEncoder.fit(frame, schema, pool, words=_WORDS)


@functools.lru_cache(maxsize=2)
def _read(name: str) -> tuple[pl.DataFrame, Schema, Array, tuple[str, ...], Array, Array]:
    """Rows, what they hold, their groups and the names of these, rows to draw from and rows to test on."""
    if name == "toxicity":
        frame, target, attribute, pool, held = _comments()
    else:
        root = os.environ.get("REWEIGH_DATA")
        named = catalogue.load(name, NamedTable, root=Path(root) if root else None, download=True)
        frame, target = named.frame, named.target
        assert named.test_rows is not None
        held = np.asarray(named.test_rows)
        pool = np.setdiff1d(np.arange(frame.height), held)
        race = pl.when(pl.col("race") == "White").then(pl.lit("white")).otherwise(pl.lit("not white"))
        attribute = frame.select(pl.concat_str([pl.col("sex").str.to_lowercase(), race], separator=", ")).to_series()
    schema = tables.describe(frame, target=target)
    labels = schema.labels(frame).cast(pl.Int64).to_numpy()
    levels = sorted(attribute.unique().to_list())
    codes = attribute.replace_strict(levels, list(range(len(levels))), return_dtype=pl.Int64).to_numpy()
    names = tuple(f"{label}, {level}" for label in schema.classes for level in levels)
    return frame, schema, labels * len(levels) + codes, names, pool, held


def _comments() -> tuple[pl.DataFrame, str, pl.Series, Array, Array]:
    """Comments, and whether one names an identity; the official training and validation parts to draw from."""
    content = labelled("toxicity")
    assert content.val is not None
    parts = (content.train, content.val, content.test)
    labels = np.concatenate([part.labels for part in parts])
    frame = pl.DataFrame(
        {
            "comment": [text for part in parts for text in part.first],
            "label": [content.classes[label] for label in labels],
        }
    )
    named = frame.get_column("comment").str.contains(rf"(?i)\b(?:{'|'.join(IDENTITIES)})\b")
    attribute = pl.Series(["names an identity" if one else "names none" for one in named])
    size = len(content.train.labels) + len(content.val.labels)
    return frame, "label", attribute, np.arange(size), np.arange(size, frame.height)
