"""What a comparison is about: the question as plain values, and the same with its data read."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from reweigh.bench import tables
from reweigh.bench.files import sha256_of
from reweigh.bench.tables import Schema
from reweigh.bench.train.scores import ScoringRules

Array = np.ndarray[Any, Any]

#: What is compared on when nothing is named: scikit-learn's digits, thinned to a long tail.
EMBEDDED = "digits"
#: Shares of the rows that are tested on, and that choose hyper-parameters and corrections.
TEST_SHARE, VAL_SHARE = 0.2, 0.2
#: What is said of a problem whose test rows are given.
SAME_TEST = (
    "Every split tests on the same rows: intervals are about other training rows and seeds, given these test rows. "
    "Other test rows would add to them."
)


@dataclass(frozen=True, kw_only=True)
class DataQuestion:
    """Which data a comparison is about, as plain values: they are part of every run's identity.

    Parameters
    ----------
    source
        A file, a folder of class folders of images or texts, a named table, or `digits`.
    sha256
        Of the file, so that a changed file is another question.
    target, task, categorical, drop, group, time, test
        As on the command line; empty for what was not given.
    image_size
        Height and width that the images of a folder are scaled to.
    cost
        What a false positive and a false negative cost, such as `fp=1,fn=20`.
    positive
        The class of two that precision, recall, F1 and cost are about; the rarer one unless given.
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
    image_size: int = 32
    cost: str = ""
    positive: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """A folder of images in memory, small: uint8 NHWC, the class of each, and the file it came from."""

    x: Array
    y: Array
    files: tuple[str, ...]
    folder: Path = Path()

    @property
    def paths(self) -> list[Path]:
        """Where the files are."""
        return [self.folder / name for name in self.files]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """A question with its data read: what it is about, and where its rows are.

    `rows` counts rows with a target, `test_share` is the share of them that a split tests on, and `test_rows` are
    the rows that every split tests on, where they are given. `imbalance` thins the classes of the training rows, and
    `positions` are the places in their file of the rows that were kept of it. `files` are those of texts, each of which
    is a row, and `fingerprint` that of a folder's content. Where the rows are a sample,
    `sample` is the size that was asked for, and `sampled_from` how many rows there are.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    class_counts: tuple[int, ...]
    rows: int
    notes: tuple[str, ...]
    test_share: float
    groups: tuple[str, ...] = ()
    imbalance: float = 1.0
    judging: ScoringRules = field(default_factory=ScoringRules)
    test_rows: Array | None = field(default=None, repr=False)
    positions: Array | None = field(default=None, repr=False)
    frame: pl.DataFrame | None = field(default=None, repr=False)
    schema: Schema | None = field(default=None, repr=False)
    images: Images | None = field(default=None, repr=False)
    files: tuple[str, ...] = field(default=(), repr=False)
    fingerprint: str = ""
    sample: int = 0
    sampled_from: int = 0
    #: Columns of numbers that one split has read for all others.
    numbers: dict[str, Array] = field(default_factory=dict[str, Array], init=False, repr=False)

    @property
    def regression(self) -> bool:
        """Whether a number is predicted and not a class."""
        return self.kind == "regression"

    @property
    def table(self) -> tuple[pl.DataFrame, Schema]:
        """The rows of a table, and what is in them."""
        assert self.frame is not None
        assert self.schema is not None
        return self.frame, self.schema

    @property
    def train_share(self) -> float:
        """The share of rows that a split trains on: neither tested on nor held out for validation."""
        return (1 - self.test_share) * (1 - VAL_SHARE / (1 - TEST_SHARE))

    @property
    def test_over_train(self) -> float:
        """The rows that a split tests on over those it trains on, by which overlapping splits are corrected.

        Where the test rows are fixed, the rows that change sides are those held out for validation.
        """
        changing = TEST_SHARE if self.test_rows is None else VAL_SHARE
        return changing / (1 - TEST_SHARE - VAL_SHARE)

    @property
    def in_time(self) -> bool:
        """Whether rows are cut by a time column, at the same places for every seed."""
        return self.schema is not None and self.schema.time is not None

    def row_name(self, row: int) -> str | int:
        """What a person finds a row by: the file of an image, or the number in the file it came from, from 1.

        Rows of a file of its own to test on are numbered in that file; none of them is ever trained on or ranked.
        """
        if self.images is not None:
            return self.images.files[row]
        if self.files:
            return self.files[row if self.positions is None else self.positions[row]]
        return int(row if self.positions is None else self.positions[row]) + 1

    def picture(self, row: int) -> Array | None:
        """The image that a row is, uint8; None for a row that is not one."""
        if self.images is not None:
            return self.images.x[row]
        frame, schema = self.table
        names = [column.name for column in schema.features]
        side = math.isqrt(len(names))
        if names != [f"pixel_{i}_{j}" for i in range(side) for j in range(side)]:
            return None
        return np.array(frame.select(names).row(row), dtype=np.uint8).reshape(side, side)

    @property
    def labels(self) -> Array | None:
        """The class of every row as an index; None for a regression."""
        if self.regression:
            return None
        if self.images is not None:
            return self.images.y
        frame, schema = self.table
        return tables.ClassTarget(name=schema.target, classes=schema.classes).transform(frame.get_column(schema.target))

    @property
    def group_indices(self) -> Array | None:
        """The group of every row as an index; None without groups."""
        if self.schema is None or self.frame is None or self.schema.group is None:
            return None
        names = group_names(self.frame.get_column(self.schema.group))
        return names.replace_strict(list(self.groups), list(range(len(self.groups)))).to_numpy()


def hash_of(source: str) -> str:
    """The hash of a file; of a folder, that of its files' names and contents; empty for a name."""
    path = Path(source)
    if path.is_file():
        return sha256_of(path)[:16]
    if path.is_dir():
        listing = "\n".join(f"{p.relative_to(path)} {sha256_of(p)}" for p in sorted(path.rglob("*")) if p.is_file())
        return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return ""


def group_names(cells: pl.Series) -> pl.Series:
    """The cells of a column of groups as names; a missing one is a group too."""
    return cells.cast(pl.String).fill_null("(missing)")
