"""Image collections in the folders that their authors hand out, as sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reweigh.bench.scale.sources import Files

Parts = dict[str, Files]


def food101(root: Path) -> Parts:
    """Food-101 in `food-101/`: `images/CLASS/NUMBER.jpg`, and the official lists in `meta/train.txt` and `test.txt`."""
    base = _base(root, "food-101", "meta/train.txt", "meta/test.txt")
    listed = {part: (base / "meta" / f"{part}.txt").read_text().split() for part in ("train", "test")}
    classes = tuple(sorted({line.partition("/")[0] for line in listed["train"]}))
    return {
        part: _files([base / "images" / f"{line}.jpg" for line in lines], [x.partition("/")[0] for x in lines], classes)
        for part, lines in listed.items()
    }


def cars(root: Path) -> Parts:
    """Stanford Cars in `stanford_cars/`: `cars_train/`, `cars_test/` and the annotations in `devkit/`.

    `devkit/cars_test_annos_withlabels.mat` is handed out beside the archive of the development kit.
    """
    from scipy.io import loadmat

    lists = {"train": "cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    base = _base(root, "stanford_cars", "devkit/cars_meta.mat", *(f"devkit/{name}" for name in lists.values()))
    classes = tuple(str(name) for name in loadmat(base / "devkit" / "cars_meta.mat", squeeze_me=True)["class_names"])
    found: Parts = {}
    for part, name in lists.items():
        rows: Any = np.atleast_1d(loadmat(base / "devkit" / name, squeeze_me=True)["annotations"])
        paths = [base / f"cars_{part}" / str(file) for file in rows["fname"]]
        found[part] = _files(paths, [classes[int(number) - 1] for number in rows["class"]], classes)
    return found


def grocery(root: Path) -> Parts:
    """Grocery Store in `grocery/`: `train/`, `test/` and folders in them, the innermost of which is the class."""
    base = _base(root, "grocery", "train", "test")
    listed = {part: sorted((base / part).rglob("*.jpg")) for part in ("train", "test")}
    classes = tuple(sorted({path.parent.name for path in listed["train"]}))
    return {part: _files(paths, [path.parent.name for path in paths], classes) for part, paths in listed.items()}


#: By the name of the data set.
OFFICIAL: dict[str, Callable[[Path], Parts]] = {"food101": food101, "cars": cars, "grocery": grocery}


def _base(root: Path, folder: str, *needed: str) -> Path:
    base = root / folder
    missing = [name for name in needed if not (base / name).exists()]
    if missing:
        raise FileNotFoundError(f"{base} has no {missing[0]}. Unpack the official archive there.")
    return base


def _files(paths: list[Path], names: list[str], classes: tuple[str, ...]) -> Files:
    number = {name: k for k, name in enumerate(classes)}
    unknown = set(names) - number.keys()
    if unknown:
        raise ValueError(f"{paths[0].parent.parent} has a class {min(unknown)!r} that training has not.")
    return Files(tuple(paths), np.array([number[name] for name in names], np.int64), classes)
