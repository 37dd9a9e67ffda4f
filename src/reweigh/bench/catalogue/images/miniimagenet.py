"""miniImageNet: 600 photographs of each of a hundred classes, for few-shot learning. Official files only.

The names of the classes start with the part they belong to (`train/n01532829`), so that a few-shot recipe finds the
official split in them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.catalogue.images.image_folder import pixels
from reweigh.bench.errors import MissingFileError

CARD = DataCard(
    size="48 000 + 12 000 images, scaled to 84 x 84 x 3, 100 classes",
    licence="none stated (research use, as ImageNet)",
    source="Vinyals et al., 2016; split of Ravi and Larochelle, 2017",
    official="the folders train/, val/ and test/ with a subfolder of images for each class, or images/ with train.csv, "
    "val.csv and test.csv (filename,label), into DATA_ROOT/miniimagenet/.",
)
_PARTS = ("train", "val", "test")
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def find(root: Path, size: int = 84) -> dict[str, Path]:
    """The images of three folders in `miniimagenet/`, or its three tables.

    Parameters
    ----------
    root
        The data root.
    size
        Height and width that every image is scaled to.
    """
    validate.whole("size", size, 1)
    folder = root / "miniimagenet"
    tables = {part: folder / f"{part}.csv" for part in _PARTS}
    if all(path.is_file() for path in tables.values()):
        return tables
    if not all((folder / part).is_dir() for part in _PARTS):
        return {}
    images = [path for part in _PARTS for path in sorted((folder / part).glob("*/*"))]
    return {str(path.relative_to(folder)): path for path in images if path.suffix.lower() in _SUFFIXES}


def read(files: Mapping[str, Path], size: int = 84) -> Arrays:
    """Training and validation classes as training part, test classes as test part; all labels differ."""
    images = _listed(files) if set(files) == set(_PARTS) else {path: _class_name(path) for path in files.values()}
    classes = tuple(sorted(set(images.values()), key=lambda name: (_PARTS.index(name.split("/")[0]), name)))
    number = {name: i for i, name in enumerate(classes)}
    ordered = sorted(images, key=lambda path: (number[images[path]], path))
    x = pixels(ordered, size, grey=False)
    y = np.array([number[images[path]] for path in ordered], np.int64)
    test = np.array([images[path].startswith("test/") for path in ordered])
    return Arrays(x[~test], y[~test], x[test], y[test], classes)


def _listed(tables: Mapping[str, Path]) -> dict[Path, str]:
    """The images that the three tables name, with the part and label of each."""
    labels: dict[Path, str] = {}
    for table in tables.values():
        with table.open(newline="") as lines:
            for row in csv.DictReader(lines):
                path = table.parent / "images" / row["filename"]
                if not path.is_file():
                    raise MissingFileError(f"{table} names {row['filename']}, which is not in {path.parent}.")
                labels[path] = f"{table.stem}/{row['label']}"
    return labels


def _class_name(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}"
