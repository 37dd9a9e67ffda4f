"""Stanford Cars: photographs of 196 models of cars. Official files only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.streams import FileSource, labelled_files, official_folder

CARD = DataCard(
    size="8144 + 8041 images, 196 classes",
    licence="none stated (research use)",
    source="Krause, Stark, Deng and Fei-Fei, 2013",
    official="the folders cars_train/, cars_test/ and devkit/, and cars_test_annos_withlabels.mat in devkit/, into "
    "DATA_ROOT/stanford_cars/.",
)
_LISTS = {"train": "devkit/cars_train_annos.mat", "test": "devkit/cars_test_annos_withlabels.mat"}


def find(root: Path) -> dict[str, Path]:
    """The names of the classes and the annotations."""
    return official_folder(root, "stanford_cars", "devkit/cars_meta.mat", *_LISTS.values())


def read(files: Mapping[str, Path]) -> dict[str, FileSource]:
    """The images that the annotations name."""
    from scipy.io import loadmat

    meta = files["devkit/cars_meta.mat"]
    classes = tuple(str(name) for name in loadmat(meta, squeeze_me=True)["class_names"])
    parts: dict[str, FileSource] = {}
    for part, name in _LISTS.items():
        rows: Any = np.atleast_1d(loadmat(files[name], squeeze_me=True)["annotations"])
        paths = [meta.parent.parent / f"cars_{part}" / str(file) for file in rows["fname"]]
        parts[part] = labelled_files(paths, [classes[int(number) - 1] for number in rows["class"]], classes)
    return parts
