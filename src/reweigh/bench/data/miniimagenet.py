"""miniImageNet: 600 photographs of each of a hundred classes, for few-shot learning. Official files only.

The names of the classes start with the part they belong to (`train/n01532829`), so that a few-shot recipe finds the
official split in them.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.data._dataset import Arrays, Card
from reweigh.bench.data.image_folder import pixels

CARD = Card(
    kind="images",
    size="48 000 + 12 000 images, scaled to 84 x 84 x 3, 100 classes",
    licence="none stated (research use, as ImageNet)",
    source="Vinyals et al., 2016; split of Ravi and Larochelle, 2017",
    official="the folders train/, val/ and test/ with a subfolder of images for each class, or images/ with train.csv, "
    "val.csv and test.csv (filename,label), into DATA_ROOT/miniimagenet/.",
)
_PARTS = ("train", "val", "test")
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def find(root: Path, size: int = 84) -> list[Path]:
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
    tables = [folder / f"{part}.csv" for part in _PARTS]
    if all(path.is_file() for path in tables):
        return tables
    if not all((folder / part).is_dir() for part in _PARTS):
        return []
    images = [path for part in _PARTS for path in sorted((folder / part).glob("*/*"))]
    return [path for path in images if path.suffix.lower() in _SUFFIXES]


def read_files(files: list[Path], size: int = 84) -> Arrays:
    """Training and validation classes as training part, test classes as test part; all labels differ."""
    images = _listed(files) if files[0].suffix == ".csv" else {path: f"{_part(path)}/{_label(path)}" for path in files}
    classes = tuple(sorted(set(images.values()), key=lambda name: (_PARTS.index(name.split("/")[0]), name)))
    number = {name: i for i, name in enumerate(classes)}
    ordered = sorted(images, key=lambda path: (number[images[path]], path))
    x = pixels(ordered, size, grey=False)
    y = np.array([number[images[path]] for path in ordered], np.int64)
    test = np.array([images[path].startswith("test/") for path in ordered])
    return Arrays(x[~test], y[~test], x[test], y[test], classes)


def _listed(tables: list[Path]) -> dict[Path, str]:
    """The images that the three tables name, with the part and label of each."""
    found: dict[Path, str] = {}
    for table in tables:
        with table.open(newline="") as lines:
            for row in csv.DictReader(lines):
                path = table.parent / "images" / row["filename"]
                if not path.is_file():
                    raise FileNotFoundError(f"{table} names {row['filename']}, which is not in {path.parent}.")
                found[path] = f"{table.stem}/{row['label']}"
    return found


def _part(path: Path) -> str:
    return path.parent.parent.name


def _label(path: Path) -> str:
    return path.parent.name
