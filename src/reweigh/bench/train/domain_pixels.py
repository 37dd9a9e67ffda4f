"""DomainBed's augmentation of photographs: a part of the picture, mirrored, in other colours, or in grey."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Array = np.ndarray[Any, Any]
#: Share of the picture's area that is kept at least; strength of each change of colour; share of grey pictures.
LEAST_AREA, JITTER, GREY = 0.7, 0.3, 0.1
_LUMINANCE = (0.299, 0.587, 0.114)


def augmented(images: Array) -> Array:
    """Pictures (NHWC, uint8) changed at random, by torch's ambient generator.

    A part of 70 to 100 % of the area with sides 3:4 to 4:3, scaled back; mirrored half of the time; brightness,
    contrast and saturation by 0.7 to 1.3 and hue turned by up to 0.3 of the circle, in this order; grey one time in
    ten. Hue is turned in the plane of colour differences (YIQ) and not in HSV.
    """
    x = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 255
    x = _coloured(_cropped(x)).clamp(0, 1)
    grey = torch.rand(len(x), 1, 1, 1) < GREY
    x = torch.where(grey, _luminance(x).expand_as(x), x)
    return (x * 255).round().byte().permute(0, 2, 3, 1).numpy()


def _cropped(x: Tensor) -> Tensor:
    n = len(x)
    area = torch.empty(n).uniform_(LEAST_AREA, 1.0)
    ratio = torch.empty(n).uniform_(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    left, top = torch.rand(n) * (1 - width), torch.rand(n) * (1 - height)
    mirror = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    zero = torch.zeros(n)
    # In the coordinates of grid_sample a picture reaches from -1 to 1.
    rows = [
        torch.stack([mirror * width, zero, 2 * left + width - 1], 1),
        torch.stack([zero, height, 2 * top + height - 1], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _coloured(x: Tensor) -> Tensor:
    n = len(x)

    def factor() -> Tensor:
        return torch.empty(n, 1, 1, 1).uniform_(1 - JITTER, 1 + JITTER)

    x = (x * factor()).clamp(0, 1)
    mean = _luminance(x).mean((2, 3), keepdim=True)
    x = ((x - mean) * factor() + mean).clamp(0, 1)
    grey = _luminance(x)
    x = ((x - grey) * factor() + grey).clamp(0, 1)
    return _turned(x, torch.empty(n).uniform_(-JITTER, JITTER) * 2 * math.pi)


def _turned(x: Tensor, angle: Tensor) -> Tensor:
    """Colours turned about the grey axis."""
    to = torch.tensor([_LUMINANCE, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
    turn = torch.zeros(len(x), 3, 3)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = angle.cos()
    turn[:, 1, 2], turn[:, 2, 1] = -angle.sin(), angle.sin()
    whole = torch.linalg.inv(to) @ turn @ to
    return torch.einsum("nij,njhw->nihw", whole, x)


def _luminance(x: Tensor) -> Tensor:
    return torch.einsum("c,nchw->nhw", torch.tensor(_LUMINANCE), x)[:, None]
