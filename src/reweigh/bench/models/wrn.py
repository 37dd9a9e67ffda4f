"""Wide residual networks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from reweigh import _validate as validate
from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["build"]


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    depth: int = 16,
    width: int = 8,
    dropout: float = 0.0,
    head: Head = "linear",
) -> nn.Module:
    """Wide ResNet of any depth 6n + 4 and width: WRN-16-8 has 11 million parameters, WRN-10-1 has 78 thousand.

    Parameters
    ----------
    shape, classes
        Of one image; number of outputs.
    depth
        10, 16, 22, 28, ...: three groups of (depth - 4)/6 blocks.
    width
        Channels of the groups are 16, 32 and 64 times this.
    dropout
        Share of channels' values left out between the convolutions of a block, while training.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    Normalisation and ReLU come before each convolution, and a 1 x 1 convolution is the shortcut where the number of
    channels changes. Convolutions start He-normal, the head's bias at zero.
    References: Zagoruyko and Komodakis, Wide residual networks, BMVC 2016.
    """
    validate.whole("depth", depth, 10)
    if (depth - 4) % 6:
        raise ValueError(f"`depth` must be 6 n + 4 (10, 16, 22, 28, ...), got {depth}.")
    validate.whole("width", width, 1)
    validate.fraction("dropout", dropout, zero=True, one=False)
    channels, _, _ = image_shape("wrn", shape, least=4)
    return _WideResNet(channels, classes, (depth - 4) // 6, width, dropout, head)


class _WideResNet(nn.Module):
    def __init__(self, channels: int, classes: int, blocks: int, width: int, dropout: float, head: Head) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        layers: list[nn.Module] = []
        before = 16
        for group in range(3):
            after = 16 * width * 2**group
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(_WideBlock(before, after, stride, dropout))
                before = after
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(before)
        self.head = make_head(head, before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.conv(x))))
        return self.head(x.mean(dim=(2, 3)))


class _WideBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = self.dropout(F.relu(self.norm2(self.conv1(active))))
        y = self.conv2(y)
        # Where the shape changes, both paths start behind the shared normalisation.
        return y + (x if self.shortcut is None else self.shortcut(active))
