"""VLCS: photographs of five things from four collections. Official files only."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.domains import _folders
from reweigh.bench.domains._domains import Domain

DOMAINS = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
_FOLDER = "VLCS"
CARD = Card(
    kind="images",
    size="10 729 images, 5 classes, 4 domains",
    licence="none stated (research use)",
    source="Fang, Xu and Rockmore, 2013",
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
    return _folders.read("vlcs", CARD, root, _FOLDER, DOMAINS, size)
