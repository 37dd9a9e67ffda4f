"""EfficientNet-Lite0."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.catalogue.weights import load_into
from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["EfficientNetLite0", "build"]

#: For each stage: blocks, kernel, stride of the first block, expansion, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _FEATURES = 32, 1280


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    weights: Literal["random", "imagenet"] = "random",
    part: Literal["whole", "last"] = "whole",
    head: Head = "linear",
) -> nn.Module:
    """EfficientNet-Lite0: inverted residual blocks without squeeze and excitation, ReLU6; 4.7 million parameters.

    Parameters
    ----------
    shape, classes
        Of one image, three channels with `"imagenet"`; number of outputs.
    weights
        `"random"`, or `"imagenet"`: the published ones, all but the last layer.
    part
        `"whole"`, or `"last"`: the last convolution and what follows it. It takes what `EfficientNetLite0.before_last`
        makes of an image, flattened, so that the rest stays frozen and is computed once.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    Convolutions of stride 2 pad one pixel more to the right and below, as TensorFlow does for even sizes; the published
    weights expect it. References: Tan and Le, *EfficientNet*, ICML 2019; Google's Lite variants, 2020.
    """
    validate.one_of("weights", weights, ("random", "imagenet"))
    validate.one_of("part", part, ("whole", "last"))
    if part == "last":
        return _last_part(shape, make_head(head, _FEATURES, classes), weights)
    channels, _, _ = image_shape("efficientnet_lite0", shape, least=8)
    model = EfficientNetLite0(channels, make_head(head, _FEATURES, classes))
    if weights == "imagenet":
        load_into(model, "efficientnet_lite0")
    return model


class EfficientNetLite0(nn.Module):
    """Stem, seven stages, a last convolution and the mean over the image (`embed`), and a last layer (`head`)."""

    def __init__(self, channels: int, head: nn.Module) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Sequential(*_convolution(channels, _STEM, 3, stride=2), nn.ReLU6())]
        inputs = _STEM
        for blocks, kernel, stride, expansion, outputs in _STAGES:
            stage: list[nn.Module] = []
            for k in range(blocks):
                stage.append(_InvertedResidual(inputs, outputs, kernel, stride if k == 0 else 1, expansion))
                inputs = outputs
            parts.append(nn.Sequential(*stage))
        parts.append(nn.Sequential(*_convolution(inputs, _FEATURES, 1), nn.ReLU6()))
        parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        self.embed, self.head = nn.Sequential(*parts), head

    @property
    def before_last(self) -> nn.Module:
        """Everything before the last convolution, as one row of numbers per image."""
        return nn.Sequential(*list(self.embed)[:-2], nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images."""
        return self.head(self.embed(x))


def _last_part(shape: tuple[int, ...], head: nn.Module, weights: str) -> nn.Module:
    """The last convolution, the mean over the image and the last layer."""
    channels = _STAGES[-1][-1]
    side = math.isqrt(shape[0] // channels) if len(shape) == 1 else 0
    if shape != (channels * side**2,) or not side:
        raise ValueError(f"`part='last'` takes {channels} channels of a square, flattened, got the shape {shape}.")
    whole = EfficientNetLite0(3, nn.Identity())
    if weights == "imagenet":
        load_into(whole, "efficientnet_lite0")
    last, pool = list(whole.embed)[-2:]
    for module in last.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = _FixedStatistics
    return nn.Sequential(nn.Unflatten(1, (channels, side, side)), last, pool, head)


class _FixedStatistics(nn.BatchNorm2d):
    """Normalises by the published mean and variance in training too: a few photos have none of their own to offer."""

    def train(self, mode: bool = True) -> _FixedStatistics:
        return super().train(False)


class _InvertedResidual(nn.Module):
    """Widen, convolve each channel, narrow; and add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        self.skip = stride == 1 and inputs == outputs
        wide = inputs * expansion
        widen = [*_convolution(inputs, wide, 1), nn.ReLU6()] if expansion > 1 else []
        look = [*_convolution(wide, wide, kernel, stride=stride, groups=wide), nn.ReLU6()]
        self.layers = nn.Sequential(*widen, *look, *_convolution(wide, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.skip else y


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Padding where it is not the same on both sides, convolution and normalisation."""
    before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
    uneven = [nn.ZeroPad2d((before, after, before, after))] if before != after else []
    padding = 0 if uneven else before
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    return [*uneven, convolution, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]
