"""RotatedMNIST: the digits of MNIST, each turned by one of six angles."""

from __future__ import annotations

from pathlib import Path

from reweigh import _validate as validate
from reweigh.bench import data
from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data.mnist import CARD as MNIST
from reweigh.bench.domains._domains import Domain
from reweigh.bench.domains._turned import dealt, shrunk, turned

CARD = Card(
    kind="images",
    size="70 000 images of 28 x 28, 10 classes, 6 domains",
    licence=MNIST.licence,
    source="MNIST, turned as in Ghifary et al., 2015, by DomainBed's rules",
    official=MNIST.official,
    packages=MNIST.packages,
)
ANGLES = (0, 15, 30, 45, 60, 75)


def present(root: Path | None) -> str | None:
    """Where MNIST is."""
    return next(row.present for row in data.describe(root=root) if row.name == "mnist")


def read(
    root: Path | None, download: bool, progress: Progress | None, side: int = 28, rows: int = 0
) -> tuple[tuple[str, ...], list[Domain], str]:
    """Every sixth digit of a fixed random order turned by the same angle.

    Parameters
    ----------
    root, download, progress
        As everywhere.
    side
        Height and width.
    rows
        Most images of a domain; 0 for all.
    """
    validate.whole("side", side, 1)
    validate.whole("rows", rows, 0)
    if download:
        data.fetch("mnist", progress)
    mnist = data.load("mnist", root=root)
    found = [
        Domain(name=f"{angle}°", x=shrunk(turned(x, angle), side)[..., None], y=y)
        for angle, (x, y) in zip(ANGLES, dealt(mnist, len(ANGLES), rows), strict=True)
    ]
    return mnist.classes, found, mnist.source
