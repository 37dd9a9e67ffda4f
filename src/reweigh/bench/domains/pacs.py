"""PACS: paintings, cartoons, photographs and sketches of seven things. Official files only."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.domains import _folders
from reweigh.bench.domains._domains import Domain

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
_FOLDER = "PACS"
CARD = Card(
    kind="images",
    size="9991 images, 7 classes, 4 domains",
    licence="none stated (research use)",
    source="Li, Yang, Song and Hospedales, 2017",
    official="the folders " + ", ".join(DOMAINS) + f", each with a folder of images a class, into "
    f"DATA_ROOT/{_FOLDER}/.",
)


def present(root: Path | None) -> str | None:
    """The folder under the data root."""
    return _folders.found(root, _FOLDER, DOMAINS)


def read(
    root: Path | None, download: bool, progress: Progress | None, size: int = 224
) -> tuple[tuple[str, ...], list[Domain], str]:
    """Every image, scaled to `size` x `size`; nothing can be fetched."""
    return _folders.read("pacs", CARD, root, _FOLDER, DOMAINS, size)
