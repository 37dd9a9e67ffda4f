"""One driver for every training: epochs and steps, rates, records, checkpoints and what the weights did.

A *program* says what differs: what one step is and what it saw, how the result is scored, and what a checkpoint has to
hold. The driver owns everything else, so that every training resumes, records, averages and is scaled alike, on any
device. Nothing is read from the device inside a step: what steps saw stays there and is read once per epoch.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench.train import distributed as processes
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import Record, UnusableCheckpointError, Writer
from reweigh.bench.train.tally import EpochTally, clip_levels
from reweigh.torch.averages import Averager

Floats = np.ndarray[Any, Any]

#: Training between two checkpoints. Saving waits for the disk, which would be a tenth of the time of short epochs.
SECONDS_APART = 2.0
#: After so many broken batches in a row it is the model that is broken, and no other batch can fix it.
_MOST_SKIPPED = 10


class StepOutput(NamedTuple):
    """What one step saw: the plain loss and the weight of each unit, and which units they were if they have numbers."""

    losses: Tensor
    weights: Tensor
    units: Tensor | None = None
    #: The step's mean weight, where it is not the mean of `weights`.
    mean_weight: Tensor | None = None


class SkippedStep(Exception):  # noqa: N818 - it is not an error
    """Raised out of a step that is not taken."""


class NonfinitePolicy:
    """What to do about losses that are NaN or infinite: `"propagate"`, `"skip"` the step, or `"raise"`.

    Parameters
    ----------
    policy
        See `Training`.
    every
        Steps of an epoch.
    """

    def __init__(self, policy: Literal["propagate", "skip", "raise"], every: int) -> None:
        self.policy = policy
        self.most = min(_MOST_SKIPPED, every - 1)
        self.every = every
        self.skipped = self.in_a_row = 0

    def judge(self, losses: Tensor, step: int) -> None:
        """Look at the losses of a step before it is taken; raises `SkippedStep` or `FloatingPointError`."""
        if self.policy == "propagate":
            return
        broken = len(losses) - int(torch.isfinite(losses).sum())
        if not broken:
            self.in_a_row = 0
            return
        if self.policy == "skip" and self.in_a_row < self.most:
            self.skipped += 1
            self.in_a_row += 1
            raise SkippedStep
        again = f", after {self.in_a_row} skipped steps" if self.in_a_row else ""
        raise FloatingPointError(
            f"{broken} of {len(losses)} losses are NaN or infinite at step {step} (epoch {step // self.every}){again}. "
            "Try a lower learning rate, or look at these examples."
        )


_PROPAGATE = NonfinitePolicy("propagate", every=1)


class Program(ABC):
    """What differs between trainings.

    A program sets these before it is driven; `module` is what `average` averages and what is put into training mode.
    """

    #: Steps of the whole training, and steps between two records.
    steps: int
    every: int
    #: The live objectives. The weights of the first are recorded; all are scaled and advanced by the driver.
    objectives: Sequence[LiveObjective]
    module: nn.Module
    device: torch.device
    average: Averager | None = None
    nonfinite: NonfinitePolicy = _PROPAGATE
    #: The factor on all losses that `device.unscale` takes out of the gradients.
    loss_scale: float = 1.0
    #: Training units with numbers of their own, whose newest losses are kept; 0 where units are drawn again.
    units: int = 0
    #: Which units have corrupted labels, if any were corrupted on purpose.
    noisy: Tensor | None = None

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """Prepare an epoch, counted from zero; the context in which its steps are taken."""
        return nullcontext()

    def set_rate(self, step: int) -> None:
        """Set learning rates for a step; a program without a schedule leaves them alone."""
        return

    @abstractmethod
    def step(self, step: int) -> StepOutput | None:
        """Take one step, counted from zero; None if it weighed nothing."""

    @abstractmethod
    def evaluate(self, *, last: bool) -> Record:
        """Scores of what has been learnt; `last` says whether training is over. The module is in evaluation mode."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold beyond objectives and average."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Resume from what `state` returned."""

    def facts(self) -> Record:
        """What a report wants to know of the data, for the first record."""
        return {}

    def keep(self, writer: Writer) -> None:
        """Keep larger results, after the last step."""
        return

    def checkpoints(self, writer: Writer) -> Checkpoints:
        """How the training is saved and resumed."""
        return WholeCheckpoints(writer)


class Checkpoints(ABC):
    """How a training is saved and resumed."""

    #: Steps between two checkpoints within an epoch; 0 for none but those at its end.
    every: int = 0

    @abstractmethod
    def load(self, driver: Driver) -> None:
        """Resume a training that has just been set up, if there is a checkpoint of it."""

    @abstractmethod
    def save(self, driver: Driver) -> None:
        """Keep where the training is."""


class WholeCheckpoints(Checkpoints):
    """All of the state in one file of the run, after epochs that end some time after the last file."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.saved = time.monotonic()

    def load(self, driver: Driver) -> None:
        """Read the file; raises `UnusableCheckpointError` if it does not fit, after which the driver cannot be used."""
        state = self.writer.resume()
        try:
            driver.load(state)
        except Exception as error:
            raise UnusableCheckpointError(f"the checkpoint does not fit the training: {error!r}") from error

    def save(self, driver: Driver) -> None:
        """Replace the file, unless that would take longer than to train again what it saves."""
        if time.monotonic() - self.saved >= SECONDS_APART:
            self.writer.checkpoint(driver.state())
            self.saved = time.monotonic()


class NoCheckpoints(Checkpoints):
    """No checkpoint: an interrupted training starts again, because it takes no longer than saving it would."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def load(self, driver: Driver) -> None:
        """Drop earlier records."""
        self.writer.rewind(0)

    def save(self, driver: Driver) -> None:
        """Save nothing."""
        return


def fit(program: Program, writer: Writer, *, scale: Floats | None = None) -> Iterator[Record]:
    """Train, yielding one record per epoch; resumes from a checkpoint, and leaves one every few seconds.

    One training on several processes is driven by this on each of them; all yield the same records, process 0 keeps
    them.

    Parameters
    ----------
    program
        What to train.
    writer
        The run's writer: checkpoints and arrays go there.
    scale
        A factor on the loss for every step: the recorded mean weights of another run, for the scale control.

    Yields
    ------
    Record
        `epoch`, `step`, `progress`, plain training loss, weight statistics, and the program's scores.
    """
    driver, checkpoints = Driver(program, scale), program.checkpoints(writer)
    checkpoints.load(driver)
    while not driver.over:
        record = driver.run_epoch(checkpoints)
        arrays = record.pop("arrays", {})
        if processes.rank() == 0:
            for name, values in arrays.items():
                writer.array(name, values)
        yield record
        checkpoints.save(driver)
    if processes.rank() == 0:
        driver.keep(writer)


class Driver:
    """A running program; `fit` drives it to its end, others may drive it epoch by epoch."""

    def __init__(self, program: Program, scale: Floats | None = None) -> None:
        self.program, self.scale = program, scale
        self.step = 0
        self.mean_weights: list[float] = []
        self.trajectory: list[Tensor] = []
        noisy = None if program.noisy is None else program.noisy[None].to(program.device)
        self.tally = EpochTally(1, program.units, noisy, device=program.device)

    @property
    def over(self) -> bool:
        """Whether the last step was taken."""
        return self.step >= self.program.steps

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self.step // self.program.every

    def run_epoch(self, checkpoints: Checkpoints | None = None) -> Record:
        """Train to the end of an epoch, keeping checkpoints on the way if there is a place for them; then score."""
        program = self.program
        program.module.train()
        with program.epoch(self.epoch):
            while True:
                self.take()
                if self.over or self.step % program.every == 0:
                    break
                if checkpoints is not None and checkpoints.every and self.step % checkpoints.every == 0:
                    checkpoints.save(self)
        epoch = -(-self.step // program.every)
        record: Record = {
            "epoch": epoch,
            "step": self.step,
            "progress": self.step / program.steps,
            **self._statistics(),
            **self._skipped(),
            **(program.facts() if epoch == 1 else {}),
        }
        program.module.eval()
        average = program.average
        with nullcontext() if average is None else average.swapped(program.module):
            record |= program.evaluate(last=self.over)
        if average is not None:
            average.observe(record.get("val/loss", float("nan")))
        return record

    def take(self) -> None:
        """Take one step and note what it saw."""
        program, step = self.program, self.step
        self.step += 1
        program.set_rate(step)
        for objective in program.objectives:
            objective.factor = program.loss_scale * (1.0 if self.scale is None else float(self.scale[step]))
            objective.forget()
        before = self._buffers()
        try:
            seen = program.step(step)
        except SkippedStep:
            program.module.zero_grad()
            for name, buffer in program.module.named_buffers():
                buffer.copy_(before[name])
            self.tally.skip()
            return
        for objective in program.objectives:
            objective.advance()
        if seen is None:
            self.tally.skip()
        else:
            units = None if seen.units is None else seen.units[None]
            self.tally.update(units, seen.losses[None], seen.weights[None], seen.mean_weight)
        if program.average is not None:
            program.average.update(program.module)

    def _buffers(self) -> dict[str, Tensor]:
        """What a forward pass changes besides the parameters: running statistics, which a broken batch would spoil."""
        if self.program.nonfinite.policy != "skip":
            return {}
        return {name: buffer.clone() for name, buffer in self.program.module.named_buffers()}

    def _statistics(self) -> Record:
        self.tally.pool()
        (statistics,), mean_weights = self.tally.close(clip_levels([self.program.objectives[0].objective]))
        self.mean_weights += mean_weights[:, 0].tolist()
        if self.program.units:
            self.trajectory.append(self.tally.newest[0].half().cpu().clone())
        return statistics

    def _skipped(self) -> Record:
        nonfinite = self.program.nonfinite
        return {"train/skipped": nonfinite.skipped} if nonfinite.policy == "skip" else {}

    def keep(self, writer: Writer) -> None:
        """Keep what is too large for a record."""
        writer.array("mean_weight", np.asarray(self.mean_weights, np.float32))
        if self.trajectory:
            writer.array("loss_trajectory", torch.stack(self.trajectory).numpy())
        self.program.keep(writer)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        average = self.program.average
        return {
            "step": self.step,
            "objectives": [objective.state_dict() for objective in self.program.objectives],
            "average": None if average is None else average.state_dict(),
            "skipped": self.program.nonfinite.skipped,
            "tally": self.tally.state(),
            "mean_weights": self.mean_weights,
            "trajectory": self.trajectory,
            "program": self.program.state(),
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Resume from a checkpoint's state, if there is one."""
        if state is None:
            return
        self.step, self.mean_weights, self.trajectory = state["step"], state["mean_weights"], state["trajectory"]
        self.program.load(state["program"])  # first, since a program may have been started with other objectives
        for objective, own in zip(self.program.objectives, state["objectives"], strict=True):
            objective.load_state_dict(own)
        if self.program.average is not None:
            self.program.average.load_state_dict(state["average"])
        self.program.nonfinite.skipped = state["skipped"]
        self.tally.load(state["tally"])
