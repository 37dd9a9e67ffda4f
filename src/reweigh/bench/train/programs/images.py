"""One training of an image classifier on any number of processes, resumable at any step on any other number.

RGD's weights are each example's own, so a step exchanges nothing between processes beyond the gradients of plain
training. Objectives that normalise over the batch sum theirs over all processes. Order, augmentation and mixup do not
depend on the number of processes: one process and many end alike, up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from reweigh.bench.catalogue.streams import Source
from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.train import device as devices
from reweigh.bench.train import distributed as processes
from reweigh.bench.train.driver import Checkpoints, Program, StepOutput
from reweigh.bench.train.input.pipeline import ImageBatch, Pipeline, mixed
from reweigh.bench.train.objective import LiveObjective
from reweigh.bench.train.records import Record, Writer
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.sharded import ShardedCheckpoints
from reweigh.method import Built, Context, Method
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import Closure


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What large trainings have beyond `OptimizerPlan`.

    Parameters
    ----------
    clip
        Largest norm of the gradient; 0 for no limit.
    mixup, cutmix, smoothing
        Parameters of the Beta distributions of mixup and CutMix, and label smoothing; all make soft targets.
    floor
        Soft targets have an entropy below which no loss goes. `"kept"` weighs by the loss as it is, as the paper
        does; `"removed"` by what is above the floor, so that re-weighting does not take it for difficulty. Gradients
        of a plain mean are the same.
    parallel
        `"ddp"` keeps a copy of the model on each process, `"fsdp"` a share of it (FSDP2).
    save_every
        Steps between two checkpoints; a checkpoint is also kept after each epoch.
    """

    clip: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0
    floor: Literal["kept", "removed"] = "kept"
    parallel: Literal["ddp", "fsdp"] = "ddp"
    save_every: int = 500

    @property
    def soft(self) -> bool:
        """Whether targets are soft."""
        return bool(self.mixup or self.cutmix or self.smoothing)


class ImageTraining(Program):
    """One image classifier, trained on this process's share of each batch.

    Parameters
    ----------
    model, method, training, extras, seeds
        The model with its initial parameters, and how to train it.
    pipeline
        Training batches.
    parts
        What is judged after each epoch, by name: a source and the numbers of its examples.
    classes
        Number of classes.
    device
        Where to train; the process's own device unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        training: OptimizerPlan,
        extras: Extras,
        pipeline: Pipeline,
        parts: dict[str, tuple[Source, np.ndarray[Any, Any]]],
        classes: int,
        seeds: Seeds,
        *,
        device: torch.device | None = None,
    ) -> None:
        self.training, self.extras, self.pipeline = training, extras, pipeline
        self.parts, self.classes, self.seeds = parts, classes, seeds
        self.device = devices.current() if device is None else device
        self.every = pipeline.steps
        self.steps = self.every * training.epochs
        labels = pipeline.inputs.source.labels[pipeline.rows]
        counts = np.bincount(labels, minlength=classes).tolist()
        built: Built = method.build(Context(n=len(pipeline.rows), class_counts=counts, steps=self.steps))
        self._check(method, built)
        self.loss = built.loss
        self.objectives = (LiveObjective(built.objective),)
        self.module = model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.model = self._parallel(self.module)
        self.optimizer = training.build(self.model)
        self.loss_scale = devices.loss_scale(training.precision)
        devices.unscale(self.optimizer, training.precision)
        if extras.clip:
            self.optimizer.register_step_pre_hook(self._clip)
        self.stepper = built.step.start(self.model)
        self.average = None if built.average is None else built.average.start(self.module)
        self._batches: Iterator[ImageBatch] | None = None

    def _check(self, method: Method, built: Built) -> None:
        if method.sampler is not None:
            raise ValueError(
                f"{method} draws examples by their losses, which would have to be exchanged between all processes. "
                "This recipe draws uniformly; leave the sampler out."
            )
        if method.post is not None:
            raise ValueError(
                f"{method} corrects outputs after training, which this recipe does not keep. Leave the correction out."
            )
        if self.extras.soft and not isinstance(built.loss, CrossEntropy):
            raise ValueError(f"mixup and smoothing make soft targets, which {method} has no loss for.")

    def _parallel(self, model: nn.Module) -> nn.Module:
        if self.extras.parallel == "fsdp" and processes.together():
            from torch.distributed.fsdp import fully_shard

            for block in getattr(model, "blocks", ()):
                fully_shard(block)
            fully_shard(model)
        elif processes.world() > 1:
            model = DistributedDataParallel(model)
        return torch.compile(model) if self.training.compiled else model  # pyright: ignore[reportReturnType]

    def _clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, self.extras.clip)

    def _context(self) -> AbstractContextManager[Any]:
        return devices.autocast(self.device, self.training.precision)

    def epoch(self, number: int) -> AbstractContextManager[Any]:
        """Batches are read from the first step on that is taken, which need not be the epoch's first."""
        self._batches = None
        self.model.train()
        return nullcontext()

    def set_rate(self, step: int) -> None:
        """The schedule's rate, for every group of parameters."""
        rate = self.training.lr * self.training.rate_factor(step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, step: int) -> StepOutput:
        """One step on this process's share of a batch."""
        (live,) = self.objectives
        if self._batches is None:
            self._batches = self.pipeline.epoch(*divmod(step, self.every))
        x, y = devices.moved(next(self._batches)[:2], self.device)
        target = y
        if self.extras.soft:
            draw, extras = self.seeds.numpy(f"mixup {step}"), self.extras
            x, target, _ = mixed(x, y, self.classes, extras.mixup, extras.smoothing, draw, extras.cutmix)
        x = x.contiguous(memory_format=torch.channels_last)
        removed = self.loss.floor(target) if self.extras.floor == "removed" and target.ndim == 2 else 0.0

        def losses_of(output: Tensor, wanted: Tensor) -> Tensor:
            return self.loss(output.float(), wanted) - removed

        closure = Closure(
            model=self.model,
            batch=(x, target),
            losses=losses_of,
            objective=lambda losses: live(losses, self.loss.sample_weight(y, step / self.steps)),
            context=self._context,
        )
        # What a model draws itself (stochastic depth) is each process's own, and the same after a restart.
        with self.seeds.ambient(f"forward {step} {processes.rank()}"):
            self.stepper.step(self.optimizer, closure)
        if live.losses is None:
            raise ValueError("this method's step computes no losses of the batch, which this recipe records.")
        return StepOutput(live.losses, torch.ones_like(live.losses) if live.weights is None else live.weights)

    @torch.no_grad()
    def evaluate(self, *, last: bool) -> Record:
        """Top-1 accuracy and plain cross entropy of each part."""
        self.model.eval()
        return {
            f"{part}/{name}": value
            for part, (source, rows) in self.parts.items()
            for name, value in self._judge(source, rows).items()
        }

    def _judge(self, source: Source, rows: np.ndarray[Any, Any]) -> dict[str, float]:
        """Each process judges its share."""
        judged: list[Tensor] = []
        # Shares may differ by a batch, and FSDP gathers parameters in every pass: all make as many passes.
        shares = -(-len(rows) // processes.world())
        size = max(self.pipeline.batch_size // processes.world(), 1)
        batches = self.pipeline.on(source).evaluation(rows)
        newest: Tensor | None = None
        for _ in range(-(-shares // size)):
            batch = next(batches, None)
            if batch is None:
                if self.extras.parallel == "fsdp" and newest is not None:
                    self.model(newest)
                continue
            x, y = devices.moved(batch[:2], self.device)
            newest = x.contiguous(memory_format=torch.channels_last)
            with self._context():
                output = self.model(newest).float()
            right = (output.argmax(-1) == y).sum()
            judged.append(torch.stack([right, nn.functional.cross_entropy(output, y, reduction="sum")]))
        pairs = torch.stack(judged).tolist() if judged else []
        right, loss = processes.summed([sum(pair[k] for pair in pairs) for k in range(2)])
        return {"accuracy": right / len(rows), "loss": loss / len(rows)}

    def checkpoints(self, writer: Writer) -> Checkpoints:
        """Shared by all processes, also within an epoch."""
        return ShardedCheckpoints(writer, self.extras.save_every)

    def state(self) -> dict[str, Any]:
        """Model and optimiser, sharded as they are, and the step's own state."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "stepper": self.stepper.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Resume."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
