"""What the weights did in an epoch, for one training or for many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reweigh.bench.train import device as devices
from reweigh.bench.train import distributed as processes
from reweigh.objectives import Objective

#: Bins of the weight histogram, between the smallest and the largest weight of the epoch.
_BINS = 24


def clip_levels(objectives: Sequence[Objective]) -> Tensor | None:
    """The clip level of each member's objective, NaN for one that has none; None if no member has one."""
    levels = [objective.clip_level for objective in objectives]
    if all(level is None for level in levels):
        return None
    return torch.tensor([math.nan if level is None else float(level) for level in levels])


class EpochTally:
    """Losses and weights of one epoch of `members` trainings, kept on their device until the epoch is over.

    Parameters
    ----------
    members
        Trainings that run at once.
    n
        Training units of each that have numbers, whose newest losses are kept; 0 where units have none.
    noisy
        Which labels were corrupted, `(members, n)`, if any were.
    device
        Where the trainings run.
    """

    def __init__(
        self, members: int, n: int, noisy: Tensor | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.noisy = noisy
        self.members = members
        self.newest = torch.full((members, n), float("nan"), device=device)
        self._steps: list[tuple[Tensor | None, Tensor, Tensor]] = []
        self._means: list[Tensor] = []
        #: How many of both are known to all processes of the training.
        self._pooled = (0, 0)

    def update(self, units: Tensor | None, losses: Tensor, weights: Tensor, mean: Tensor | None = None) -> None:
        """Take note of one step: the numbers of its units, their losses and weights, all `(members, batch)`.

        `mean` is the step's mean weight, where that is not the mean of these weights.
        """
        self._steps.append((units, losses.detach(), weights.detach()))
        self._means.append(weights.detach().mean(-1) if mean is None else mean.detach().expand(self.members))

    def skip(self) -> None:
        """Take note of a step that weighed nothing: it left the scale alone."""
        self._means.append(self.newest.new_ones(self.members))

    def pool(self) -> None:
        """Join what the processes of one training have noted since the last time; all hold all of it afterwards."""
        if processes.world() == 1:
            return
        steps, means = self._pooled
        own = devices.moved((self._steps[steps:], self._means[means:]), torch.device("cpu"))
        parts = devices.moved(processes.gathered(own), self.newest.device)
        self._steps[steps:] = [step for part, _ in parts for step in part]
        self._means[means:] = [torch.stack(same).mean(0) for same in zip(*(part for _, part in parts), strict=True)]
        self._pooled = len(self._steps), len(self._means)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: newest losses, and the steps of an epoch that is not over."""
        return {"newest": self.newest, "steps": list(self._steps), "means": list(self._means)}

    def load(self, state: dict[str, Any]) -> None:
        """Resume from what `state` returned after pooling, on any number of processes."""
        self.newest.copy_(state["newest"])
        self._steps, self._means = devices.moved((state["steps"], state["means"]), self.newest.device)
        self._pooled = len(self._steps), len(self._means)

    def close(self, levels: Tensor | None) -> tuple[list[dict[str, Any]], Tensor]:
        """Statistics for each member, and the mean weight of each step, `(steps, members)`; then start over.

        `levels` are those of `clip_levels`: a member without one has no clip share. There are no statistics where no
        step weighed anything.
        """
        mean_weights = torch.stack(self._means).cpu()
        self._means.clear()
        self._pooled = (0, 0)
        if not self._steps:
            return [{} for _ in range(self.members)], mean_weights
        units, losses, weights = zip(*self._steps, strict=True)
        self._steps.clear()
        losses, weights = torch.cat(losses, -1), torch.cat(weights, -1)
        indices = torch.cat(units, -1) if self.newest.shape[1] else None
        if indices is not None:
            self.newest.scatter_(1, indices, losses.to(self.newest.dtype))
        levels = None if levels is None else levels.to(losses.device)
        columns: dict[str, Tensor] = {
            "train/loss": losses.mean(-1),
            "weights/mean": weights.mean(-1),
            "weights/min": weights.amin(-1),
            "weights/max": weights.amax(-1),
            "weights/ess_share": weights.sum(-1) ** 2 / (weights.square().sum(-1) * weights.shape[-1]),
        }
        if levels is not None:
            # Divided on the host: not every device has double precision.
            shares = (losses >= levels[:, None]).sum(-1).cpu().double() / losses.shape[-1]
            columns["weights/clip_share"] = torch.where(levels.cpu().isnan(), math.nan, shares)
        if self.noisy is not None and indices is not None:
            noisy = self.noisy.gather(1, indices).to(weights.dtype)
            columns["weights/noisy"] = (weights * noisy).sum(-1) / noisy.sum(-1)
            columns["weights/clean"] = (weights * (1 - noisy)).sum(-1) / (1 - noisy).sum(-1)
        listed = {name: column.tolist() for name, column in columns.items()}
        records = [{name: column[k] for name, column in listed.items()} for k in range(len(losses))]
        for k, record in enumerate(records):
            if math.isnan(record.get("weights/clip_share", 0.0)):
                del record["weights/clip_share"]
            low, high = record["weights/min"], record["weights/max"]
            if not (math.isfinite(low) and math.isfinite(high)):  # this training broke down; the others continue
                record["weights/histogram"] = [0] * _BINS
                continue
            counts = torch.histc(weights[k].float(), _BINS, min=low, max=high if high > low else low + 1e-6)
            record["weights/histogram"] = counts.int().tolist()
        return records, mean_weights
