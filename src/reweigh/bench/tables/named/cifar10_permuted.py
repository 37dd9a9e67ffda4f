"""CIFAR-10 as a table: 3 072 pixels in an order without meaning."""

from __future__ import annotations

import dataclasses

from reweigh.bench.data import cifar10

#: The images come from the data set of this name, wherever that is found.
IMAGES = "cifar10"
CARD = dataclasses.replace(cifar10.CARD, kind="table", size="60 000 rows, 3 072 columns, 10 classes")
