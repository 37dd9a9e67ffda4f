"""One supervised problem as tensors, and how well a model does on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reweigh._array import widen
from reweigh.bench.train import scores
from reweigh.bench.train.device import DeviceRows, autocast, current
from reweigh.bench.train.precision import Precision
from reweigh.method import Context


@dataclass(frozen=True, kw_only=True)
class Task:
    """Training, validation and test tensors of one problem; without classes it is a regression.

    Hyper-parameters and epochs are chosen on the validation part, which is empty where all examples are trained on
    after the choice; the test part is only ever reported. `noisy` says
    which training labels were corrupted on purpose, `meta` is a small clean and balanced set for the methods that
    need one, `groups` the group of each training example for objectives over groups, and `scorer` computes
    the scores of a part (`"val"` or `"test"`) from the outputs where accuracy and log-loss are not enough.
    """

    x_train: Tensor
    y_train: Tensor
    x_val: Tensor
    y_val: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    noisy: Tensor | None = None
    meta: tuple[Tensor, Tensor] | None = None
    groups: Tensor | None = None
    n_groups: int | None = None
    scorer: Callable[[str, Tensor], dict[str, Any]] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that there is something to score in."""
        return tuple(part for part in ("val", "test") if len(getattr(self, f"y_{part}")))

    def score(self, part: str, outputs: Tensor) -> dict[str, Any]:
        """How well these outputs do on a part, `"val"` or `"test"`."""
        return self.score_each(part, outputs[None])[0]

    def score_each(self, part: str, outputs: Tensor) -> list[dict[str, Any]]:
        """How well each of several models does on a part, from their stacked outputs `(models, examples, ...)`."""
        if self.scorer is not None:
            return [self.scorer(part, own) for own in outputs]
        targets = self.y_val if part == "val" else self.y_test
        return scores.accuracies(outputs.detach().cpu().double().numpy(), targets.cpu().numpy(), len(self.classes))

    def context(self, steps: int | None = None, classifier: tuple[Any, Any] | None = None) -> Context:
        """What methods may need to know of it."""
        return Context(
            n=len(self.x_train),
            class_counts=self.class_counts or None,
            n_groups=self.n_groups,
            targets=self.y_train,
            groups=self.groups,
            meta_loader=self.meta,
            steps=steps,
            loss="cross_entropy" if self.classes else "mse",
            classifier=classifier,
        )

    def facts(self) -> dict[str, Any]:
        """What a report wants to know of the data, for the first record of a run."""
        return {"class_names": list(self.classes), "class_counts": list(self.class_counts)}

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Training examples of each class; empty for a regression."""
        if not self.classes:
            return ()
        return tuple(torch.bincount(self.y_train, minlength=len(self.classes)).tolist())


@torch.no_grad()
def predict(
    model: Callable[[Tensor], Tensor], x: Tensor | DeviceRows, batch: int = 256, precision: Precision = "float32"
) -> Tensor:
    """The outputs of a model on the process's device, where they stay.

    A batch at a time, small enough that what convolutions pass on stays in a processor's cache.
    """
    device = current()
    parts = (
        x.split(batch) if isinstance(x, DeviceRows) else (part.to(device, non_blocking=True) for part in x.split(batch))
    )
    with autocast(device, precision):
        return torch.cat([widen(model(part)) for part in parts])
