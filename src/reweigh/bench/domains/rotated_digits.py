"""scikit-learn's small digits, each turned by one of four angles: for trying things out without fetching any."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench import data
from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.domains._domains import Domain
from reweigh.bench.domains._turned import dealt, turned

CARD = Card(
    kind="images",
    size="1797 images of 8 x 8, 10 classes, 4 domains",
    licence="CC BY 4.0",
    source="Optical Recognition of Handwritten Digits, UCI; turned as RotatedMNIST is",
    stand_in_for="RotatedMNIST",
)
ANGLES = (0, 15, 30, 45)


def present(root: Path | None) -> str | None:
    """It comes with scikit-learn."""
    return "installed"


def read(
    root: Path | None, download: bool, progress: Progress | None, rows: int = 0
) -> tuple[tuple[str, ...], list[Domain], str]:
    """Every fourth digit turned by the same angle."""
    digits = data.load("digits")
    found = [
        Domain(name=f"{angle}°", x=turned(x, angle)[..., None], y=y)
        for angle, (x, y) in zip(ANGLES, dealt(digits, len(ANGLES), rows), strict=True)
    ]
    return digits.classes, found, digits.source
