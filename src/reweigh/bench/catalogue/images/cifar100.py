"""CIFAR-100: 60 000 colour photographs of 32 x 32 in a hundred classes. Official files only: no registry has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.images import Arrays, _cifar

CARD = DataCard(
    size="50 000 + 10 000 images of 32 x 32 x 3, 100 classes",
    licence="none stated (research use)",
    source="Krizhevsky, 2009",
    official="cifar-100-python.tar.gz, or the folder cifar-100-python/ that is in it, into DATA_ROOT/.",
)
_FOLDER = "cifar-100-python"
_FILES = ("train", "test", "meta")


def find(root: Path) -> dict[str, Path]:
    """The official Python pickles."""
    return _cifar.find(root, _FOLDER, "cifar-100-python.tar.gz", _FILES)


def read(files: Mapping[str, Path]) -> Arrays:
    """Images with their fine labels."""
    train, test, meta = _cifar.read(files, _FOLDER, _FILES)
    return Arrays(
        _cifar.images(train["data"]),
        np.array(train["fine_labels"], np.int64),
        _cifar.images(test["data"]),
        np.array(test["fine_labels"], np.int64),
        _cifar.texts(meta["fine_label_names"]),
    )
