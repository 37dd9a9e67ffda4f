"""Food-101: a thousand photographs of each of 101 dishes. Official files only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.streams import FileSource, labelled_files, official_folder

CARD = DataCard(
    size="75 750 + 25 250 images, 101 classes",
    licence="none stated (research use)",
    source="Bossard, Guillaumin and Van Gool, 2014",
    official="the folder food-101/ of the official archive into DATA_ROOT/.",
)


def find(root: Path) -> dict[str, Path]:
    """The official lists; images lie in `images/CLASS/NUMBER.jpg`."""
    return official_folder(root, "food-101", "meta/train.txt", "meta/test.txt")


def read(files: Mapping[str, Path]) -> dict[str, FileSource]:
    """The images of the two lists."""
    listed = {path.stem: path.read_text().split() for path in files.values()}
    folder = files["meta/train.txt"].parent.parent / "images"
    classes = tuple(sorted({line.partition("/")[0] for line in listed["train"]}))
    return {
        part: labelled_files(
            [folder / f"{line}.jpg" for line in lines], [line.partition("/")[0] for line in lines], classes
        )
        for part, lines in listed.items()
    }
