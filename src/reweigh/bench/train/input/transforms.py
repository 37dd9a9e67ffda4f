"""Changes of one image, drawn from a generator: parts, mirrors, and RandAugment.

References: Szegedy et al., Going deeper with convolutions, CVPR 2015 (parts of images); Cubuk et al., RandAugment,
NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Generator = np.random.Generator


def central(image: Any, size: int, share: float) -> Any:
    """The middle square of the image whose shorter side is scaled to `size / share`."""
    from PIL import Image

    side = round(size / share)
    width, height = image.size
    if (width, height) == (size, size):
        return image
    factor = side / min(width, height)
    image = image.resize(
        (max(size, round(width * factor)), max(size, round(height * factor))), Image.Resampling.BICUBIC
    )
    left, top = (image.size[0] - size) // 2, (image.size[1] - size) // 2
    return image.crop((left, top, left + size, top + size))


def inception_crop(image: Any, size: int, draw: Generator) -> Any:
    """A random part of 8 to 100 % of the area, between 3:4 and 4:3 in shape, scaled to a square."""
    from PIL import Image

    width, height = image.size
    for _ in range(10):
        area = draw.uniform(0.08, 1.0) * width * height
        shape = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(draw.integers(0, width - w + 1)), int(draw.integers(0, height - h + 1))
            return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + w, top + h))
    return central(image, size, 1.0)


def shifted(image: Any, draw: Generator) -> Any:
    """The image moved by up to an eighth of its side, its edge mirrored outwards."""
    from PIL import Image

    pixels = np.asarray(image)
    pad = max(1, pixels.shape[0] // 8)
    padded = np.pad(pixels, ((pad, pad), (pad, pad), (0, 0))[: pixels.ndim], mode="reflect")
    top, left = draw.integers(0, 2 * pad + 1, 2)
    return Image.fromarray(np.ascontiguousarray(padded[top:, left:][: pixels.shape[0], : pixels.shape[1]]))


def mirrored(image: Any, draw: Generator) -> Any:
    """The image, or half of the time its mirror image."""
    from PIL import ImageOps

    return ImageOps.mirror(image) if draw.random() < 0.5 else image


def randaugment(image: Any, number: int, strength: int, draw: Generator) -> Any:
    """So many random changes, each of a strength between 0 and 30."""
    for _ in range(number):
        image = _CHANGES[int(draw.integers(len(_CHANGES)))](
            image, strength / 30.0, 1.0 if draw.random() < 0.5 else -1.0
        )
    return image


ImageOperation = Callable[[Any, float, float], Any]


def _moved(image: Any, matrix: tuple[float, ...]) -> Any:
    from PIL import Image

    grey = 128 if image.mode == "L" else (128, 128, 128)
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=grey)


def _enhanced(kind: str) -> ImageOperation:
    def change(image: Any, strength: float, sign: float) -> Any:
        from PIL import ImageEnhance

        return getattr(ImageEnhance, kind)(image).enhance(1.0 + sign * 0.9 * strength)

    return change


def _operated(name: str, value: Callable[[float], int] | None = None) -> ImageOperation:
    def change(image: Any, strength: float, sign: float) -> Any:
        from PIL import ImageOps

        return getattr(ImageOps, name)(image, *(() if value is None else (value(strength),)))

    return change


def _turned(image: Any, strength: float, sign: float) -> Any:
    grey = 128 if image.mode == "L" else (128, 128, 128)
    return image.rotate(sign * 30.0 * strength, fillcolor=grey)


_CHANGES: tuple[ImageOperation, ...] = (
    lambda image, strength, sign: image,
    _turned,
    _operated("autocontrast"),
    _operated("equalize"),
    _operated("solarize", lambda strength: 256 - round(256 * strength)),
    _operated("posterize", lambda strength: 8 - round(4 * strength)),
    *(_enhanced(kind) for kind in ("Color", "Contrast", "Brightness", "Sharpness")),
    lambda image, strength, sign: _moved(image, (1, sign * 0.3 * strength, 0, 0, 1, 0)),
    lambda image, strength, sign: _moved(image, (1, 0, 0, sign * 0.3 * strength, 1, 0)),
    lambda image, strength, sign: _moved(image, (1, 0, sign * 0.45 * strength * image.size[0], 0, 1, 0)),
    lambda image, strength, sign: _moved(image, (1, 0, 0, 0, 1, sign * 0.45 * strength * image.size[1])),
)
