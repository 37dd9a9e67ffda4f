"""Images as tables: pixels are columns, in one fixed order that does not reveal where they were."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.catalogue.tables import RawTable

Array = np.ndarray[Any, Any]

#: The column that names the class.
TARGET = "class"


def permutation(columns: int) -> Array:
    """The order of so many columns: by the sha256 of their positions.

    Fixed once for all machines and versions, which a random generator's stream is not.

    Examples
    --------
    >>> permutation(8).tolist()
    [4, 6, 5, 1, 0, 7, 3, 2]
    """
    keys = [hashlib.sha256(f"column {index}".encode()).digest() for index in range(columns)]
    return np.array(sorted(range(columns), key=keys.__getitem__), dtype=np.int64)


def columns(images: Array, side: int = 0) -> Array:
    """Images `(rows, height, width, channels)` of 0..255 as permuted columns of 0..1, float32.

    Parameters
    ----------
    images
        As `reweigh.bench.catalogue.images` has them.
    side
        0 keeps every pixel and channel. Otherwise channels are averaged to grey, and pixels to this many in a row, each
        the mean over its share of the area.
    """
    if side:
        grey = images.astype(np.float32).mean(-1)
        _, height, width = grey.shape
        pixels = np.einsum("ih,nhw,jw->nij", _shares(height, side), grey, _shares(width, side), optimize=True)
    else:
        pixels = images.astype(np.float32)
    flat = pixels.reshape(len(pixels), -1) / np.float32(255.0)
    return np.ascontiguousarray(flat[:, permutation(flat.shape[1])], dtype=np.float32)


def table(dataset: Dataset) -> RawTable:
    """All images, training above test, at full resolution, with the class as a name."""
    import polars as pl

    images = np.concatenate([dataset.x_train, dataset.x_test])
    flat = images.reshape(len(images), -1)
    flat = flat[:, permutation(flat.shape[1])]
    digits = len(str(flat.shape[1] - 1))
    pixels = {f"p{i:0{digits}d}": np.ascontiguousarray(flat[:, i]) for i in range(flat.shape[1])}
    names = np.array(dataset.classes, dtype=object)[np.concatenate([dataset.y_train, dataset.y_test])]
    frame = pl.DataFrame({**pixels, TARGET: pl.Series(names.tolist())})
    note = "Pixels are columns in a fixed order drawn by hash; models that know about neighbours cannot use it."
    return RawTable(frame, TARGET, range(len(dataset.x_train), len(images)), notes=(note,))


def _shares(pixels: int, side: int) -> Array:
    """How much of each old pixel is in each new one, `(side, pixels)`; rows sum to one."""
    edges = np.linspace(0, pixels, side + 1)
    low, high = np.maximum(edges[:-1, None], np.arange(pixels)), np.minimum(edges[1:, None], np.arange(1, pixels + 1))
    covered = np.clip(high - low, 0, None)
    return (covered / covered.sum(1, keepdims=True)).astype(np.float32)
