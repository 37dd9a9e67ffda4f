"""Images turned by an angle, and all digits of a data set dealt to domains."""

from __future__ import annotations

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import Array
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.draws.seeds import Seeds


def turned(images: Array, angle: float) -> Array:
    """Grey images (NHW, uint8) turned counter-clockwise about their middle, black outside, between pixels bilinear."""
    from PIL import Image

    if angle == 0:
        return images
    return np.stack([np.asarray(Image.fromarray(i).rotate(angle, Image.Resampling.BILINEAR)) for i in images])


def shrunk(images: Array, side: int) -> Array:
    """Grey images scaled to another height and width, each pixel the mean of the area it covers."""
    from PIL import Image

    validate.whole("side", side, 0)
    if side in (0, images.shape[1]):
        return images
    return np.stack([np.asarray(Image.fromarray(i).resize((side, side), Image.Resampling.BOX)) for i in images])


def dealt(dataset: Dataset, parts: int, rows: int) -> list[tuple[Array, Array]]:
    """All examples, training and test, in one fixed random order, every `parts`-th to a part; at most `rows` of each.

    Every example is in one domain only.
    """
    validate.whole("rows", rows, 0)
    images = np.concatenate([dataset.x_train, dataset.x_test])[..., 0]
    labels = np.concatenate([dataset.y_train, dataset.y_test])
    order = Seeds(0).numpy("dealing to domains").permutation(len(labels))
    chosen = [order[part::parts][: rows or None] for part in range(parts)]
    return [(images[one], labels[one]) for one in chosen]
