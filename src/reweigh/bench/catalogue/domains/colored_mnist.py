"""ColoredMNIST: small or large digit, where colour predicts more than shape does, and in one domain the opposite."""

from __future__ import annotations

import numpy as np

from reweigh.bench.catalogue.card import Array, DataCard
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.catalogue.domains._turned import dealt, shrunk
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.catalogue.images.mnist import CARD as MNIST
from reweigh.bench.draws import coloured
from reweigh.bench.draws.seeds import Seeds

CARD = DataCard(
    size="70 000 images of 28 x 28 in two colours, 2 classes, 3 domains",
    licence=MNIST.licence,
    source="MNIST, coloured as in Arjovsky et al., 2019, by DomainBed's rules",
    official=MNIST.official,
    packages=MNIST.packages,
)
#: How often the colour contradicts the label, in each domain.
CONTRADICTIONS = (0.1, 0.2, 0.9)
#: How often a label is wrong, in all of them.
NOISE = 0.25
BASE = "mnist"


def read(mnist: Dataset, side: int = 28, rows: int = 0) -> tuple[tuple[str, ...], list[Domain]]:
    """Every third digit of a fixed random order, coloured with the same share of contradictions.

    Parameters
    ----------
    mnist
        The digits.
    side
        Height and width.
    rows
        Images of a domain at most; 0 for all.
    """
    parts = zip(CONTRADICTIONS, dealt(mnist, len(CONTRADICTIONS), rows), strict=True)
    return ("5 to 9", "0 to 4"), [_coloured(shrunk(x, side), y, share) for share, (x, y) in parts]


def _coloured(images: Array, digits: Array, share: float) -> Domain:
    """One domain: labels with noise, the digit in the channel of its colour, and nothing in the other."""
    rng = Seeds(0).numpy(f"colours, {share}")
    label = (digits < 5) ^ (rng.random(len(digits)) < NOISE)
    colour = label ^ (rng.random(len(digits)) < share)
    # Named as DomainBed does: the agreement of colour and label, up to which way round it is.
    return Domain(
        name=f"{'+' if share < 0.5 else '-'}{abs(1 - 2 * share) / 2 + 0.5:.0%}",
        x=coloured(images, colour),
        y=label.astype(np.int64),
    )
