"""What a method does to outputs after training: fitted on validation outputs, applied to those of every part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reweigh.bench.train.task import Task
from reweigh.post import Correction, Post
from reweigh.torch._classifier import last_layer


def corrected(
    task: Task, post: Post | None, outputs: Mapping[str, Tensor], *, scale: float = 1.0, model: nn.Module | None = None
) -> dict[str, Tensor]:
    """The outputs of each part after the correction that suits those of `"val"`; as they are without one.

    Parameters
    ----------
    task
        Its validation labels fit the correction, its training labels give the class counts.
    post
        The correction, if the method has one.
    outputs
        Of each part, `(n, classes)`.
    scale
        What turns outputs into logits: the cosines that some losses ask for are not.
    model
        The model, for corrections that look at its last layer.
    """
    # A training that was refitted on all rows has none left to fit a correction on, and no method with one.
    correction = None if post is None else fitted(task, post, outputs["val"], scale=scale, model=model)
    if correction is None:
        return dict(outputs)
    return {part: torch.from_numpy(correction(_logits(own, scale))) for part, own in outputs.items()}


def fitted(
    task: Task, post: Post | None, outputs: Tensor, *, scale: float = 1.0, model: nn.Module | None = None
) -> Correction | None:
    """The correction that suits these outputs of the validation rows; None without one.

    A training that broke down has none either, and is recorded as it is.
    """
    logits = _logits(outputs, scale)
    if post is None or not np.isfinite(logits).all():
        return None
    layer: Any = last_layer(model, type(post).__name__) if post.needs_classifier and model is not None else None
    classifier = None if layer is None else (layer.weight, layer.bias)
    return post.fit(logits, task.y_val, task.context(classifier=classifier))


def _logits(outputs: Tensor, scale: float) -> Any:
    return outputs.detach().cpu().double().numpy() * scale


def logits_per_output(loss: Any) -> float:
    """What a loss multiplies outputs by before they are logits: one but for cosines."""
    return float(loss.scale) if getattr(loss, "head", "linear") == "cosine" else 1.0
