"""Which sequence each label of a Trainer's batch belongs to, where rows hold several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reweigh.torch import segments

__all__ = ["BatchSegments", "after_the_first", "segments_of"]


def segments_of(inputs: dict[str, Any]) -> Tensor | None:
    """The sequence of each token of a batch: from its positions or its cumulative lengths; None if it has neither."""
    positions = inputs.get("position_ids")
    if positions is not None:
        return segments(positions[0] if positions.ndim == 3 else positions)  # one per axis of an image: any will do
    for name in ("cu_seq_lens_q", "cu_seqlens"):
        if inputs.get(name) is not None:
            return segments(cu_seqlens=inputs[name], shape=inputs["labels"].shape)
    return None


def after_the_first(numbers: Tensor) -> Tensor:
    """The sequence of the label that each position predicts; the last position predicts none and keeps its own."""
    return torch.cat([numbers[:, 1:], numbers[:, -1:]], 1)


class BatchSegments:
    """Hands the segments of each micro-batch to the loss, which sees outputs and labels alone.

    Parameters
    ----------
    trainer
        A `transformers.Trainer`; how it takes losses is wrapped.
    """

    def __init__(self, trainer: Any) -> None:
        self.current: Tensor | None = None
        self._compute = trainer.compute_loss
        trainer.compute_loss = self._loss

    def _loss(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
        self.current = segments_of(inputs)
        return self._compute(model, inputs, *arguments, **keywords)
