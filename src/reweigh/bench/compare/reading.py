"""From a file, a folder or a name to its rows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from reweigh.bench import catalogue, draws, tables
from reweigh.bench.catalogue.images import Dataset, image_folder
from reweigh.bench.catalogue.tables import NamedTable
from reweigh.bench.compare import text_folder
from reweigh.bench.compare.image_problem import about_parts, image_problem
from reweigh.bench.compare.problem import EMBEDDED, DataQuestion, Problem
from reweigh.bench.compare.scoring_rules import with_scoring_rules
from reweigh.bench.compare.table_problem import table_problem
from reweigh.bench.tables import TableError

#: The most frequent digit over the rarest, among the embedded images to train on.
_EMBEDDED_IMBALANCE = 20.0
#: Options about a table's columns and rows.
_FOR_TABLES = ("target", "task", "categorical", "drop", "group", "time", "test")


@functools.lru_cache(maxsize=1)
def load(question: DataQuestion) -> Problem:
    """Read the data of a question; a process reads it once."""
    return with_scoring_rules(_read(question), question.cost, question.positive)


def _read(question: DataQuestion) -> Problem:
    path = Path(question.source)
    if path.is_dir():
        if not image_folder.images_below(path) and text_folder.files_below(path):
            what = f"the folder of texts {path.name}, whose classes are the names of its folders"
            _refuse(question, (*_FOR_TABLES, "image_size"), what, "")
            return _text_folder(path, question)
        _refuse(
            question,
            _FOR_TABLES,
            f"the folder of images {path.name}, whose classes are the names of its folders",
            " Images to test on go into a folder test/ next to train/." if question.test else "",
        )
        return image_problem(path, question)
    if not path.exists() and question.source == EMBEDDED:
        _refuse(
            question,
            (*_FOR_TABLES, "image_size"),
            "the embedded digits",
            " To compare on a table, name its file: `reweigh compare FILE --target COLUMN`.",
        )
        return _digits()
    _refuse(question, ("image_size",), "a table", "")
    if not path.exists() and question.source.partition(":")[0] in catalogue.names("tables"):
        named = catalogue.load(question.source, NamedTable, download=True)
        test_rows = None if named.test_rows is None else np.asarray(named.test_rows)
        return table_problem(question, named.frame, question.target or named.target, test_rows, named.notes)
    notes: list[str] = []
    frame = tables.read(path, target=question.target or None, notes=notes)
    if not question.target:
        raise TableError(f"`--target` must name the column to predict; {path.name} has {tables.listed(frame.columns)}.")
    return table_problem(question, frame, question.target, None, tuple(notes))


def _refuse(question: DataQuestion, names: Sequence[str], source: str, hint: str) -> None:
    """Refuse options that mean nothing for a source: a user who gives one expects it to do something."""
    usual = DataQuestion()
    given = [f"`--{name.replace('_', '-')}`" for name in names if getattr(question, name) != getattr(usual, name)]
    if given:
        several = len(given) > 1
        raise TableError(
            f"{', '.join(given)} {'mean' if several else 'means'} nothing for {source}. "
            f"Leave {'them' if several else 'it'} out.{hint}"
        )


def _digits() -> Problem:
    """The embedded images as a table of pixels, so that a row to predict is a row of numbers."""
    digits = catalogue.load("digits", Dataset)
    x = np.concatenate([digits.x_train, digits.x_test])
    x = x.reshape(len(x), -1)
    columns = {f"pixel_{i // 8}_{i % 8}": x[:, i].astype(np.int16) for i in range(x.shape[1])}
    labels = np.concatenate([digits.y_train, digits.y_test])
    frame = pl.DataFrame(columns | {"digit": labels})
    counts = draws.longtail_counts(10, _EMBEDDED_IMBALANCE, int(digits.counts().min()))
    return Problem(
        name="scikit-learn's digits, thinned to a long tail",
        kind="multiclass",
        classes=digits.classes,
        class_counts=tuple(counts),
        rows=sum(counts) + len(digits.y_test),
        notes=(
            f"Of the images to train on, digit 0 keeps {counts[0]} and digit 9 keeps {counts[-1]}; the "
            f"{len(digits.y_test)} test images are balanced.",
            "Each split draws other images to keep, and other ones of them for validation.",
        ),
        test_share=len(digits.y_test) / len(labels),
        imbalance=_EMBEDDED_IMBALANCE,
        test_rows=np.arange(len(digits.y_train), len(labels)),
        frame=frame,
        schema=tables.describe(frame, target="digit", task="multiclass"),
    )


def _text_folder(path: Path, question: DataQuestion) -> Problem:
    """A folder of texts as a table of two columns."""
    frame, files = text_folder.classified(path.resolve())
    tested = image_folder.held_out(files)
    test_rows = None if tested is None else np.flatnonzero(tested)
    if frame.height < tables.LEAST_ROWS:
        raise TableError(
            f"the folder {path} has {frame.height} texts in class folders, and at least {tables.LEAST_ROWS} are needed."
        )
    problem = table_problem(question, frame, text_folder.CLASS, test_rows, tuple(about_parts(files, "texts")))
    return dataclasses.replace(problem, files=files)
