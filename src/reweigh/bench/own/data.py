"""A table or a folder of images, compared from Python as the command does it, with the same result as a training."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from reweigh.bench.compare import answering, folder
from reweigh.bench.compare.request import Request, data_question
from reweigh.bench.errors import UserError
from reweigh.bench.files import write_atomically
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.lab.executors.local import Failure
from reweigh.bench.own.result import Comparison


def is_data(subject: Any) -> bool:
    """Whether something is a table, or names one: a frame, a file, a folder, or a named table."""
    if isinstance(subject, (str, Path)):
        return (":" not in str(subject) and " " not in str(subject).strip()) or Path(subject).exists()
    return hasattr(subject, "columns") and hasattr(subject, "shape")


def compare_data(
    subject: Any,
    *,
    target: str,
    methods: Sequence[str] = (),
    metric: str = "",
    budget: float = 120.0,
    out: Path | str | None = None,
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    models: Sequence[str] = (),
    **options: Any,
) -> Comparison:
    """Compare methods on a table or a folder of images: what `reweigh compare` does, without its terminal.

    Parameters
    ----------
    subject
        A file, a folder of class folders of images, the name of a table, or a polars or pandas frame.
    target
        The column to predict.
    methods, metric, models
        What to compare, what to judge by, and with which models; the command's defaults if not given.
    budget
        Seconds.
    out
        The folder of runs, `runs` if not given.
    jobs, device
        Processes at once, and where to train.
    quiet
        Whether to print nothing.
    **options
        `task`, `categorical`, `drop`, `group`, `time`, `test`, `image_size`, `cost` and `positive` of the command.
    """
    runs_dir = Path(out) if out is not None else Path("runs")
    source = str(subject) if isinstance(subject, (str, Path)) else str(_stored(subject, runs_dir))
    given = Request(
        question=data_question(source, target=target, **options),
        models=tuple(models),
        methods=tuple(methods),
        metric=metric,
        budget=budget,
        jobs=jobs or os.cpu_count() or 1,
        runs_dir=runs_dir,
        device=device or "cpu",
    )
    prepared = answering.prepare(given)
    with RunDisplay(Console(quiet=quiet), prepared.table.metric) as display:
        searched = answering.run(prepared, display, lambda answer, problem: None)
    if searched.answer is None:
        raise UserError(
            "no split has been finished by all methods in the time given. Call it again with a larger budget to resume."
        )
    written = answering.write(searched, progress=lambda share: None)
    runs = {(run.spec.column, run.spec.label): run.spec for run in searched.outcome.runs}
    failures = [
        Failure(spec=runs[key], reason=reason) for key, reason in searched.outcome.failed.items() if key in runs
    ]
    return Comparison(
        results=folder.results_at(prepared.root),
        root=prepared.root,
        ended=searched.outcome.ended,
        failures=failures,
        report=written.report,
        recommended=searched.answer.row,
        model=written.model,
    )


def _stored(frame: Any, folder: Path) -> Path:
    """A frame as a file named by its content, which is what a comparison belongs to."""
    table = frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame)
    content = io.BytesIO()
    table.write_parquet(content)
    name = hashlib.sha256(content.getbuffer()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"frame-{name}.parquet"
    if not path.exists():
        write_atomically(path, content.getbuffer())
    return path
