"""A small convolutional network for 28 x 28 and 32 x 32 images."""

from __future__ import annotations

from torch import nn

from reweigh import _validate as validate
from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["build"]


def build(
    shape: tuple[int, ...], classes: int, *, width: int = 16, hidden: int = 64, head: Head = "linear"
) -> nn.Module:
    """A small CNN: two 3 x 3 convolutions with pooling, one hidden layer, no normalisation; about 100 000 parameters.

    Parameters
    ----------
    shape, classes
        Of one image; number of outputs.
    width
        Channels of the first convolution; the second has twice as many.
    hidden
        Units of the hidden layer.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    Without batch normalisation an example's loss is its own: it does not depend on which others share its batch.
    """
    validate.whole("width", width, 1)
    validate.whole("hidden", hidden, 1)
    channels, height, side = image_shape("cnn", shape, least=4)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (side // 4), hidden),
        nn.ReLU(),
        make_head(head, hidden, classes),
    )
