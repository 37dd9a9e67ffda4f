"""MNIST as a table: 784 pixels in an order without meaning."""

from __future__ import annotations

import dataclasses

from reweigh.bench.data import mnist

#: The images come from the data set of this name, wherever that is found.
IMAGES = "mnist"
CARD = dataclasses.replace(mnist.CARD, kind="table", size="70 000 rows, 784 columns, 10 classes")
