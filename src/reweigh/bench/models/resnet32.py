"""The residual network of 32 layers for CIFAR."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["build"]

_BLOCKS = 5
_WIDTHS = (16, 32, 64)


def build(shape: tuple[int, ...], classes: int, *, head: Head = "linear") -> nn.Module:
    """ResNet-32 for small images: three stages of five basic blocks, 16-32-64 channels; 0.46 million parameters.

    Parameters
    ----------
    shape, classes
        Of one image; number of outputs.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    Shortcuts between stages have no parameters (option A): every other pixel, new channels filled with zeros.
    Convolutions and the linear head start He-normal.
    References: He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2.
    """
    channels, _, _ = image_shape("resnet32", shape, least=4)
    return _ResNet(channels, classes, head)


class _ResNet(nn.Module):
    def __init__(self, channels: int, classes: int, head: Head) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, _WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(_WIDTHS[0])
        blocks: list[nn.Module] = []
        before = _WIDTHS[0]
        for width in _WIDTHS:
            for _ in range(_BLOCKS):
                blocks.append(_BasicBlock(before, width))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = make_head(head, _WIDTHS[-1], classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.head(x.mean(dim=(2, 3)))


class _BasicBlock(nn.Module):
    """Two convolutions with a shortcut; the first one halves the image where the width grows."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.grow = (width - before) // 2
        stride = 2 if self.grow else 1
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.grow:
            # Half of the new channels go before the old ones, half behind.
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grow, self.grow))
        return F.relu(y + x)
