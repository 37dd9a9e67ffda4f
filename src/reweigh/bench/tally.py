"""What the weights did in an epoch, for one training or for many at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

#: Bins of the weight histogram, between the smallest and the largest weight of the epoch.
_BINS = 24


class EpochTally:
    """Losses and weights of one epoch of `members` trainings, kept as tensors until the epoch is over.

    Parameters
    ----------
    members
        Trainings that run at once.
    n
        Training examples of each.
    noisy
        Which labels were corrupted, `(members, n)`, if any were.
    """

    def __init__(self, members: int, n: int, noisy: Tensor | None = None) -> None:
        self.noisy = noisy
        self.newest = torch.full((members, n), float("nan"))
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def update(self, indices: Tensor, losses: Tensor, weights: Tensor) -> None:
        """Take note of one step: all three are `(members, batch)`."""
        self._steps.append((indices, losses.detach(), weights.detach()))

    def close(self, tau: Tensor | None) -> tuple[list[dict[str, Any]], Tensor]:
        """Statistics for each member, and the mean weight of each step, `(steps, members)`; then start anew."""
        # A step that was skipped has no weights, and counts as one that left the scale alone.
        means = (w.mean(-1) if w.shape[-1] else w.new_ones(len(w)) for _, _, w in self._steps)
        mean_weights = torch.stack(list(means))
        indices, losses, weights = (torch.cat(parts, -1) for parts in zip(*self._steps, strict=True))
        self._steps.clear()
        self.newest.scatter_(1, indices, losses.to(self.newest.dtype))
        columns: dict[str, Tensor] = {
            "train/loss": losses.mean(-1),
            "weights/mean": weights.mean(-1),
            "weights/min": weights.amin(-1),
            "weights/max": weights.amax(-1),
            "weights/ess_share": weights.sum(-1) ** 2 / (weights.square().sum(-1) * weights.shape[-1]),
        }
        if tau is not None:
            columns["weights/clip_share"] = (losses >= tau[:, None]).double().mean(-1)
        if self.noisy is not None:
            noisy = self.noisy.gather(1, indices).to(weights.dtype)
            columns["weights/noisy"] = (weights * noisy).sum(-1) / noisy.sum(-1)
            columns["weights/clean"] = (weights * (1 - noisy)).sum(-1) / (1 - noisy).sum(-1)
        listed = {name: column.tolist() for name, column in columns.items()}
        records = [{name: column[k] for name, column in listed.items()} for k in range(len(losses))]
        for k, record in enumerate(records):
            low, high = record["weights/min"], record["weights/max"]
            if not (math.isfinite(low) and math.isfinite(high)):  # this training broke down; others go on
                record["weights/histogram"] = [0] * _BINS
                continue
            counts = torch.histc(weights[k].float(), _BINS, min=low, max=high if high > low else low + 1e-6)
            record["weights/histogram"] = counts.int().tolist()
        return records, mean_weights
