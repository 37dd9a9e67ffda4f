"""A table as a problem: what its columns are, and which rows can be trained and tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from reweigh.bench import tables
from reweigh.bench.compare.problem import SAME_TEST, TEST_SHARE, Array, DataQuestion, Problem, group_names
from reweigh.bench.tables import Schema, TableError, values


def table_problem(
    question: DataQuestion,
    frame: pl.DataFrame,
    target: str,
    test_rows: Array | None,
    notes: tuple[str, ...],
) -> Problem:
    """The rows of a frame that have a target, and those of the question's test file.

    `test_rows` are rows of the frame that every split tests on, and `notes` what reading it had to say.
    """
    schema = tables.describe(
        frame,
        target=target,
        task=question.task or None,  # pyright: ignore[reportArgumentType]
        categorical=question.categorical,
        drop=question.drop,
        group=question.group or None,
        time=question.time or None,
    )
    height = frame.height
    if question.test:
        about_test: list[str] = []
        frame, test_rows = tables.append(frame, tables.read(question.test, target=target, notes=about_test), schema)
        notes = (*notes, *about_test, *_dropped(schema, frame[height:], Path(question.test).name))
    labels = schema.labels(frame)
    kept = np.flatnonzero(labels.is_not_null().to_numpy())
    labelled = schema.labelled(frame)
    if test_rows is not None:
        test_rows = np.flatnonzero(np.isin(kept, test_rows))
    share = TEST_SHARE if test_rows is None else len(test_rows) / labelled.height
    # Of all rows that are used, those of a test file among them; the schema has seen the training file alone.
    counts: list[int] = []
    if schema.task != "regression":
        counts = np.bincount(labels.drop_nulls().to_numpy(), minlength=len(schema.classes)).tolist()
    groups = () if schema.group is None else group_names(labelled.get_column(schema.group)).unique().sort().to_list()
    if schema.time is not None:
        notes = (*notes, "Every split leaves out another tenth of the rows to train on.", SAME_TEST)
    elif test_rows is not None:
        notes = (*notes, SAME_TEST)
    return Problem(
        name=Path(question.source).name,
        kind=schema.task,
        classes=schema.classes,
        class_counts=tuple(counts),
        groups=tuple(groups),
        rows=labelled.height,
        notes=(*notes, *schema.notes, *tables.leaks(frame, schema)),
        test_share=share,
        frame=labelled,
        schema=schema,
        test_rows=test_rows,
        positions=np.where(kept < height, kept, kept - height),
    )


def _dropped(schema: Schema, test: pl.DataFrame, name: str) -> list[str]:
    """Notes on the rows of a test file that cannot be tested on; it is refused if none can."""
    cells, unusable = test.get_column(schema.target), schema.labels(test).is_null()
    foreign = cells.filter(unusable).drop_nulls()
    missing, examples = cells.null_count(), tables.listed(values.words(foreign).unique().sort().to_list())
    what = "not a number" if schema.task == "regression" else "not a class of the training file"
    target = tables.quoted(schema.target)
    if unusable.all():
        seen = f": {examples}" if len(foreign) else ""
        raise TableError(
            f"no row of the test file {name} has a usable target {target}{seen}. Write it as in the training file."
        )
    notes: list[str] = []
    if len(foreign):
        notes.append(
            f"{len(foreign)} of {test.height} rows of {name} are dropped: their {target} is {what} ({examples})."
        )
    if missing:
        notes.append(f"{missing} of {test.height} rows of {name} have no {target} and are dropped.")
    return notes
