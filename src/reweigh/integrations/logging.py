"""Writers for `Monitor(on_stats=...)`: a CSV file, TensorBoard, a line in the terminal, or several of them.

Each is called as `writer(step, stats)` with a dict of plain floats. Any function of that form will do as well.
"""

from __future__ import annotations

import csv
import io
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from reweigh import _validate as validate

__all__ = ["CSVWriter", "Sparkline", "TensorBoardWriter", "fan_out", "sparkline"]

LogWriter = Callable[[int, Mapping[str, float]], None]

_BLOCKS = "▁▂▃▄▅▆▇█"


def fan_out(*writers: LogWriter) -> Callable[[int, dict[str, float]], None]:
    """One writer out of several, called in their order.

    Parameters
    ----------
    *writers
        Callables of `(step, stats)`.

    Returns
    -------
    Callable
        What to pass as `on_stats`.

    Examples
    --------
    >>> import numpy as np, reweigh
    >>> steps = []
    >>> monitor = reweigh.Monitor(every=1, on_stats=fan_out(lambda step, _: steps.append(step), lambda *_: None))
    >>> monitor.update(np.ones(2), np.ones(2))
    >>> steps
    [1]
    """

    def write(step: int, stats: dict[str, float]) -> None:
        for writer in writers:
            writer(step, stats)

    return write


class CSVWriter:
    """Appends a row for each look to a CSV file that survives crashes and resumed runs.

    The header is written once. A row is one write, so a killed process leaves whole rows, and at most one torn
    line at the end, which the next run removes. A run that resumes says at which step, and rows of steps that will
    be made again are dropped.

    Parameters
    ----------
    path
        The file; folders are made.
    resumed_at
        Steps that were made before this run, 0 to start again. `None` demands a new file, so that no earlier run
        is overwritten by accident. Added to the step that the monitor, which counts from one, reports.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "weights.csv"
    >>> write = CSVWriter(path)
    >>> write(50, {"clip_share": 0.25, "loss": 1.5})
    >>> write = CSVWriter(path, resumed_at=50)  # the next day
    >>> write(50, {"clip_share": 0.125, "loss": 1.0})
    >>> print(path.read_text())
    step,clip_share,loss
    50,0.25,1.5
    100,0.125,1.0
    <BLANKLINE>
    """

    def __init__(self, path: str | os.PathLike[str], *, resumed_at: int | None = None) -> None:
        self.path = Path(path)
        self.columns: list[str] = []
        if resumed_at is not None:
            validate.whole("resumed_at", resumed_at, 0, "It is the number of steps made before.")
        self.resumed_at = resumed_at or 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or not self.path.stat().st_size:
            return
        if resumed_at is None:
            raise FileExistsError(
                f"{self.path} holds the rows of an earlier run. Pass resumed_at=<steps made before> to continue it, "
                "or another path."
            )
        self._keep_rows_up_to(resumed_at)

    def __call__(self, step: int, stats: Mapping[str, float]) -> None:
        """Append a row."""
        if not stats:  # an interval in which every unit was masked
            return
        if not self.columns:
            self.columns = list(stats)
            self._append([["step", *self.columns], self._row(step, stats)])
        elif set(stats) == set(self.columns):
            self._append([self._row(step, stats)])
        else:
            raise ValueError(
                f"{self.path} has the columns {', '.join(self.columns)}, got {', '.join(stats)}. "
                "Give each set of statistics a file of its own."
            )

    def _row(self, step: int, stats: Mapping[str, float]) -> list[str]:
        return [str(step + self.resumed_at), *(repr(float(stats[column])) for column in self.columns)]

    def _append(self, rows: Iterable[Sequence[str]]) -> None:
        # One system call on a file opened for appending: all of it is there or (nearly always) nothing.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, _lines(rows).encode())
        finally:
            os.close(descriptor)

    def _keep_rows_up_to(self, step: int) -> None:
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # what follows the last line break was torn off
        header, *rows = list(csv.reader(io.StringIO(whole))) or [[]]
        if header and header[0] != "step":
            raise ValueError(
                f"{self.path} was not written by CSVWriter: its first column is {header[0]!r}, not 'step'."
            )
        kept = [row for row in rows if int(row[0]) <= step]
        self.columns = header[1:]
        # A name that nobody can have guessed: a known one could be somebody's symbolic link to another file.
        descriptor, draft = tempfile.mkstemp(prefix=f".{self.path.name[:40]}.", suffix=".tmp", dir=self.path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_lines([header, *kept]) if header else "")
        shutil.copymode(self.path, draft)
        Path(draft).replace(self.path)


class TensorBoardWriter:
    """Writes each statistic as a scalar curve for TensorBoard.

    Parameters
    ----------
    target
        A folder for the event files, or an open `SummaryWriter` (any object with `add_scalar`) to share.
    prefix
        Put before each name: `"reweigh/clip_share"`.
    resumed_at
        Steps that were made before this run; added to the monitor's own count.

    Examples
    --------
    >>> class Printed:
    ...     def add_scalar(self, name, value, step):
    ...         print(name, value, step)
    >>> TensorBoardWriter(Printed())(50, {"clip_share": 0.25})
    reweigh/clip_share 0.25 50

    Notes
    -----
    A folder needs the packages torch and tensorboard. A writer opened here is closed by `close()`, or by using it in a
    `with` statement; one that was given is left open.
    """

    def __init__(self, target: str | os.PathLike[str] | Any, *, prefix: str = "reweigh/", resumed_at: int = 0) -> None:
        validate.whole("resumed_at", resumed_at, 0, "It is the number of steps made before.")
        self._owned = isinstance(target, (str, os.PathLike))
        self.target: Any = _summary_writer(target, resumed_at) if self._owned else target
        self.prefix = prefix
        self.resumed_at = resumed_at

    def __call__(self, step: int, stats: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        for name, value in stats.items():
            self.target.add_scalar(self.prefix + name, value, step + self.resumed_at)

    def close(self) -> None:
        """Flush and close the event file, if it was opened here."""
        if self._owned:
            self.target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sparkline:
    """Draws how one statistic has gone so far, as a line of blocks in the terminal.

    On a terminal the line is redrawn in place; into a file or pipe each look gives a line of its own.

    Parameters
    ----------
    statistic
        Which one: `"clip_share"`, `"ess_share"`, `"weight_mean"`, `"loss"` and so on.
    width
        Columns for the curve; a longer history is averaged into them.
    stream
        Where to write; standard error unless given.

    Examples
    --------
    >>> draw = Sparkline("clip_share", width=8, stream=sys.stdout)
    >>> for step, share in enumerate([1.0, 0.8, 0.5, 0.25], start=1):
    ...     draw(50 * step, {"clip_share": share})
    clip_share █ 1
    clip_share █▁ 0.8
    clip_share █▅▁ 0.5
    clip_share █▆▃▁ 0.25
    """

    def __init__(self, statistic: str = "clip_share", *, width: int = 60, stream: TextIO | None = None) -> None:
        validate.whole("width", width, 1)
        self.statistic = statistic
        self.width = width
        self.stream = stream
        self.history: list[float] = []

    def __call__(self, step: int, stats: Mapping[str, float]) -> None:
        """Add a point and draw."""
        if not stats:  # an interval in which every unit was masked
            return
        if self.statistic not in stats:
            raise KeyError(f"no statistic is called {self.statistic!r}. There are: {', '.join(stats)}.")
        self.history.append(float(stats[self.statistic]))
        stream = sys.stderr if self.stream is None else self.stream
        in_place = stream.isatty()
        stream.write(f"{chr(13) if in_place else ''}{self}{'' if in_place else chr(10)}")
        stream.flush()

    def __str__(self) -> str:
        newest = f" {self.history[-1]:.3g}" if self.history else ""
        return f"{self.statistic} {sparkline(self.history, width=self.width)}{newest}"


def sparkline(values: Sequence[float], *, width: int = 60) -> str:
    """A row of numbers as a row of blocks, from the smallest to the largest.

    Parameters
    ----------
    values
        The numbers; NaN and infinity leave a gap.
    width
        At most so many columns; more values are averaged into them.

    Returns
    -------
    str
        One character per column.

    Examples
    --------
    >>> sparkline([1, 2, 3, 4, 5, 6, 7, 8])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([0.0, float("nan"), 1.0])
    '▁ █'
    """
    columns = _averaged(values, width)
    known = [value for value in columns if math.isfinite(value)]
    if not known:
        return " " * len(columns)
    low, high = min(known), max(known)
    if low == high:  # nothing to scale by: a level line
        return "".join(_BLOCKS[-1 if low else 0] if math.isfinite(value) else " " for value in columns)
    scale = (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in columns)


def _averaged(values: Sequence[float], width: int) -> list[float]:
    """The values, or means of neighbours where there are more values than columns."""
    number = len(values)
    if number <= width:
        return list(values)
    means: list[float] = []
    for column in range(width):
        part = [v for v in values[column * number // width : (column + 1) * number // width] if math.isfinite(v)]
        means.append(sum(part) / len(part) if part else math.nan)
    return means


def _summary_writer(folder: str | os.PathLike[str], resumed_at: int) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"TensorBoardWriter needs the package {error.name}, which is not installed. Install it with "
            '`pip install tensorboard "reweigh[torch]"`.',
            name=error.name,
        ) from error
    # Steps beyond the one resumed at will be made again; TensorBoard hides their earlier points.
    return SummaryWriter(os.fspath(folder), purge_step=resumed_at + 1 if resumed_at else None)


def _lines(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
