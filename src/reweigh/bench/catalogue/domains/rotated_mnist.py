"""RotatedMNIST: the digits of MNIST, each turned by one of six angles."""

from __future__ import annotations

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.catalogue.domains._turned import dealt, shrunk, turned
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.catalogue.images.mnist import CARD as MNIST

CARD = DataCard(
    size="70 000 images of 28 x 28, 10 classes, 6 domains",
    licence=MNIST.licence,
    source="MNIST, turned as in Ghifary et al., 2015, by DomainBed's rules",
    official=MNIST.official,
    packages=MNIST.packages,
)
ANGLES = (0, 15, 30, 45, 60, 75)
BASE = "mnist"


def read(mnist: Dataset, side: int = 28, rows: int = 0) -> tuple[tuple[str, ...], list[Domain]]:
    """Every sixth digit of a fixed random order turned by the same angle.

    Parameters
    ----------
    mnist
        The digits.
    side
        Height and width.
    rows
        Images of a domain at most; 0 for all.
    """
    parts = zip(ANGLES, dealt(mnist, len(ANGLES), rows), strict=True)
    return mnist.classes, [
        Domain(name=f"{angle}°", x=shrunk(turned(x, angle), side)[..., None], y=y) for angle, (x, y) in parts
    ]
