"""scikit-learn's small digits, each turned by one of four angles: for trying things out without fetching anything."""

from __future__ import annotations

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.catalogue.domains._turned import dealt, turned
from reweigh.bench.catalogue.images import Dataset

CARD = DataCard(
    size="1797 images of 8 x 8, 10 classes, 4 domains",
    licence="CC BY 4.0",
    source="Optical Recognition of Handwritten Digits, UCI; turned as RotatedMNIST is",
    stand_in_for="RotatedMNIST",
)
BASE = "digits"
ANGLES = (0, 15, 30, 45)


def read(digits: Dataset, rows: int = 0) -> tuple[tuple[str, ...], list[Domain]]:
    """Every fourth digit turned by the same angle."""
    parts = zip(ANGLES, dealt(digits, len(ANGLES), rows), strict=True)
    return digits.classes, [Domain(name=f"{angle}°", x=turned(x, angle)[..., None], y=y) for angle, (x, y) in parts]
