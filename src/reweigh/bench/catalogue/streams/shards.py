"""Your own images in tar shards, such as ImageNet's, too many to fit into memory.

Shards are plain tar files whose members are pairs `KEY.jpg` and `KEY.cls` (the label in digits), the layout of
WebDataset. Their index is made once by reading headers, and images are read at their offsets. Nothing is unpacked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.streams import IMAGES, ShardSource, below_root
from reweigh.bench.errors import MissingFileError, UserError

CARD = DataCard(
    size="what the shards hold",
    licence="the owner's",
    source="your own images",
    official="shards into DATA_ROOT/PATH/train-*.tar and DATA_ROOT/PATH/val-*.tar, the names of the classes into "
    "DATA_ROOT/PATH/classes.txt, and name it shards:path=PATH.",
)


def find(root: Path, path: str = "imagenet") -> dict[str, Path]:
    """The shards of the two parts; the test part may be called `val`."""
    base = below_root(root, path)
    test = "val" if any(base.glob("val-*.tar")) else "test"
    return {
        f"{part} {i}": shard
        for part, prefix in (("train", "train"), ("test", test))
        for i, shard in enumerate(sorted(base.glob(f"{prefix}-*.tar")))
    }


def read(files: Mapping[str, Path], path: str = "imagenet") -> dict[str, ShardSource]:
    """Images by their place in the shards."""
    parts = {
        part: [shard for key, shard in files.items() if key.partition(" ")[0] == part] for part in ("train", "test")
    }
    folder = next(iter(files.values())).parent
    return {part: _shards(folder, part, paths) for part, paths in parts.items()}


def _shards(folder: Path, part: str, paths: list[Path]) -> ShardSource:
    """The shards of a part; the names of classes in `classes.txt`, if it is there."""
    if not paths:
        raise MissingFileError(f"there are no shards {folder / part}-*.tar. Put them there, or use folder:path=…")
    places: list[tuple[int, int, int]] = []
    labels: list[int] = []
    for number, path in enumerate(paths):
        for place, label in _index(path):
            places.append((number, *place))
            labels.append(label)
    names = folder / "classes.txt"
    classes = tuple(names.read_text().splitlines()) if names.exists() else tuple(map(str, range(max(labels) + 1)))
    if max(labels) >= len(classes):
        raise UserError(f"{folder} has a label {max(labels)}, but classes.txt has only {len(classes)} names.")
    return ShardSource(tuple(paths), np.array(places, np.int64), np.array(labels, np.int64), classes)


def _index(path: Path) -> list[tuple[tuple[int, int], int]]:
    """Offset, length and label of each image of a shard, in the order of their keys."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                key, dot, ending = entry.name.rpartition(".")
                ending = dot + ending
                if not entry.isreg():
                    continue
                if ending.lower() in IMAGES:
                    images[key] = (entry.offset_data, entry.size)
                elif ending == ".cls":
                    content = archive.extractfile(entry)
                    labels[key] = int(content.read()) if content is not None else -1
    except (tarfile.TarError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}). Make this shard again.") from error
    size = path.stat().st_size
    for key, (offset, length) in images.items():
        if key not in labels or offset + length > size:
            raise UserError(f"{path} is damaged ({key!r} is cut off or has no label). Make this shard again.")
    if not images:
        raise UserError(f"{path} holds no images. Members must be pairs KEY.jpg and KEY.cls.")
    return [(images[key], labels[key]) for key in sorted(images)]
