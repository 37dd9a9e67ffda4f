"""From a source to batches: which examples, in which order, changed in which way.

All of it is a function of seed, epoch and example, and of nothing else: the batch of a step is the same whatever the
number of processes that share it, and a training that resumes elsewhere sees what it would have seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from reweigh.bench.catalogue.card import Array
from reweigh.bench.catalogue.streams import Source
from reweigh.bench.train import device as devices
from reweigh.bench.train import distributed as processes

#: ImageNet's mean and deviation of each channel.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Mixup pairs within blocks of so many examples, so that partners are the same on any number of processes.
BLOCK = 4


@dataclass(frozen=True, kw_only=True)
class ImageTransform:
    """How an image becomes an input.

    Parameters
    ----------
    size
        Height and width.
    augment
        `"none"`; `"shift"` for a mirrored image moved by up to an eighth of its side; `"inception"` for a random
        part of the image of 8 to 100 % of its area, scaled and mirrored.
    randaugment
        Number of random changes of colour and shape after that, and their strength of 30: `(2, 10)`; none if empty.
    """

    size: int
    augment: Literal["none", "shift", "inception"] = "none"
    randaugment: tuple[int, ...] = ()

    def train(self, image: Any, draw: np.random.Generator) -> Tensor:
        """A training input."""
        from reweigh.bench.train.input import transforms as images

        if self.augment == "inception":
            image = images.mirrored(images.inception_crop(image, self.size, draw), draw)
        elif self.augment == "shift":
            image = images.mirrored(images.shifted(images.central(image, self.size, 1.0), draw), draw)
        else:
            image = images.central(image, self.size, 1.0)
        if self.randaugment:
            number, strength = self.randaugment
            image = images.randaugment(image, number, strength, draw)
        return _tensor(image)

    def evaluate(self, image: Any) -> Tensor:
        """An input to be judged by: the middle, of an image that is larger, as is usual where parts were learnt."""
        from reweigh.bench.train.input import transforms as images

        return _tensor(images.central(image, self.size, 0.875 if self.augment == "inception" else 1.0))


class _Inputs(Dataset[Any]):
    """Examples by (epoch, number)."""

    def __init__(self, source: Source, look: ImageTransform, seed: int) -> None:
        self.source, self.look, self.seed = source, look, seed

    def __getitem__(self, index: tuple[int, int]) -> tuple[Tensor, int, int]:
        epoch, number = index
        image = self.source.read(number)
        if epoch < 0:
            return self.look.evaluate(image), int(self.source.labels[number]), number
        draw = np.random.default_rng([self.seed, zlib.crc32(b"augmentation"), epoch, number])
        return self.look.train(image, draw), int(self.source.labels[number]), number


ImageBatch = tuple[Tensor, Tensor, Tensor]


class Pipeline:
    """Batches of a source, this process's share of each.

    Parameters
    ----------
    source, rows
        The images, and the numbers of those to use.
    look
        How an image becomes an input.
    batch_size
        Examples of a step over all processes; a last batch that is smaller is left out, so that shares are equal.
    seed
        Of order and augmentation.
    readers
        Processes that read and change images beside this one; 0 does it here.
    """

    def __init__(
        self, source: Source, rows: Array, look: ImageTransform, batch_size: int, seed: int, readers: int = 0
    ) -> None:
        world = processes.world()
        if batch_size % (world * BLOCK):
            raise ValueError(
                f"`batch_size` must be a multiple of {BLOCK} times the number of processes, got {batch_size} for "
                f"{world} processes."
            )
        if len(rows) < batch_size:
            raise ValueError(f"`batch_size` must be at most the {len(rows)} training examples, got {batch_size}.")
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.inputs, self.readers = _Inputs(source, look, seed), readers
        self.steps = len(rows) // batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        """Inputs, labels and numbers of this process's share of each batch, from step `start` on."""
        order = np.random.default_rng([self.seed, zlib.crc32(b"order"), epoch]).permutation(self.rows)
        share = self.batch_size // processes.world()
        first = processes.rank() * share
        batches = [order[k * self.batch_size + first :][:share] for k in range(start, self.steps)]
        return self._load([[(epoch, int(number)) for number in batch] for batch in batches])

    def evaluation(self, rows: Array) -> Iterator[ImageBatch]:
        """The share of this process in some examples, as they are judged."""
        own = rows[processes.rank() :: processes.world()]
        size = max(self.batch_size // processes.world(), 1)
        return self._load([[(-1, int(n)) for n in own[k : k + size]] for k in range(0, len(own), size)])

    def on(self, source: Source) -> Pipeline:
        """The same pipeline on another source, to be judged by."""
        other = object.__new__(Pipeline)
        other.__dict__.update(self.__dict__, inputs=_Inputs(source, self.inputs.look, self.seed))
        return other

    def _load(self, batches: list[list[tuple[int, int]]]) -> Iterator[ImageBatch]:
        loader: DataLoader[Any] = DataLoader(
            self.inputs, batch_sampler=batches, num_workers=self.readers, pin_memory=devices.current().type != "cpu"
        )
        yield from loader


def mixed(
    x: Tensor, y: Tensor, classes: int, alpha: float, smoothing: float, draw: np.random.Generator, cutmix: float = 0.0
) -> ImageBatch:
    """Inputs and soft targets after mixup or CutMix and label smoothing, and the share of the first of each pair.

    One share is drawn for the whole batch from Beta(alpha, alpha), for mixup with the larger part first; each example
    is mixed with its neighbour in its block. CutMix replaces a rectangle instead, the same in all images; where both
    are asked for, half of the batches get each. Soft targets have an entropy that no model gets below:
    `CrossEntropy.floor` tells it. References: Zhang et al., mixup, ICLR 2018; Yun et al., CutMix, ICCV 2019.
    """
    soft = torch.nn.functional.one_hot(y, classes).to(x.dtype)
    soft = soft * (1.0 - smoothing) + smoothing / classes
    if not alpha and not cutmix:
        return x, soft, torch.tensor(1.0)
    neighbour = torch.arange(len(x), device=x.device).view(-1, BLOCK).roll(1, dims=1).reshape(-1)
    if cutmix and (not alpha or draw.random() < 0.5):
        rows, columns = _rectangle(x.shape[-2], x.shape[-1], 1.0 - float(draw.beta(cutmix, cutmix)), draw)
        replaced = x[neighbour][..., rows, columns]
        x = x.clone()
        x[..., rows, columns] = replaced
        share = 1.0 - replaced[0, 0].numel() / x[0, 0].numel()
    else:
        share = float(draw.beta(alpha, alpha))
        share = max(share, 1.0 - share)
        x = share * x + (1.0 - share) * x[neighbour]
    return x, share * soft + (1.0 - share) * soft[neighbour], torch.tensor(share)


def _rectangle(height: int, width: int, area: float, draw: np.random.Generator) -> tuple[slice, slice]:
    """A rectangle of the image's shape and about this share of its area, cut off where it reaches over the edge."""

    def side(length: int) -> slice:
        half, centre = int(length * area**0.5) // 2, int(draw.integers(length))
        return slice(max(centre - half, 0), min(centre + half, length))

    return side(height), side(width)


def _tensor(image: Any) -> Tensor:
    pixels = np.asarray(image, np.float32) / 255.0
    if pixels.ndim == 2:
        return torch.from_numpy((pixels - 0.5) / 0.25).unsqueeze(0)
    normal = (pixels - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
    return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))
