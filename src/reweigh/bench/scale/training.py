"""One training of an image classifier on any number of processes, resumable at any step on any other number.

RGD's weights are each example's own, so a step needs no word between processes beyond the gradients that plain training
exchanges. Objectives that normalise over the batch sum theirs over all processes. Order, augmentation and mixup do not
depend on the number of processes: one process and many end alike, up to the rounding of sums.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from reweigh.bench.loop import Live
from reweigh.bench.optimizers import Training
from reweigh.bench.runs import Record, Writer
from reweigh.bench.scale import processes, sharded
from reweigh.bench.scale.pipeline import Pipeline, mixed
from reweigh.bench.scale.sources import Source
from reweigh.bench.seeds import Seeds
from reweigh.method import Built, Context, Method
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import Closure


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What large trainings have beyond `Training`.

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
    precision
        `"float32"`, or `"bfloat16"` for mixed precision.
    parallel
        `"ddp"` keeps a copy of the model on each process, `"fsdp"` a share of it (FSDP2).
    compiled
        Whether the model is compiled.
    save_every
        Steps between two checkpoints; a checkpoint is also kept after each epoch.
    """

    clip: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    smoothing: float = 0.0
    floor: Literal["kept", "removed"] = "kept"
    precision: Literal["float32", "bfloat16"] = "float32"
    parallel: Literal["ddp", "fsdp"] = "ddp"
    compiled: bool = False
    save_every: int = 500

    @property
    def soft(self) -> bool:
        """Whether targets are soft."""
        return bool(self.mixup or self.cutmix or self.smoothing)


def fit(
    model: nn.Module,
    method: Method,
    training: Training,
    extras: Extras,
    pipeline: Pipeline,
    parts: dict[str, tuple[Source, np.ndarray[Any, Any]]],
    classes: int,
    seeds: Seeds,
    writer: Writer,
    *,
    scale: np.ndarray[Any, Any] | None = None,
) -> Iterator[Record]:
    """Train, yielding one record an epoch; every process yields the same ones, process 0 keeps them.

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
    writer
        The run's writer; only process 0 writes through it.
    scale
        A factor on the loss for every step, for the scale control.
    """
    fitting = _Fitting(model, method, training, extras, pipeline, parts, classes, seeds, writer)
    fitting.resume()
    while fitting.step < fitting.steps:
        record = fitting.run_epoch(scale)
        yield record
        fitting.records += 1
        fitting.save()
    if processes.rank() == 0:
        writer.array("mean_weight", np.asarray(fitting.mean_weights, np.float32))


@dataclass
class _Sums:
    """What an epoch's record is made of, summed over examples; `steps` holds the mean weight of each step."""

    count: float = 0.0
    loss: float = 0.0
    weight: float = 0.0
    square: float = 0.0
    clipped: float = 0.0

    def values(self) -> list[float]:
        return [self.count, self.loss, self.weight, self.square, self.clipped]


class _Fitting:
    """The moving parts of one training."""

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        training: Training,
        extras: Extras,
        pipeline: Pipeline,
        parts: dict[str, tuple[Source, np.ndarray[Any, Any]]],
        classes: int,
        seeds: Seeds,
        writer: Writer,
    ) -> None:
        self.training, self.extras, self.pipeline = training, extras, pipeline
        self.parts, self.classes, self.seeds, self.writer = parts, classes, seeds, writer
        self.steps = pipeline.steps * training.epochs
        self.device = processes.device()
        labels = pipeline.inputs.source.labels[pipeline.rows]
        counts = np.bincount(labels, minlength=classes).tolist()
        built: Built = method.build(Context(n=len(pipeline.rows), class_counts=counts, steps=self.steps))
        self._check(method, built)
        self.loss = built.loss
        self.live = Live(built.objective)
        self.bare = model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.model = self._parallel(self.bare)
        self.optimizer = training.build(self.model.parameters())
        if extras.clip:
            self.optimizer.register_step_pre_hook(self._clip)
        self.stepper = built.step.start(self.model)
        self.average = None if built.average is None else built.average.start(self.bare)
        self.step = self.records = 0
        self.sums, self.step_weights = _Sums(), list[float]()
        self.mean_weights: list[float] = []

    def _check(self, method: Method, built: Built) -> None:
        if method.sampler is not None:
            raise ValueError(
                f"{method} draws examples by their losses, which would have to be exchanged between all processes. "
                "This recipe draws uniformly; leave the sampler out."
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
        return torch.compile(model) if self.extras.compiled else model  # pyright: ignore[reportReturnType]

    def _clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, self.extras.clip)

    def _context(self) -> AbstractContextManager[Any]:
        if self.extras.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    # --- one epoch ---

    def run_epoch(self, scale: np.ndarray[Any, Any] | None) -> Record:
        """Train to the end of the epoch, keeping checkpoints on the way, and look at the result."""
        epoch, start = divmod(self.step, self.pipeline.steps)
        self.model.train()
        for x, y, _ in self.pipeline.epoch(epoch, start):
            rate = self.training.lr * self.training.rate_factor(self.step, self.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.live.factor = 1.0 if scale is None else float(scale[self.step])
            self.take(x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True))
            if self.step % self.extras.save_every == 0 and self.step % self.pipeline.steps:
                self.save()
        return self._record(epoch + 1)

    def take(self, x: Tensor, y: Tensor) -> None:
        """Take one step on this process's share of a batch."""
        target = y
        if self.extras.soft:
            draw, extras = self.seeds.numpy(f"mixup {self.step}"), self.extras
            x, target, _ = mixed(x, y, self.classes, extras.mixup, extras.smoothing, draw, extras.cutmix)
        x = x.contiguous(memory_format=torch.channels_last)
        removed = self.loss.floor(target) if self.extras.floor == "removed" and target.ndim == 2 else 0.0

        def losses(output: Tensor, wanted: Tensor) -> Tensor:
            return self.loss(output.float(), wanted) - removed

        closure = Closure(
            model=self.model,
            batch=(x, target),
            losses=losses,
            objective=lambda found: self.live(found, self.loss.sample_weight(y, self.step / self.steps)),
            context=self._context,
        )
        self.live.losses = self.live.weights = None
        # What a model draws itself (stochastic depth) is each process's own, and the same after a restart.
        with self.seeds.ambient(f"forward {self.step} {processes.rank()}"):
            self.stepper.step(self.optimizer, closure)
        self.live.advance()
        if self.average is not None:
            self.average.update(self.bare)
        self._note()
        self.step += 1

    def _note(self) -> None:
        found, weights = self.live.losses, self.live.weights
        if found is None:
            raise ValueError("this method's step asks for no losses of the batch, which this recipe records.")
        weights = torch.ones_like(found) if weights is None else weights
        tau = getattr(self.live.objective, "tau", math.inf)
        self.sums.count += len(found)
        self.sums.loss += float(found.sum())
        self.sums.weight += float(weights.sum())
        self.sums.square += float(weights.square().sum())
        self.sums.clipped += float((found >= tau).sum())
        self.step_weights.append(float(weights.mean()))

    def _pool(self) -> None:
        """Add up over processes what each has noted since last time; process 0 holds it from then on."""
        pooled = processes.summed([*self.sums.values(), *self.step_weights])
        first = processes.rank() == 0
        self.sums = _Sums(*pooled[:5]) if first else _Sums()
        self.mean_weights += [value / processes.world() for value in pooled[5:]]
        self.step_weights = []

    def _record(self, epoch: int) -> Record:
        self._pool()
        sums = _Sums(*processes.summed(self.sums.values()))
        self.sums = _Sums()
        record: Record = {
            "epoch": epoch,
            "step": self.step,
            "progress": self.step / self.steps,
            "train/loss": sums.loss / sums.count,
            "weights/mean": sums.weight / sums.count,
            "weights/ess_share": sums.weight**2 / (sums.square * sums.count),
            "weights/clip_share": sums.clipped / sums.count,
        }
        swapped: Any = nullcontext() if self.average is None else self.average.swapped(self.bare)
        self.model.eval()
        with swapped:
            for part, (source, rows) in self.parts.items():
                record |= {f"{part}/{name}": value for name, value in self._judge(source, rows).items()}
        if self.average is not None:
            self.average.observe(record["val/loss"])
        return record

    @torch.no_grad()
    def _judge(self, source: Source, rows: np.ndarray[Any, Any]) -> dict[str, float]:
        """Top-1 accuracy and plain cross entropy, each process on its share."""
        right = loss = 0.0
        # Shares may differ by a batch, and FSDP gathers parameters in every pass: all make as many passes.
        shares = -(-len(rows) // processes.world())
        size = max(self.pipeline.batch_size // processes.world(), 1)
        batches = self.pipeline.on(source).evaluation(rows)
        last: Tensor | None = None
        for _ in range(-(-shares // size)):
            batch = next(batches, None)
            if batch is None:
                if self.extras.parallel == "fsdp" and last is not None:
                    self.model(last)
                continue
            x, y = batch[0].to(self.device), batch[1].to(self.device)
            last = x.contiguous(memory_format=torch.channels_last)
            with self._context():
                output = self.model(last).float()
            right += float((output.argmax(-1) == y).sum())
            loss += float(nn.functional.cross_entropy(output, y, reduction="sum"))
        right, loss = processes.summed([right, loss])
        return {"accuracy": right / len(rows), "loss": loss / len(rows)}

    # --- checkpoints ---

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "stepper": self.stepper.state_dict()}
        if self.average is not None:
            state["average"] = self.average.state_dict()
        return state

    def save(self) -> None:
        """Keep a checkpoint."""
        self._pool()
        progress = {
            "step": self.step,
            "records": self.records,
            "sums": self.sums.values(),
            "mean_weights": self.mean_weights,
            "objective": {name: torch.as_tensor(v).tolist() for name, v in (self.live.state or {}).items()},
        }
        sharded.save(self.writer.run.directory, self.step, self._state(), progress)

    def resume(self) -> None:
        """Go on from the newest checkpoint, whatever number of processes wrote it; note where this start began."""
        found = sharded.newest(self.writer.run.directory)
        kept = 0 if found is None else int(found[1]["records"])
        # The records are the truth: without them the checkpoint cannot be trusted.
        whole = processes.broadcast(self.writer.rewind(kept) if processes.rank() == 0 else None)
        if found is not None and whole:
            self._restore(*found)
        if processes.rank() == 0:
            with (self.writer.run.directory / "starts.jsonl").open("a") as starts:
                starts.write(json.dumps({"step": self.step, "processes": processes.world()}) + "\n")

    def _restore(self, path: Path, progress: dict[str, Any]) -> None:
        state = self._state()
        sharded.load(path, state)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step, self.records = int(progress["step"]), int(progress["records"])
        self.sums = _Sums(*progress["sums"]) if processes.rank() == 0 else _Sums()
        self.mean_weights = list(progress["mean_weights"])
        if progress["objective"]:
            self.live.state = {name: torch.tensor(value) for name, value in progress["objective"].items()}
