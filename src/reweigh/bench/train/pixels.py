"""Augmentation of a whole batch at once, on tensors of any device.

Images are NCHW tensors. Bytes stay bytes until `normalize`, and what comes out lies in channels-last memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import Array

#: Images that are looked at together.
_PIECE = 1024


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random crop, mirror and cutout, each drawn for every image on its own.

    Parameters
    ----------
    pad
        The image is mirrored outwards by this many pixels before a window of its own size is cut out; 0 for no crop.
    flip
        Whether half of the images are mirrored left to right.
    cutout
        Side of the square that is set to zero, 0 for none. The square may reach over the edge.
    cutout_probability
        Share of the images that get a square.

    Examples
    --------
    >>> import torch
    >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    >>> Augment()(images, torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])

    Notes
    -----
    `cutout` fills with zeros, which is the mean colour of normalised images: normalise first where it is used.
    """

    pad: int = 4
    flip: bool = True
    cutout: int = 0
    cutout_probability: float = 0.5

    def __post_init__(self) -> None:
        validate.whole("pad", self.pad, 0)
        validate.whole("cutout", self.cutout, 0)
        validate.fraction("cutout_probability", self.cutout_probability, zero=True)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The augmented batch, in the dtype of the images."""
        moved = random_crop_flip(images, generator, pad=self.pad, flip=self.flip)
        if not self.cutout:
            return moved
        return cutout(moved, generator, size=self.cutout, probability=self.cutout_probability)


def as_tensor(images: Array) -> Tensor:
    """NHWC images as an NCHW tensor on the same memory, which is then channels-last."""
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes 0..255 as float32 with the given mean and deviation (in units of 0..1) of each channel taken out."""
    if images.dtype != torch.uint8:
        raise TypeError(f"images to normalise must be bytes (torch.uint8), got {images.dtype}.")
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(
            f"`mean` and `std` must have one entry for each of the {images.shape[1]} channels, got {len(mean)} and "
            f"{len(std)}."
        )
    batch, _, height, width = images.shape
    # Constants as long as an image: three numbers at a time would leave vector units idle.
    scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).repeat(height * width)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device).repeat(height * width)
    flat = images.permute(0, 2, 3, 1).reshape(batch, height * width * len(mean)).to(torch.float32)
    return flat.mul_(scale).add_(shift).view(batch, height, width, len(mean)).permute(0, 3, 1, 2)


def pixel_statistics(images: Array, rows: Array | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of NHWC bytes, in units of 0..1: what `normalize` takes.

    All images are looked at, or those of `rows`, some at a time: they may lie in a file that does not fit into memory.
    """
    rows = np.arange(len(images)) if rows is None else rows
    levels = np.arange(256) / 255
    counts = np.zeros((images.shape[-1], 256), np.int64)
    for top in range(0, len(rows), _PIECE):
        piece = images[rows[top : top + _PIECE]]
        for channel, own in enumerate(counts):
            # From the histogram: exact, and without a copy of the data in floating point.
            own += np.bincount(piece[..., channel].reshape(-1), minlength=256)
    means: list[float] = []
    stds: list[float] = []
    for own in counts:
        share = own / own.sum()
        means.append(float(share @ levels))
        stds.append(float(np.sqrt(share @ (levels - means[-1]) ** 2)))
    return tuple(means), tuple(stds)


def random_crop_flip(images: Tensor, generator: torch.Generator, *, pad: int = 4, flip: bool = True) -> Tensor:
    """Each image shifted by up to `pad` pixels with its edge mirrored outwards, and perhaps mirrored left to right.

    Padding, cutting and mirroring are one look-up of pixels; the padded images are never made.
    """
    batch, channels, height, width = images.shape
    if pad >= min(height, width):
        raise ValueError(f"`pad` must be less than the image's side, got {pad} for {height} x {width}.")
    device = generator.device
    shift = torch.randint(-pad, pad + 1, (2, batch, 1), generator=generator, device=device)
    rows = _reflect(shift[0] + torch.arange(height, device=device), height)
    columns = torch.arange(width, device=device).expand(batch, width)
    if flip:
        mirrored = torch.rand(batch, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = _reflect(shift[1] + columns, width)
    first = torch.arange(batch, device=device).view(-1, 1, 1) * (height * width)
    pixels = (first + rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(-1).to(images.device)
    # With the channels last a pixel is one short row of a matrix, and the crop a selection of rows.
    table = images.permute(0, 2, 3, 1).reshape(-1, channels)
    return table.index_select(0, pixels).view(batch, height, width, channels).permute(0, 3, 1, 2)


def cutout(images: Tensor, generator: torch.Generator, *, size: int = 16, probability: float = 0.5) -> Tensor:
    """A square of zeros at a random place in some of the images.

    The corner is uniform from `-size/2` to `side - size/2 - 1`, so that a square at the edge is smaller.
    """
    batch, _, height, width = images.shape
    device = generator.device
    half = size // 2

    def band(side: int) -> Tensor:
        start = torch.randint(-half, side - half, (batch, 1), generator=generator, device=device)
        place = torch.arange(side, device=device)
        return (place >= start) & (place < start + size)

    chosen = torch.rand(batch, 1, generator=generator, device=device) < probability
    square = (band(height) & chosen).unsqueeze(2) & band(width).unsqueeze(1)
    return images.masked_fill(square.unsqueeze(1).to(images.device), 0)


def _reflect(index: Tensor, side: int) -> Tensor:
    """Positions outside 0..side-1 mirrored back inside; the edge itself is not repeated."""
    return (side - 1) - ((side - 1) - index.abs()).abs()
