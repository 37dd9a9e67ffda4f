"""Handwritten digits of scikit-learn: 1797 images of 8 x 8, there without any download."""

from __future__ import annotations

from typing import Any

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.draws import fixed_split

CARD = DataCard(
    size="1258 + 539 images of 8 x 8, 10 classes",
    licence="CC BY 4.0",
    source="UCI Optical Recognition of Handwritten Digits (test part), as shipped with scikit-learn",
)


def read() -> Arrays:
    """Images scaled from 0..16 to 0..255, and one fixed stratified 70/30 split."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # 17 grey levels spread over a byte, so that every image dataset has the same range.
    x = np.rint(bunch["images"] * (255 / 16)).astype(np.uint8)[..., None]
    y = bunch["target"].astype(np.int64)
    train, test = fixed_split(y, 0.3)
    return Arrays(x[train], y[train], x[test], y[test], tuple("0123456789"))
