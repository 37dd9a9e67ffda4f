"""Cost: what a step of every method takes, in time and memory, relative to plain training.

Question: the paper calls re-weighting free. What does a whole training step cost with each method of the family, data
loading and book-keeping included, relative to the same step of plain training?

    reweigh run cost
    reweigh run cost --preset smoke

Every run times its method and plain training in turns within one process, in processor time, so that a busy machine
disturbs both alike; the row `mean` is plain training against itself and shows how far one may trust the third digit.
Peak memory is that of two fresh processes, since an allocator does not give back what an earlier method took. Methods
over groups have no place here, since the data has none, nor has `rho`, whose cost is a reference model's forward pass.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.runs import Record, RunWriter
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import SupervisedSettings
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.programs.supervised import Supervised as Program
from reweigh.bench.train.task import Task
from reweigh.method import Method, method

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results

PLAIN = "mean"


@dataclass(frozen=True, kw_only=True)
class Settings(SupervisedSettings):
    """Settings of the recipe: what every supervised recipe has, and how to measure.

    Parameters
    ----------
    size
        Height and width of the images, enlarged from those of the data.
    turns, steps
        Turns of each method, and steps a turn.
    memory
        Whether to measure peak memory, on the first seed only: it takes two processes of its own, and hardly varies.
    """

    size: int = 8
    turns: int = 21
    steps: int = 10
    memory: bool = True


PRESETS = {
    "smoke": Settings(turns=5, steps=3, memory=False),
    "cpu": Settings(),
    "paper": Settings(turns=101),
}
METHODS = (
    "mean",
    "rgd",
    "rgd:divergence=revkl",
    "rgd:divergence=chi2,scaled=true",
    "rgd:normalize=mean",
    "rgd_auto",
    "redescending",
    "term:t=0.5",
    "term_ema",
    "absgd",
    "scdro",
    "kl_dro",
    "chi2_dro:rho=0.5",
    "cvar",
    "doro",
    "ohem",
    "dft",
    "superloss",
    "self_paced",
    "small_loss",
    "lin_upper",
    "entropy",
    "gain",
    "focal",
    "class_balanced",
    "class_balanced+rgd",
    "class_weights",
    "deferred",
    "ldam",
    "logit_adjusted",
    "vs",
    "gce",
    "sce",
    "label_smoothing",
    "large_margin",
    "poly",
    "class_uniform",
    "importance",
    "hardness",
    "primal_dual:rho=0.5",
    "sam",
    "rgd+sam",
    "recover",
    "projected:radius=100",
    "fine_tune",
    "crt",
    "jtt",
    "afr",
    "coteaching",
    "elr",
    "weight_decay",
    "l2rw",
    "meta_weight_net",
    "ema",
    "swad",
)


def table(preset: str) -> Table:
    """Rows and columns; the paper gives no figures."""
    smoke = preset == "smoke"
    mlp = Column(name="MLP on 8 x 8 digits", settings={"model": "mlp", "size": 8})
    cnn = Column(name="CNN on digits enlarged to 28 x 28", settings={"model": "cnn", "size": 28})
    return Table(
        title="Cost of a step",
        question="What does a training step cost, relative to plain training?",
        columns=(mlp,) if smoke else (mlp, cnn),
        methods=("mean", "rgd", "sam") if smoke else METHODS,
        metric="ratio",
        metric_name="step time over that of plain training",
        select="ratio",
        seeds=2 if smoke else 3,
        trials=1,
        smallest=True,
        controls=False,
        notes=(
            "Less is better. Times are processor time of one thread; read the ratios, not the milliseconds.",
            "A run has one measurement, so that nothing is selected.",
        ),
    )


def train(
    settings: Settings, method: Method, seed: int, writer: RunWriter, scale: np.ndarray[Any, Any] | None
) -> Iterator[Record]:
    """One measurement: one record."""
    del scale  # a factor on the loss costs nothing worth measuring
    writer.resume()
    task = _task(settings)
    own, plain = (_stepping(settings, task, m, seed) for m in (method, _plain()))
    times = _in_turns(own, plain, settings)
    ratios = times[:, 0] / times[:, 1]
    record: Record = {
        "epoch": 1,
        "progress": 1.0,
        "ratio": float(np.median(ratios)),
        "milliseconds": 1e3 * float(np.quantile(times[:, 0], 0.25)) / settings.steps,
        "plain_milliseconds": 1e3 * float(np.quantile(times[:, 1], 0.25)) / settings.steps,
    }
    if settings.memory and seed == 0:
        own_mb, plain_mb = (_measured_aside(settings, str(m), seed) for m in (method, _plain()))
        record |= {"peak_mb": own_mb, "plain_peak_mb": plain_mb}
    yield record


def answer(results: Results) -> Sequence[str]:
    """How many times as long a step of the declared row takes."""
    from reweigh.bench.report.verdict import estimate

    primary = results.table.primary
    ratios = [
        f"{estimate(column.rows[primary].values, 3)} times as long ({column.name})"
        for column in results.columns
        if primary in column.rows and len(column.rows[primary].values) > 1
    ]
    if not ratios:
        return ("",)
    return (f"A step of {primary} takes {', and '.join(ratios)} as one of plain training.",)


def figures(results: Results) -> Sequence[Figure]:
    """Time as dots on a common scale, and every number as a table."""
    from reweigh.bench.lab.results import Figure

    drawn: list[Figure] = []
    for column in results.columns:
        rows = {
            label: {
                name: _median([outcome.records[-1].get(name) for outcome in row.outcomes.values()])
                for name in ("ratio", "milliseconds", "peak_mb", "plain_peak_mb")
            }
            for label, row in column.rows.items()
        }
        drawn.append(
            Figure(
                title=f"Step time and memory: {column.name}",
                markup=_dots(column.name, rows) + _numbers(rows),
                caption="Medians over seeds. Memory is what the process grew by while it trained, above what it held "
                "before: parameters, optimiser state and activations, and the allocator's rounding.",
            )
        )
    return drawn


def _median(values: Sequence[float | None]) -> float:
    """The median of those that were measured."""
    measured = [value for value in values if value is not None]
    return float(np.median(measured)) if measured else float("nan")


def _dots(name: str, rows: dict[str, dict[str, float]]) -> str:
    from reweigh.bench.report import svg

    ratios = [values["ratio"] for values in rows.values()]
    frame = svg.Frame(
        x_domain=(min(0.9, *ratios), 1.05 * max(ratios)),
        y_domain=(len(rows) - 0.5, -0.5),
        width=860,
        height=60 + 18 * len(rows),
        labels=250,
        log_x=True,
    )
    marks: list[str] = []
    for i, (label, values) in enumerate(rows.items()):
        role = "baseline" if label == PLAIN else "primary" if label == "rgd" else "other"
        words = f"{label}: {values['ratio']:.2f} times plain training"
        marks.append(svg.dots(frame, [values["ratio"]], [i], role=role, tips=[words], radius=4))
        marks.append(svg.text(frame.x.end + 8, frame.y(i) + 4, f"{label}  {values['ratio']:.2f}"))
    return svg.chart(
        frame,
        *marks,
        title=f"Step time over that of plain training: {name}",
        description="; ".join(f"{label} {values['ratio']:.2f}" for label, values in rows.items()),
        x_label="times plain training",
        y_ticks=[],
    )


def _numbers(rows: dict[str, dict[str, float]]) -> str:
    from reweigh.bench.report.markup import table

    measured = all(np.isfinite(values["peak_mb"]) for values in rows.values())
    heads = ["method", "times plain training", "ms per step"]
    heads += ["peak MB", "more than plain training, MB"] if measured else []
    body: list[list[str]] = []
    for label, values in rows.items():
        body.append([label, f"{values['ratio']:.2f}", f"{values['milliseconds']:.3f}"])
        if measured:
            body[-1] += [f"{values['peak_mb']:.1f}", f"{values['peak_mb'] - values['plain_peak_mb']:+.1f}"]
    return table(heads, body)


def _plain() -> Method:
    return method(PLAIN)


def _task(settings: Settings) -> Task:
    """The digits at the wanted size; what is learnt does not matter, so that validation and test may be small."""
    dataset = supervised.load(settings.data)
    everything = np.arange(len(dataset.y_train))
    task = supervised.to_task(dataset, everything, everything[:16], meta=everything[:200])

    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, size=(settings.size, settings.size), mode="bilinear")

    assert task.meta is not None  # asked for above
    return Task(
        x_train=enlarged(task.x_train),
        y_train=task.y_train,
        x_val=enlarged(task.x_val),
        y_val=task.y_val,
        x_test=enlarged(task.x_test[:16]),
        y_test=task.y_test[:16],
        classes=task.classes,
        meta=(enlarged(task.meta[0]), task.meta[1]),
    )


class _Stepping:
    """A training that runs for as many steps as it is asked for, epoch after epoch, and is never evaluated."""

    def __init__(self, program: Program) -> None:
        self.program, self.driver = program, Driver(program)
        program.module.train()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            epoch, first = divmod(self.driver.step, self.program.every)
            if not first:
                self.program.epoch(epoch)
            self.driver.take()
        self.driver.tally.close(None)  # as at the end of an epoch: releases what was recorded


def _stepping(settings: Settings, task: Task, method: Method, seed: int) -> _Stepping:
    seeds = Seeds(seed)
    with seeds.ambient("init"):
        model = supervised.build(settings, task, method)
    if settings.model != "mlp":
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return _Stepping(Program(task, model, method, settings.training(), seeds))


def _in_turns(own: _Stepping, plain: _Stepping, settings: Settings) -> np.ndarray[Any, Any]:
    """Processor seconds of every turn, `(turns, 2)`: ours and plain training's, each first in every other turn."""
    both = (own, plain)
    for stepping in both:
        stepping.go(max(3, settings.steps))  # warm caches, and optimiser state in place
    times = np.empty((settings.turns, 2))
    gc.collect()
    gc.disable()  # a collection in one method's turn would be charged to it
    try:
        for turn in range(settings.turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                started = time.process_time()
                both[which].go(settings.steps)
                times[turn, which] = time.process_time() - started
    finally:
        gc.enable()
    return times


def _measured_aside(settings: Settings, text: str, seed: int) -> float:
    """Peak memory of a training in a process of its own, in megabytes above what it held before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports alone: no method has left anything in the server's memory
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_growth, args=(sender, settings, text, seed))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured the memory of {text!r} died.") from None
    finally:
        process.join()


def _growth(sender: Connection, settings: Settings, text: str, seed: int) -> None:
    torch.set_num_threads(1)
    task = _task(settings)
    # The first step of any training loads kernels: not the method's doing.
    _stepping(settings, task, _plain(), seed).go(1)
    gc.collect()
    before = _resident_mb()
    _stepping(settings, task, method(text), seed).go(3 * settings.steps)
    sender.send(max(_peak_mb() - before, 0.0))


def _peak_mb() -> float:
    """The largest memory this process has held; `ru_maxrss` alone would count that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return _status_kb(status, "VmHWM") / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 1024


def _resident_mb() -> float:
    """What this process holds now; its peak so far where the system does not say."""
    status = Path("/proc/self/status")
    return _status_kb(status, "VmRSS") / 1024 if status.exists() else _peak_mb()


def _status_kb(status: Path, name: str) -> float:
    return next(float(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
