"""Supervised learning: any model, any method, examples drawn by a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from reweigh._array import widen
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train.copies import CopiedRows
from reweigh.bench.train.correction import corrected, logits_per_output
from reweigh.bench.train.driver import NonfinitePolicy, Program, StepOutput
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import Record
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task, predict
from reweigh.method import Built, Method
from reweigh.objectives import Entropy
from reweigh.torch import entropy
from reweigh.torch.steps import SAM, Closure, Plain, TrainingRows

#: Steps that take gradients for nothing but a direction before the optimiser sees them.
_SCALED = (Plain, SAM)
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class Supervised(Program):
    """One model trained on one task.

    Parameters
    ----------
    task, model, method, training, seeds
        The problem, the model with its initial parameters, and how to train it.
    augment
        Applied to each training batch.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        method: Method,
        training: OptimizerPlan,
        seeds: Seeds,
        *,
        augment: Augmentation | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.task, self.training, self.augment = task, training, augment
        self.device = devices.current() if device is None else device
        self.module = model.to(self.device)
        if training.compiled:
            self.module.compile()  # in place: the names of parameters stay as they are
        self.units = len(task.x_train)
        self.noisy = task.noisy
        batch_size = min(training.batch_size, self.units)
        self.every = -(-self.units // batch_size)
        self.steps = self.every * training.epochs
        built: Built = method.build(task.context(self.steps))
        self.loss, self.post = built.loss, built.post
        self.objectives = (LiveObjective(built.objective),)
        self.sampler = built.sampler.start(
            self.units, batch_size=batch_size, seed=seeds.integer("order"), targets=task.y_train, groups=task.groups
        )
        if training.precision == "float16" and not isinstance(built.step, _SCALED):
            raise ValueError(
                f"gradients in float16 need a factor on the loss, which the step of {method} has no place for. Use "
                "bfloat16."
            )
        self.optimizer = training.build(self.module)
        self.loss_scale = devices.loss_scale(training.precision)
        devices.unscale(self.optimizer, training.precision)
        self.stepper = built.step.start(self.module)
        self.average = None if built.average is None else built.average.start(self.module)
        self.nonfinite = NonfinitePolicy(training.nonfinite, self.every)
        self.x, self.y = devices.DeviceRows(task.x_train, self.device), devices.DeviceRows(task.y_train, self.device)
        self.groups = None if task.groups is None else devices.DeviceRows(task.groups, self.device)
        self.training_rows = TrainingRows(inputs=self.x, targets=task.y_train, groups=task.groups)
        self.copied = CopiedRows(batch_size, self.every, seeds.integer("order"))
        self.held = {part: devices.DeviceRows(getattr(task, f"x_{part}"), self.device) for part in task.parts}
        self.meta = devices.moved(task.meta, self.device)
        self.augmentation, self.meta_order = seeds.torch("augmentation"), seeds.torch("meta")
        self._batches: Iterator[list[int]] = iter(())

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """The sampler's order of this epoch."""
        self.sampler.set_epoch(number)
        self._batches = iter(self.sampler)
        return nullcontext()

    def set_rate(self, step: int) -> None:
        """The schedule's rate, for every group of parameters."""
        rate = self.training.lr * self.training.rate_factor(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, step: int) -> StepOutput:
        """One step on the sampler's next examples."""
        indices = torch.as_tensor(next(self._batches))
        if self.stepper.copies is not None:
            indices = self.copied.batch(self.stepper.copies, step)
        return self.take(indices, step)

    def take(self, indices: Tensor, step: int) -> StepOutput:
        """One step on these examples."""
        live = self.objectives[0]
        x, y = self.x[indices], self.y[indices]
        if self.augment is not None:
            x = self.augment(x, self.augmentation)

        signals: dict[int, Tensor] = {}
        index = indices.to(self.device, non_blocking=True)

        def objective(losses: Tensor) -> Tensor:
            own = self.loss.sample_weight(y, step / self.steps)
            drawn = self.sampler.sample_weight(indices, losses.detach())
            groups = None if self.groups is None else self.groups[indices]
            seen: dict[str, Any] = {"groups": groups, "signal": signals.get(len(losses)), "index": index}
            # A regulariser that a model has of its own is not a unit's loss: it comes after weighting.
            penalty: Tensor | float = getattr(self.module, "penalty", 0.0) * self.loss_scale
            if drawn is None:
                return live(losses, own, **seen) + penalty
            # Correction factors make the estimate unbiased for the mean over the data, so the count divides it.
            measure = drawn if own is None else drawn * own
            return live(losses, measure, count=len(indices), **seen) + penalty

        def losses_of(output: Tensor, target: Tensor) -> Tensor:
            losses = self.loss(widen(output), target)
            if target is y:  # a bilevel step asks for the losses of other batches too
                # A step that asks again may have moved the parameters already, and can no longer be refused.
                if live.losses is None:
                    self.nonfinite.judge(losses.detach(), step)
                live.losses = losses.detach()
                if isinstance(live.objective, Entropy):
                    signals[len(losses)] = entropy(output)
            return losses

        closure = Closure(
            model=self.module,
            batch=(x, y),
            losses=losses_of,
            objective=objective,
            meta_batch=self._meta_batch(),
            training_rows=self.training_rows,
            index=index,
            context=lambda: devices.autocast(self.device, self.training.precision),
        )
        self.stepper.step(self.optimizer, closure)
        losses, weights = self._seen(x, y)
        self._tell_sampler(indices, losses)
        return StepOutput(losses, weights, index)

    def _tell_sampler(self, indices: Tensor, losses: Tensor) -> None:
        if not self.sampler.adaptive:
            return
        # What to draw next depends on these losses, so here the processor has to wait for them.
        losses = losses.cpu()
        known = torch.isfinite(losses)  # a training that breaks down is recorded as such, and continues to draw
        if bool(known.any()):
            self.sampler.update(indices[known], losses[known])

    def _seen(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and weights of the batch; steps that weigh by themselves report their own weights."""
        live = self.objectives[0]
        losses = live.losses
        if losses is None:  # the step looked at other data: note all the same how the batch does
            self.module.eval()
            with torch.no_grad():
                losses = self.loss(self.module(x), y)
            self.module.train()
        own: Tensor | None = getattr(self.stepper, "weights", None)
        if own is not None:
            return losses, own * len(losses)
        return losses, torch.ones_like(losses) if live.weights is None else live.weights

    def _meta_batch(self) -> tuple[Tensor, Tensor] | None:
        if self.meta is None:
            return None
        x, y = self.meta
        chosen = torch.randint(len(x), (min(len(x), self.training.batch_size),), generator=self.meta_order)
        chosen = chosen.to(self.device, non_blocking=True)
        return x[chosen], y[chosen]

    def evaluate(self, *, last: bool) -> Record:
        """Scores on validation and test examples."""
        if self.training.final_only and not last and self.average is None:
            return {}
        precision = self.training.precision
        outputs = {part: predict(self.module, x, precision=precision).cpu() for part, x in self.held.items()}
        scale = logits_per_output(self.loss)
        outputs = corrected(self.task, self.post, outputs, scale=scale, model=self.module)
        record: Record = {
            f"{part}/{name}": value
            for part, own in outputs.items()
            for name, value in self.task.score(part, own).items()
        }
        if self.training.final_only and last:
            record["arrays"] = {f"{part}_outputs": own.float().numpy() for part, own in outputs.items()}
        return record

    def facts(self) -> Record:
        """Classes and how many examples each has."""
        return self.task.facts()

    def state(self) -> dict[str, Any]:
        """Model, optimiser, step, sampler and random streams."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
            "sampler": self.sampler.state_dict(),
            "augmentation": self.augmentation.get_state(),
            "meta_order": self.meta_order.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        self.sampler.load_state_dict(state["sampler"])
        self.augmentation.set_state(state["augmentation"])
        self.meta_order.set_state(state["meta_order"])
