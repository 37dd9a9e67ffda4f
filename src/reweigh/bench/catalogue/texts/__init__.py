"""Texts: documents, or texts with labels. `read` gives a `Corpus` or `Labelled` texts from the bytes of their files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reweigh.bench import catalogue, registry
from reweigh.bench.catalogue.card import Array, Loaded
from reweigh.bench.catalogue.places import Origin, contents
from reweigh.bench.errors import UserError

if TYPE_CHECKING:  # a listing reads the cards of all texts, and should not wait for polars
    import polars as pl

__all__ = ["Corpus", "Labelled", "TextMetric", "Text", "TextPart", "build", "corpus", "labelled"]

TextMetric = Literal["accuracy", "f1", "macro_f1", "matthews"]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in their order; `held` are those that the makers set aside for testing, if they did."""

    documents: Sequence[str]
    held: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class TextPart:
    """Texts, their partners where a label belongs to a pair, and labels from 0."""

    first: Sequence[str]
    labels: Array
    second: Sequence[str] | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.first), len(self.labels), *([] if self.second is None else [len(self.second)])}
        if len(sizes) > 1:
            raise UserError(f"there must be one label per text, got {sorted(sizes)}. The files do not match.")

    def take(self, rows: Iterable[int]) -> TextPart:
        """Some of the rows, in the order given."""
        rows = list(rows)
        second = None if self.second is None else [self.second[i] for i in rows]
        return TextPart([self.first[i] for i in rows], self.labels[rows], second)


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Labelled texts; `val` is None where the makers gave no validation part.

    `metric` is the number the task is judged by: accuracy, the F1 of class 1, the mean F1 of all classes or Matthews
    correlation.
    """

    train: TextPart
    val: TextPart | None
    test: TextPart
    classes: tuple[str, ...]
    metric: TextMetric = "accuracy"


@dataclass(frozen=True, kw_only=True, eq=False)
class Text(Loaded):
    """A text loaded by name; `content` are documents or labelled texts."""

    content: Corpus | Labelled

    @property
    def summary(self) -> str:
        """Documents, or labelled texts and classes."""
        if isinstance(self.content, Corpus):
            return f"{len(self.content.documents)} documents"
        return f"{len(self.content.train.first)} training texts of {len(self.content.classes)} classes"


VALUE = Text


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> Text:
    """A text from the bytes of its files, or from an installed library."""
    content = module.read(**options) if origin.card.embedded else module.read(contents(module, origin), **options)
    return Text(
        **origin.about(name),
        sha256=origin.sha256(),
        content=content,
    )


def corpus(name: str) -> Corpus:
    """Documents by their name."""
    content = catalogue.load(name, Text).content
    if not isinstance(content, Corpus):
        raise UserError(f"{name!r} is labelled text, and documents are needed. Choose {_others('Corpus')}.")
    return content


def labelled(name: str) -> Labelled:
    """Labelled texts by their name."""
    content = catalogue.load(name, Text).content
    if not isinstance(content, Labelled):
        raise UserError(f"{name!r} has no labels, and labelled text is needed. Choose {_others('Labelled')}.")
    return content


def csv(content: bytes, **options: Any) -> pl.DataFrame:
    """Separated values with a header; every column as text."""
    import polars as pl

    return pl.read_csv(io.BytesIO(content), infer_schema=False, **options)


def tsv(content: bytes, *, has_header: bool = True) -> pl.DataFrame:
    """Tab-separated values in which a quotation mark is a character like any other; every column as text.

    Lines with too few or too many tabs are left out, as the readers of these files have always done.
    """
    import polars as pl

    lines = [line.split("\t") for line in content.decode("utf-8").replace("\r\n", "\n").split("\n") if line]
    width = len(lines[0])
    header = lines[0] if has_header else [f"column_{i + 1}" for i in range(width)]
    rows = [line for line in lines[int(has_header) :] if len(line) == width]
    return pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row")


def json_lines(content: bytes) -> list[dict[str, Any]]:
    """One JSON object per line."""
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def part(frame: pl.DataFrame, first: str, label: str, classes: Sequence[str], second: str | None = None) -> TextPart:
    """The rows of a table whose label is one of the classes and whose texts are there, as texts and labels."""
    import polars as pl

    columns = [first, label, *([second] if second else [])]
    rows = frame.select(columns).drop_nulls().filter(pl.col(label).is_in(list(classes)))
    index = {name: i for i, name in enumerate(classes)}
    labels = np.array([index[name] for name in rows.get_column(label)], np.int64)
    return TextPart(rows.get_column(first).to_list(), labels, rows.get_column(second).to_list() if second else None)


def _others(kind: str) -> str:
    """The texts whose `read` gives this."""
    folder = Path(__file__).parent
    readers = {name: registry.module(__name__, folder, name, "text").read for name in registry.listing(folder)}
    return " or ".join(name for name, read in readers.items() if kind in read.__annotations__["return"])
