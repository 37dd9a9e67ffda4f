"""Lightning: the criterion goes into `training_step` as it is; a callback logs what re-weighting does."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from reweigh import _validate as validate
from reweigh.integrations._counts import count_classes
from reweigh.integrations._missing import missing
from reweigh.monitor import Monitor

if find_spec("lightning") is None:
    raise missing("lightning", "lightning")

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from reweigh.integrations._plain_loss import PlainLoss
from reweigh.torch import Reweighted

__all__ = ["WeightLog"]

#: What is logged, under the names that `Monitor.stats` gives.
_LOGGED = ("loss", "weight_mean", "clip_share", "ess_share")


class WeightLog(Callback):
    r"""Logs what every :class:`~reweigh.torch.Reweighted` of a module does, at the logger's own frequency.

    For each criterion found in the module: the plain mean loss, the mean weight, the share of clipped units and the
    effective sample size :math:`(\sum w)^2 / (n \sum w^2)`, over all batches since the last row. In between,
    tensors stay on their device and nothing waits for them. After training, a warning reports if re-weighting did
    nothing, or nothing good. Losses whose class weights start late (LDAM) learn here how far training is, and criteria
    with `class_counts="auto"` how many examples of each class the training data has.

    Parameters
    ----------
    every
        Optimiser steps between two rows; the trainer's `log_every_n_steps` unless given.
    prefix
        Put before each name: `"reweigh/clip_share"`. A module with several criteria gets their attribute names as
        well: `"reweigh/head.criterion/clip_share"`.

    Attributes
    ----------
    monitors
        A :class:`~reweigh.Monitor` for each criterion, by its attribute name: `print(callback.monitors["loss"])`.

    Examples
    --------
    >>> import torch
    >>> from lightning.pytorch import LightningModule, Trainer
    >>> from reweigh.torch import Reweighted
    >>> class Classifier(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = torch.nn.Linear(4, 3)
    ...         self.loss = Reweighted(torch.nn.CrossEntropyLoss(), tau=1.0)
    ...     def training_step(self, batch):
    ...         return self.loss(self.net(batch[0]), batch[1])
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> log = WeightLog()
    >>> sorted(log.names(Classifier()))
    ['loss']

    Notes
    -----
    Under data parallel each rank watches its own shard, and loggers write that of rank zero, as Lightning does for
    `self.log(...)` without `sync_dist`. Where one `training_step` calls a criterion several times, the last call
    counts.
    """

    def __init__(self, *, every: int | None = None, prefix: str = "reweigh/") -> None:
        super().__init__()
        if every is not None:
            validate.whole("every", every, 1, "It is the number of optimiser steps between two rows.")
        self.every = every
        self.prefix = prefix
        self.monitors: dict[str, Monitor] = {}
        self._criteria: dict[str, Reweighted] = {}
        self._plain: dict[str, PlainLoss] = {}
        self._seen: dict[str, Tensor] = {}
        self._logged_at = 0

    def names(self, module: LightningModule) -> dict[str, Reweighted]:
        """The criteria inside a module, by attribute name."""
        return {name: part for name, part in module.named_modules() if isinstance(part, Reweighted)}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the classes of the training data for criteria that ask for it, before validation is tried out."""
        waiting = [criterion for criterion in self.names(pl_module).values() if criterion.class_counts == "auto"]
        if not waiting:
            return
        trainer.fit_loop.setup_data()  # Lightning would do it after that trial; a second call changes nothing
        loader: Any = trainer.train_dataloader
        if not hasattr(loader, "dataset"):
            raise ValueError(
                f"class_counts='auto' counts the data set of one DataLoader, got {type(loader).__name__} to train on. "
                "Pass the number of examples of each class, class_counts=[...]."
            )
        counts = count_classes(loader.dataset)
        for criterion in waiting:
            criterion.bind(counts)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the criteria; all of a model's parts exist now, and on their device."""
        self._criteria = self.names(pl_module)
        if not self._criteria:
            rank_zero_warn(
                "WeightLog found no Reweighted criterion in the module, so it has nothing to log. Keep the criterion "
                "as an attribute: `self.loss = Reweighted(nn.CrossEntropyLoss(), tau=1.0)` in `__init__`."
            )
        # Looked at by us when a row is due, never by themselves.
        self.monitors = {
            name: Monitor.of(criterion.objective, every=sys.maxsize) for name, criterion in self._criteria.items()
        }
        self._plain = {name: PlainLoss() for name in self._criteria}
        self._seen.clear()
        every = self._every(trainer)
        self._logged_at = trainer.global_step - (trainer.global_step % every if every else 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on how far training is, for losses whose class weights start late."""
        done, whole = trainer.current_epoch, trainer.max_epochs
        if whole is None or whole < 1:  # trained by steps
            done, whole = trainer.global_step, trainer.max_steps
        for criterion in self._criteria.values():
            criterion.progress = done / whole if whole > 0 else 0.0

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Advance the state of the objectives, also where an epoch ends with fewer micro-batches than a step has."""
        for criterion in self._criteria.values():
            criterion.flush()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take note of the batch, and write a row when one is due."""
        every = self._every(trainer)
        if not every:
            return
        for name, criterion in self._criteria.items():
            weights = criterion.weights
            # A criterion that was not called for this batch still holds those of an earlier one.
            if weights is None or weights is self._seen.get(name):
                continue
            self._seen[name] = weights
            self.monitors[name].update(criterion)
            self._plain[name].add(criterion)
        if trainer.global_step - self._logged_at >= every:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what is left, and report findings."""
        self._write(trainer)
        for name, monitor in self.monitors.items():
            for finding in monitor.findings():
                rank_zero_warn(f"{name}: {finding}")
        self._criteria, self._seen = {}, {}

    def _every(self, trainer: Trainer) -> int:
        return self.every or int(trainer.log_every_n_steps)  # pyright: ignore[reportAttributeAccessIssue]

    def _write(self, trainer: Trainer) -> None:
        row: dict[str, float] = {}
        for name, monitor in self.monitors.items():
            stats: dict[str, float] = {}
            monitor.on_stats = lambda _, since, stats=stats: stats.update(since)
            monitor.stats()  # hands the statistics since the last row to `on_stats`
            prefix = self.prefix if len(self.monitors) == 1 else f"{self.prefix}{name}/"
            if stats:
                stats["loss"] = self._plain[name].value()  # the monitor's is that of what the weights were made from
                self._plain[name] = PlainLoss()
            row |= {prefix + key: stats[key] for key in _LOGGED if key in stats}
        self._logged_at = trainer.global_step
        if not row:
            return
        for logger in trainer.loggers:
            # Lightning numbers the row of the n-th step n - 1: the same here, so that curves share their axis.
            logger.log_metrics(row, step=trainer.global_step - 1)
        trainer.callback_metrics.update({key: Tensor([value])[0] for key, value in row.items()})
