"""The small network of few-shot learning."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reweigh import _validate as validate
from reweigh.bench.models._head import Head, image_shape, make_head

__all__ = ["BatchStatistics", "Conv4", "build"]

Downsample = Literal["pool", "stride"]
Statistics = Literal["running", "batch"]


class BatchStatistics(nn.Module):
    """Batch normalisation by the batch at hand, always, and without a memory.

    What `nn.BatchNorm2d(track_running_stats=False)` computes, as a layer normalisation of each channel: torch's batch
    normalisation has wrong second derivatives under `torch.func.vmap`, by some percent.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """The normalised batch."""
        by_channel = x.transpose(0, 1)
        flat = by_channel.flatten(1)
        normal = torch.addcmul(self.bias[:, None], F.layer_norm(flat, (flat.shape[1],)), self.weight[:, None])
        return normal.reshape(by_channel.shape).transpose(0, 1)


class Pool(nn.Module):
    """Maxima over 2 x 2 pixels; a last odd row or column is left out.

    `nn.MaxPool2d(2)`, which also finds out where its maxima are. Without gradients nobody asks, and five times as many
    images are pooled in the same time.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Images of half the height and width."""
        if torch.is_grad_enabled():
            return F.max_pool2d(x, 2)
        x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
        x = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(x[..., ::2], x[..., 1::2])


class Conv4(nn.Module):
    """Four blocks of convolution, normalisation and ReLU (`embed`), and a last layer (`head`)."""

    def __init__(self, embed: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.head = embed, head

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch of images."""
        return self.head(self.embed(x))


def build(
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int = 64,
    downsample: Downsample = "pool",
    statistics: Statistics = "running",
    head: Head = "linear",
) -> nn.Module:
    """Conv-4: four 3 x 3 convolutions with batch normalisation, each halving the image, and a last layer.

    Parameters
    ----------
    shape, classes
        Of one image; number of outputs.
    width
        Channels of every block.
    downsample
        `"pool"`: maxima over 2 x 2, as most few-shot work has it. `"stride"`: convolutions of stride 2 and the mean
        over what is left of the image, as MAML's authors have it for Omniglot; four times less to compute.
    statistics
        `"running"`: normalisation by running means when predicting, as everywhere. `"batch"`: by the batch at hand
        always, as in few-shot learning, where a batch is one task's images.
    head
        `"linear"` or `"cosine"`.

    Notes
    -----
    A maximum of a rising function is the function of the maximum, so pooling comes before ReLU and saves three quarters
    of it. References: Vinyals et al., NeurIPS 2016; Finn, Abbeel and Levine, ICML 2017.
    """
    validate.whole("width", width, 1)
    validate.one_of("downsample", downsample, ("pool", "stride"))
    validate.one_of("statistics", statistics, ("running", "batch"))
    pooled = downsample == "pool"
    channels, height, side = image_shape("conv4", shape, least=16 if pooled else 4)
    layers: list[nn.Module] = []
    for _ in range(4):
        # Normalisation takes any constant away again, so the convolutions have none.
        layers.append(nn.Conv2d(channels, width, 3, stride=1 if pooled else 2, padding=1, bias=False))
        layers.append(nn.BatchNorm2d(width) if statistics == "running" else BatchStatistics(width))
        layers += [Pool(), nn.ReLU()] if pooled else [nn.ReLU()]
        channels, height, side = width, _half(height, pooled), _half(side, pooled)
    layers += [nn.Flatten()] if pooled else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    features = width * height * side if pooled else width
    return Conv4(nn.Sequential(*layers), make_head(head, features, classes))


def _half(length: int, pooled: bool) -> int:
    return length // 2 if pooled else (length + 1) // 2
