"""The recipe behind `reweigh.compare(train)`: the user's own training instead of ours.

A run is one call of the user's function, or one start of the user's program. Its records are the scores that come out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.bench.errors import UserError
from reweigh.bench.own import script, source
from reweigh.bench.own.folder import NAME, results_at
from reweigh.bench.own.training import Training
from reweigh.bench.train.records import Record, Writer
from reweigh.method import Method

__all__ = ["NAME", "Settings", "TrainingError", "results_at", "train"]
#: Under these keys a record holds what the run observed about itself.
MEAN_WEIGHT, FINDINGS = "run/mean_weight", "run/findings"


class TrainingError(UserError):
    """The user's training cannot be compared as it is: the message says why, and what to change."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one run needs to know: which code, at which rate, and which scores it must report."""

    #: Where the training comes from, and the fingerprint of its code.
    source: str
    fingerprint: str
    #: The factor on the user's learning rate.
    lr: float = 1.0
    #: The user's own learning rate, which `{lr}` of a command stands for after the factor.
    base_lr: float = 1.0
    #: The scores that every record must have.
    metric: str = ""
    select: str = ""
    device: str | None = None
    #: Whether learning rates are tuned, and so must be used.
    tuned: bool = False


def train(settings: Settings, method: Method, seed: int, writer: Writer, scale: Any) -> Iterator[Record]:
    """One training: every set of scores becomes a record."""
    checkpoints = _UserCheckpoints(writer)
    command = source.command_of(settings.source)
    if command is not None:
        mean_weights = yield from _checked(
            settings, checkpoints, script.run(settings, command, method, seed, writer, scale)
        )
    else:
        training = Training(method, seed, lr_factor=settings.lr, store=checkpoints, scale=scale, device=settings.device)
        function = source.load(settings.source, writer.directory.parent.parent)
        yield from _checked(settings, checkpoints, _scores(function, training))
        _check_use(training, tuned=settings.tuned)
        mean_weights = training.mean_weights()
    if mean_weights is not None:
        writer.array("mean_weight", mean_weights)


def _scores(function: source.TrainFunction, training: Training) -> Iterator[Mapping[str, Any]]:
    """What the function returns or yields, with what the weights did."""
    produced = function(training)
    if not inspect.isgenerator(produced):
        produced = iter([produced])
    for scores in produced:
        if not isinstance(scores, Mapping):
            raise TrainingError(
                f"`train` must return or yield a dict of scores such as {{'val/accuracy': 0.9}}, got "
                f"{type(scores).__name__}."
            )
        weights = training.mean_weights()
        own = {} if weights is None else {MEAN_WEIGHT: float(weights.mean()), FINDINGS: training.findings()}
        yield {**scores, **own}


def _checked(settings: Settings, checkpoints: _UserCheckpoints, scores: Any) -> Any:
    """Records of scores, numbered; the last value of the iterator is handed on."""
    while True:
        try:
            one = next(scores)
        except StopIteration as end:
            if not checkpoints.epoch:
                raise TrainingError(
                    "the training reported no scores. Yield or return a dict, or print one JSON object per line."
                ) from None
            return end.value
        for name in dict.fromkeys((settings.metric, settings.select)):
            _check_number(name, one)
        checkpoints.before_record()
        yield {"epoch": checkpoints.epoch, **{key: _plain(value) for key, value in one.items()}}
        checkpoints.epoch += 1


def _check_use(training: Training, *, tuned: bool) -> None:
    """Refuse a training that did not do what its run told it to."""
    unused = training.unused()
    if "objective" in unused or (unused and "loss" in unused):
        raise TrainingError(
            "`train` never used the method it was given, so every row would be plain training. Take the criterion "
            "from `run.criterion(nn.CrossEntropyLoss())`, or build what you need from `run.method`."
        )
    if unused:
        raise TrainingError(
            f"`train` never used the {unused[0]} of its method. Take it from `run.{unused[0]}(...)`, or leave such "
            "methods out."
        )
    if tuned and not training.used_rate:
        raise TrainingError(
            "`train` never used `run.lr_factor`, so tuning would try the same learning rate again and again. Multiply "
            "your learning rate with it, or compare with tune=1."
        )


def _check_number(name: str, scores: Mapping[str, Any]) -> None:
    if name not in scores:
        raise TrainingError(
            f"the training reports no {name!r}. It reports: {', '.join(map(repr, scores)) or 'nothing'}. Name one of "
            "those, or add it to the scores."
        )
    value = _plain(scores[name])
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TrainingError(f"the score {name!r} must be a number, got {value!r}.")


def _plain(value: Any) -> Any:
    """A NumPy or torch number as a plain one."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


class _UserCheckpoints:
    """Checkpoints of a training, with the number of records that belong to each."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._kept: Any = writer.resume()
        self._asked = self._kept is None
        self.epoch = 0

    @property
    def directory(self) -> Path:
        """The run's own folder for the user's files."""
        path = self._writer.directory / "own"
        path.mkdir(exist_ok=True)
        return path

    def checkpoint(self, state: Any) -> None:
        """Keep the place to resume from."""
        self._asked = True
        self._writer.checkpoint({"epoch": self.epoch, "state": state})

    def resume(self) -> Any | None:
        """The user's state, if an earlier attempt kept one; records continue from there."""
        self._asked = True
        if self._kept is None:
            return None
        self.epoch = int(self._kept["epoch"])
        return self._kept["state"]

    def before_record(self) -> None:
        """A training that never asks for its checkpoint starts from nothing, and so do its records."""
        if not self._asked:
            self._asked = True
            self._writer.rewind(0)
