"""RotatedMNIST: the digits of MNIST, each turned by one of six angles."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data.mnist import CARD as MNIST
from reweigh.bench.domains._domains import Domain
from reweigh.bench.domains._turned import mnist_dealt, mnist_present, shrunk, turned

CARD = Card(
    kind="images",
    size="70 000 images of 28 x 28, 10 classes, 6 domains",
    licence=MNIST.licence,
    source="MNIST, turned as in Ghifary et al., 2015, by DomainBed's rules",
    official=MNIST.official,
    packages=MNIST.packages,
)
ANGLES = (0, 15, 30, 45, 60, 75)
present = mnist_present


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
    mnist, parts = mnist_dealt(root, download, progress, len(ANGLES), side, rows)
    found = [
        Domain(name=f"{angle}°", x=shrunk(turned(x, angle), side)[..., None], y=y)
        for angle, (x, y) in zip(ANGLES, parts, strict=True)
    ]
    return mnist.classes, found, mnist.source
