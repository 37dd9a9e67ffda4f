"""ResNet-50."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.catalogue.weights import load_into
from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["ResNet50", "build"]

_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 64,
    weights: Literal["random", "imagenet"] = "random",
    head: Head = "linear",
) -> nn.Module:
    """ResNet-50: bottleneck blocks, for images of 224 x 224; 25.6 million parameters at full width.

    Parameters
    ----------
    shape, classes
        Of one image, three channels with `"imagenet"`; number of outputs.
    width
        Channels of the stem.
    weights
        `"random"`, or `"imagenet"`: torchvision's first weights, all but the last layer.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    References: He, Zhang, Ren and Sun, *Deep Residual Learning for Image Recognition*, CVPR 2016. The stride of a block
    is that of its 3 x 3 convolution, as in torchvision.
    """
    validate.whole("width", width, 1)
    validate.one_of("weights", weights, ("random", "imagenet"))
    channels, _, _ = image_shape("resnet50", shape, least=8)
    model = ResNet50(channels, width, make_head(head, 8 * width * _EXPANSION, classes))
    if weights == "imagenet":
        load_into(model, "resnet50")
    return model


class ResNet50(nn.Module):
    """Stem, four stages and the mean over the image (`embed`), and a last layer (`head`)."""

    def __init__(self, channels: int, width: int, head: nn.Module) -> None:
        super().__init__()
        stem = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        parts: list[nn.Module] = [
            nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        ]
        inputs = width
        for i, blocks in enumerate(_BLOCKS):
            stage: list[nn.Module] = []
            for k in range(blocks):
                stage.append(_Bottleneck(inputs, width * 2**i, stride=2 if k == 0 and i > 0 else 1))
                inputs = width * 2**i * _EXPANSION
            parts.append(nn.Sequential(*stage))
        parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
        self.embed, self.head = nn.Sequential(*parts), head

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images."""
        return self.head(self.embed(x))


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) + self.shortcut(x)).relu()
