"""Grocery Store: photographs of 81 groceries in shops. Official files only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.streams import FileSource, labelled_files, official_folder

CARD = DataCard(
    size="2640 + 2485 images, 81 classes",
    licence="see the authors' repository",
    source="Klasson, Zhang and Kjellström, 2019",
    official="the folders train/ and test/ of the official archive into DATA_ROOT/grocery/.",
)


def find(root: Path) -> dict[str, Path]:
    """The folders of the two parts."""
    return official_folder(root, "grocery", "train", "test")


def read(files: Mapping[str, Path]) -> dict[str, FileSource]:
    """Images in folders within folders, the innermost of which is the class."""
    listed = {part: sorted(folder.rglob("*.jpg")) for part, folder in files.items()}
    classes = tuple(sorted({path.parent.name for path in listed["train"]}))
    return {
        part: labelled_files(paths, [path.parent.name for path in paths], classes) for part, paths in listed.items()
    }
