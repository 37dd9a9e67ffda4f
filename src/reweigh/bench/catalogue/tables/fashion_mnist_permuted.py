"""Fashion-MNIST as a table: 784 pixels in an order without meaning."""

from __future__ import annotations

import dataclasses

from reweigh.bench.catalogue.images.fashion_mnist import CARD as IMAGES
from reweigh.bench.catalogue.permuted import table as read

__all__ = ["BASE", "CARD", "read"]

BASE = "fashion_mnist"
CARD = dataclasses.replace(IMAGES, size="70 000 rows, 784 columns, 10 classes")
