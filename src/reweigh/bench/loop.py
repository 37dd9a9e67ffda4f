"""One training at a time: any model, any method, resumable after every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench.optimizers import Training
from reweigh.bench.runs import Record, Writer
from reweigh.bench.seeds import Seeds
from reweigh.bench.tally import EpochTally
from reweigh.bench.task import Task, predict
from reweigh.method import Built, Method
from reweigh.objectives._base import Objective, descend, state_like
from reweigh.torch.steps import Closure

Augment = Callable[[Tensor, torch.Generator], Tensor]

#: After so many broken batches in a row it is the model that is broken, and no other batch can mend it.
_MOST_SKIPPED = 10


class Live:
    """An objective at work: its state, the weights of the last step, and a factor on the loss.

    A step may ask for the loss more than once (SAM does); the state moves on once, with `advance`.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.state: Any = objective.init()
        self.factor = 1.0
        self.losses: Tensor | None = None
        self.weights: Tensor | None = None
        self._following: Any = self.state

    def __call__(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        count: Any = None,
        groups: Tensor | None = None,
    ) -> Tensor:
        """The loss to descend."""
        self.losses = losses.detach()
        weighed = self.objective.weigh(
            self.losses, state_like(self.state, self.losses), measure=sample_weight, groups=groups
        )
        self.weights, self._following = weighed.weights, weighed.state
        loss = descend(losses, weighed, sample_weight, count)
        return loss if self.factor == 1.0 else loss * self.factor

    def advance(self) -> None:
        """Move the state on, after the step."""
        self.state = self._following


def fit(
    task: Task,
    model: nn.Module,
    method: Method,
    training: Training,
    seeds: Seeds,
    writer: Writer,
    *,
    scale: np.ndarray[Any, Any] | None = None,
    augment: Augment | None = None,
) -> Iterator[Record]:
    """Train, yielding one record an epoch; resumes from the writer's checkpoint and leaves one after each epoch.

    Parameters
    ----------
    task, model, method, training, seeds
        The problem, the model with its initial parameters, and how to train it.
    writer
        The run's writer: checkpoints and arrays go there.
    scale
        A factor on the loss for every step: the recorded mean weights of another run, for the scale control.
    augment
        Applied to each training batch.

    Yields
    ------
    Record
        `epoch`, `progress`, plain training loss, weight statistics, and validation and test scores.
    """
    fitting = Fitting(task, model, method, training, seeds, writer)
    fitting.restore(writer.resume())
    while fitting.epoch < training.epochs:
        yield fitting.run_epoch(scale, augment)
        writer.checkpoint(fitting.state())
    fitting.keep_arrays()


class _Noting:
    """The loss, noting down the losses of the batch itself (a bilevel step asks for those of other batches too).

    What comes first is looked at by `judge`, which may refuse the step. A step that asks again may have moved the
    parameters already, and can no longer be refused.
    """

    def __init__(
        self,
        loss: Callable[[Tensor, Tensor], Tensor],
        target: Tensor,
        live: Live,
        judge: Callable[[Tensor], None],
    ) -> None:
        self.loss, self.target, self.live, self.judge = loss, target, live, judge

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        losses = self.loss(output, target)
        if target is self.target:
            if self.live.losses is None:
                self.judge(losses.detach())
            self.live.losses = losses.detach()
        return losses


class _SkippedStep(Exception):  # noqa: N818 - it is no error
    """Thrown out of a step that is not taken."""


class Fitting:
    """The moving parts of one training, which a checkpoint has to hold; `fit` drives it, epoch by epoch."""

    def __init__(
        self, task: Task, model: nn.Module, method: Method, training: Training, seeds: Seeds, writer: Writer
    ) -> None:
        self.task, self.model, self.training, self.writer = task, model, training, writer
        n = len(task.x_train)
        batch_size = min(training.batch_size, n)
        self.steps = -(-n // batch_size) * training.epochs
        built: Built = method.build(task.context(self.steps))
        self.loss = built.loss
        self.live = Live(built.objective)
        self.sampler = built.sampler.start(n, batch_size=batch_size, seed=seeds.integer("order"), targets=task.y_train)
        self.optimizer = training.build(model.parameters())
        self.stepper = built.step.start(model)
        self.average = None if built.average is None else built.average.start(model)
        self.augmentation = seeds.torch("augmentation")
        self.meta_order = seeds.torch("meta")
        noisy = None if task.noisy is None else task.noisy[None]
        self.tally = EpochTally(1, n, noisy)
        self.epoch = self.step = self.skipped = self.skipped_in_a_row = 0
        self.mean_weights: list[float] = []
        self.trajectory: list[Tensor] = []

    def run_epoch(self, scale: np.ndarray[Any, Any] | None, augment: Augment | None) -> Record:
        """Train through the data once, and look at the result."""
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        for batch in self.sampler:
            indices = torch.as_tensor(batch)
            rate = self.training.lr * self.training.rate_factor(self.step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.live.factor = 1.0 if scale is None else float(scale[self.step])
            self.take(indices, augment)
        self.epoch += 1
        return self._record()

    def take(self, indices: Tensor, augment: Augment | None = None) -> None:
        """Take one step on these examples."""
        x, y = self.task.x_train[indices], self.task.y_train[indices]
        if augment is not None:
            x = augment(x, self.augmentation)
        progress = self.step / self.steps

        def objective(losses: Tensor) -> Tensor:
            own = self.loss.sample_weight(y, progress)
            drawn = self.sampler.sample_weight(indices, losses.detach())
            groups = None if self.task.groups is None else self.task.groups[indices]
            # A regulariser that a model has of its own is no unit's loss: it comes after weighting.
            penalty: Tensor | float = getattr(self.model, "penalty", 0.0)
            if drawn is None:
                return self.live(losses, own, groups=groups) + penalty
            # Correction factors make the estimate unbiased for the mean over the data, so the count divides it.
            measure = drawn if own is None else drawn * own
            return self.live(losses, measure, count=len(indices), groups=groups) + penalty

        closure = Closure(
            model=self.model,
            batch=(x, y),
            losses=_Noting(self.loss, y, self.live, self._refuse_broken),
            objective=objective,
            meta_batch=self._meta_batch(),
        )
        self.live.losses = self.live.weights = None
        before = self._buffers() if self.training.nonfinite == "skip" else {}
        try:
            self.stepper.step(self.optimizer, closure)
        except _SkippedStep:
            self.optimizer.zero_grad()
            for name, buffer in self.model.named_buffers():
                buffer.copy_(before[name])
            self.skipped += 1
            self.skipped_in_a_row += 1
            self.tally.update(indices[None, :0], torch.zeros(1, 0), torch.zeros(1, 0))
        else:
            self.live.advance()
            losses, weights = self._seen(x, y)
            known = torch.isfinite(losses)  # a training that breaks down is recorded as such, and draws on
            if bool(known.any()):
                self.sampler.update(indices[known], losses[known])
            self.tally.update(indices[None], losses[None], weights[None])
            if self.average is not None:
                self.average.update(self.model)
        self.step += 1

    def _buffers(self) -> dict[str, Tensor]:
        """What a forward pass changes beside the parameters: running statistics, which a broken batch would spoil."""
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def _refuse_broken(self, losses: Tensor) -> None:
        """Do what the training says about losses that are NaN or infinite."""
        if self.training.nonfinite == "propagate":
            return
        broken = len(losses) - int(torch.isfinite(losses).sum())
        if not broken:
            self.skipped_in_a_row = 0
            return
        each_epoch = self.steps // self.training.epochs
        if self.training.nonfinite == "skip" and self.skipped_in_a_row < min(_MOST_SKIPPED, each_epoch - 1):
            raise _SkippedStep
        again = f", after {self.skipped_in_a_row} steps that were skipped" if self.skipped_in_a_row else ""
        raise FloatingPointError(
            f"{broken} of {len(losses)} losses are NaN or infinite at step {self.step} (epoch {self.epoch}){again}. "
            "Try a lower learning rate, or look at these examples."
        )

    def _seen(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and weights of the batch; steps that weigh by themselves tell their own weights."""
        losses = self.live.losses
        if losses is None:  # the step looked at other data: note all the same how the batch does
            self.model.eval()
            with torch.no_grad():
                losses = self.loss(self.model(x), y)
            self.model.train()
        own: Tensor | None = getattr(self.stepper, "weights", None)
        if own is not None:
            return losses, own * len(losses)
        return losses, torch.ones_like(losses) if self.live.weights is None else self.live.weights

    def _meta_batch(self) -> tuple[Tensor, Tensor] | None:
        if self.task.meta is None:
            return None
        x, y = self.task.meta
        chosen = torch.randint(len(x), (min(len(x), self.training.batch_size),), generator=self.meta_order)
        return x[chosen], y[chosen]

    def _record(self) -> Record:
        tau = getattr(self.live.objective, "tau", None)
        (statistics,), mean_weights = self.tally.close(None if tau is None else torch.tensor([float(tau)]))
        self.mean_weights += mean_weights[:, 0].tolist()
        self.trajectory.append(self.tally.newest[0].half().clone())
        record: Record = {
            "epoch": self.epoch,
            "step": self.step,
            "progress": self.epoch / self.training.epochs,
            **statistics,
            **({"train/skipped": self.skipped} if self.training.nonfinite == "skip" else {}),
            **(self.task.facts() if self.epoch == 1 else {}),
        }
        self.model.eval()
        swapped: Any = nullcontext() if self.average is None else self.average.swapped(self.model)
        with swapped:
            for part, x in (("val", self.task.x_val), ("test", self.task.x_test)):
                found = self.task.score(part, predict(self.model, x))
                record |= {f"{part}/{name}": value for name, value in found.items()}
        if self.average is not None:
            self.average.observe(record["val/loss"])
        return record

    def keep_arrays(self) -> None:
        """Write what is too large for a record."""
        self.writer.array("mean_weight", np.asarray(self.mean_weights, np.float32))
        self.writer.array("loss_trajectory", torch.stack(self.trajectory).numpy())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "skipped": self.skipped,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "sampler": self.sampler.state_dict(),
            "objective": {name: torch.as_tensor(value) for name, value in (self.live.state or {}).items()},
            "augmentation": self.augmentation.get_state(),
            "meta_order": self.meta_order.get_state(),
            "newest": self.tally.newest,
            "mean_weights": self.mean_weights,
            "trajectory": self.trajectory,
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint's state, if there is one."""
        if state is None:
            return
        self.epoch, self.step, self.skipped = state["epoch"], state["step"], state["skipped"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.sampler.load_state_dict(state["sampler"])
        self.live.state = state["objective"] or ()
        self.augmentation.set_state(state["augmentation"])
        self.meta_order.set_state(state["meta_order"])
        self.tally.newest = state["newest"]
        self.mean_weights = state["mean_weights"]
        self.trajectory = state["trajectory"]
