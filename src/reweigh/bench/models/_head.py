"""The last layer, which can be chosen for every model, and the check of shapes they share."""

from __future__ import annotations

from typing import Literal

from torch import nn

from reweigh import _validate as validate

Head = Literal["linear", "cosine"]


def make_head(kind: Head, features: int, classes: int) -> nn.Module:
    """A linear layer, or the cosines between features and class vectors that a margin loss such as LDAM needs."""
    validate.one_of("head", kind, ("linear", "cosine"))
    if kind == "linear":
        return nn.Linear(features, classes)
    from reweigh.torch.losses.ldam import CosineLinear

    return CosineLinear(features, classes)


def image_shape(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Channels, height and width, or an error that names what the model takes."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ValueError(
            f"{model!r} takes images of shape (channels, height, width) of at least {least} x {least}, got {shape}. "
            "Use 'mlp' or 'linear' for other shapes."
        )
    return shape[0], shape[1], shape[2]
