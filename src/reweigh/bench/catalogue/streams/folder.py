"""Your own images in one folder per class, such as ImageNet's, too many to fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.streams import IMAGES, FileSource, below_root, labelled_files
from reweigh.bench.errors import MissingFileError

CARD = DataCard(
    size="what the folder holds",
    licence="the owner's",
    source="your own images",
    official="images into DATA_ROOT/PATH/train/CLASS/ and DATA_ROOT/PATH/val/CLASS/, and name it folder:path=PATH.",
)


def find(root: Path, path: str = "imagenet") -> dict[str, Path]:
    """The folders of the two parts; the test part may be called `val`."""
    base = below_root(root, path)
    test = base / ("val" if (base / "val").is_dir() else "test")
    return {"train": base / "train", "test": test} if base.is_dir() else {}


def read(files: Mapping[str, Path], path: str = "imagenet") -> dict[str, FileSource]:
    """Images by class; classes in the order of their names."""
    return {part: _files(folder) for part, folder in files.items()}


def _files(folder: Path) -> FileSource:
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in IMAGES)
    if not paths:
        raise MissingFileError(f"there are no images in {folder}/CLASS/. Put them there, one folder per class.")
    names = [path.parent.name for path in paths]
    return labelled_files(paths, names, tuple(sorted(set(names))))
