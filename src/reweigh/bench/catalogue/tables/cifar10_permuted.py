"""CIFAR-10 as a table: 3 072 pixels in an order without meaning."""

from __future__ import annotations

import dataclasses

from reweigh.bench.catalogue.images.cifar10 import CARD as IMAGES
from reweigh.bench.catalogue.permuted import table as read

__all__ = ["BASE", "CARD", "read"]

BASE = "cifar10"
CARD = dataclasses.replace(IMAGES, size="60 000 rows, 3 072 columns, 10 classes")
