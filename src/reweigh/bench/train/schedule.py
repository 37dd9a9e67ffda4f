"""How a recipe trains: optimiser, schedule and sizes, as one value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from reweigh import _validate as validate
from reweigh.bench.train.precision import Precision


@dataclass(frozen=True, kw_only=True)
class OptimizerPlan:
    """Optimiser and schedule.

    Parameters
    ----------
    optimizer
        `"sgd"`, `"adam"` or `"adamw"`.
    lr
        Peak learning rate.
    momentum, nesterov, weight_decay
        As in torch's optimisers.
    decayed
        What `weight_decay` is for: `"all"` parameters, or `"kernels"`, the weights of linear layers and convolutions
        and neither biases nor normalisation, tokens or positions.
    batch_size, epochs
        Sizes of a step and of the whole.
    schedule
        `"constant"`, `"cosine"` to zero, or `"steps"`: times `decay` after each share of training in `milestones`.
    warmup
        Share of training over which the rate rises linearly from zero.
    nonfinite
        What to do when losses of a batch are NaN or infinite: `"propagate"` goes on, so that a training that breaks
        down is recorded as such; `"skip"` does not take that step and counts it in `train/skipped`, at most ten times
        in a row; `"raise"` ends the run with the step and the number.
    precision
        `"float32"`, or `"bfloat16"` or `"float16"` for forward passes in mixed precision.
    compiled
        Whether the model is compiled, which takes about a minute and pays for long trainings of larger models.
    final_only
        Whether supervised trainings are scored at their end alone, where no epoch is chosen. They then keep their
        outputs on validation and test rows as the arrays `val_outputs` and `test_outputs`. Averages are scored always.
        Meta-trainings look at validation tasks all the same, and at test tasks in the end.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    decayed: Literal["all", "kernels"] = "all"
    batch_size: int = 64
    epochs: int = 10
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    milestones: tuple[float, ...] = (0.8, 0.9)
    decay: float = 0.1
    warmup: float = 0.0
    nonfinite: Literal["propagate", "skip", "raise"] = "propagate"
    precision: Precision = "float32"
    compiled: bool = False
    final_only: bool = False

    def __post_init__(self) -> None:
        validate.one_of("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        validate.one_of("decayed", self.decayed, ("all", "kernels"))
        validate.one_of("schedule", self.schedule, ("constant", "cosine", "steps"))
        validate.one_of("nonfinite", self.nonfinite, ("propagate", "skip", "raise"))
        validate.one_of("precision", self.precision, ("float32", "bfloat16", "float16"))
        validate.positive("lr", self.lr)
        validate.whole("batch_size", self.batch_size, 1)
        validate.whole("epochs", self.epochs, 1)

    def rate_factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied with at a step of so many."""
        done = step / max(steps, 1)
        if self.warmup and done < self.warmup:
            return (step + 1) / max(self.warmup * steps, 1.0)
        if self.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (done - self.warmup) / max(1.0 - self.warmup, 1e-9)))
        if self.schedule == "steps":
            return self.decay ** sum(done >= milestone for milestone in self.milestones)
        return 1.0

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser over a model's parameters."""
        parameters: Any = model.parameters() if self.decayed == "all" else _kernels_apart(model)
        if self.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=self.lr,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
            )
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay)


def _kernels_apart(model: nn.Module) -> list[dict[str, Any]]:
    """Parameters that decay, and those that do not."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    kernels = {id(module.weight) for module in model.modules() if isinstance(module, kinds)}
    parts: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in model.parameters():
        parts[id(parameter) in kernels].append(parameter)
    return [{"params": parts[True]}, {"params": parts[False], "weight_decay": 0.0}]
