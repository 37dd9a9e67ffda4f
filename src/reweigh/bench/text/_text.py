"""What a file of this folder makes of its bytes, and the few ways in which bytes hold texts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

Metric = Literal["accuracy", "f1", "macro_f1", "matthews"]
Labels = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in their order; `held` are those that the makers set aside for testing, if they did."""

    documents: Sequence[str]
    held: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Part:
    """Texts, their partners where a label belongs to a pair, and labels from 0 on."""

    first: Sequence[str]
    labels: Labels
    second: Sequence[str] | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.first), len(self.labels), *([] if self.second is None else [len(self.second)])}
        if len(sizes) > 1:
            raise ValueError(f"texts and labels must be equally many, got {sorted(sizes)}. The files do not match.")

    def take(self, rows: Iterable[int]) -> Part:
        """Some of the rows, in the order given."""
        rows = list(rows)
        second = None if self.second is None else [self.second[i] for i in rows]
        return Part([self.first[i] for i in rows], self.labels[rows], second)


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Labelled texts; `val` is None where the makers gave no validation part.

    `metric` is the number the task is judged by: accuracy, the F1 of class 1, the mean F1 of all classes or Matthews
    correlation.
    """

    train: Part
    val: Part | None
    test: Part
    classes: tuple[str, ...]
    metric: Metric = "accuracy"


def files(root: Path, folder: str, names: dict[str, str]) -> dict[str, Path]:
    """The files of these names in a folder under the data root, if all of them are there."""
    found = {key: root / folder / name for key, name in names.items()}
    return found if all(path.is_file() for path in found.values()) else {}


def ending(path: str, names: dict[str, str]) -> str | None:
    """The short name of the package's file that ends like this, or None."""
    return next((key for key, name in names.items() if path.endswith(name)), None)


def csv(content: bytes, **options: Any) -> pl.DataFrame:
    """Separated values with a header; every column as text."""
    return pl.read_csv(io.BytesIO(content), infer_schema=False, **options)


def tsv(content: bytes, **options: Any) -> pl.DataFrame:
    """Tab-separated values in which a quotation mark is a character like any other; every column as text.

    Lines with too few or too many tabs are left out, as the readers of these files have always done.
    """
    options = {"has_header": True, **options}
    lines = [line.split("\t") for line in content.decode("utf-8").replace("\r\n", "\n").split("\n") if line]
    width = len(lines[0])
    header = lines[0] if options["has_header"] else [f"column_{i + 1}" for i in range(width)]
    rows = [line for line in lines[int(options["has_header"]) :] if len(line) == width]
    return pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row")


def json_lines(content: bytes) -> list[dict[str, Any]]:
    """One JSON object a line."""
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def part(frame: pl.DataFrame, first: str, label: str, classes: Sequence[str], second: str | None = None) -> Part:
    """The rows of a table whose label is one of the classes and whose texts are there, as texts and labels."""
    columns = [first, label, *([second] if second else [])]
    kept = frame.select(columns).drop_nulls().filter(pl.col(label).is_in(list(classes)))
    index = {name: i for i, name in enumerate(classes)}
    labels = np.array([index[name] for name in kept.get_column(label)], np.int64)
    return Part(kept.get_column(first).to_list(), labels, kept.get_column(second).to_list() if second else None)
