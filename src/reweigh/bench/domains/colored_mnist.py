"""ColoredMNIST: small or large digit, where colour tells more than shape, and in one domain the opposite."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data.mnist import CARD as MNIST
from reweigh.bench.domains._domains import Array, Domain
from reweigh.bench.domains._turned import mnist_dealt, mnist_present, shrunk
from reweigh.bench.seeds import Seeds

CARD = Card(
    kind="images",
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
present = mnist_present


def read(
    root: Path | None, download: bool, progress: Progress | None, side: int = 28, rows: int = 0
) -> tuple[tuple[str, ...], list[Domain], str]:
    """Every third digit of a fixed random order, coloured with the same share of contradictions.

    Parameters
    ----------
    root, download, progress
        As everywhere.
    side
        Height and width.
    rows
        Most images of a domain; 0 for all.
    """
    mnist, parts = mnist_dealt(root, download, progress, len(CONTRADICTIONS), side, rows)
    found = [_coloured(shrunk(x, side), y, share) for share, (x, y) in zip(CONTRADICTIONS, parts, strict=True)]
    return ("5 to 9", "0 to 4"), found, mnist.source


def _coloured(images: Array, digits: Array, share: float) -> Domain:
    """One domain: labels with noise, the digit in the channel of its colour, and nothing in the other."""
    rng = Seeds(0).numpy(f"colours, {share}")
    label = (digits < 5) ^ (rng.random(len(digits)) < NOISE)
    colour = label ^ (rng.random(len(digits)) < share)
    x = np.stack([images, images], -1)
    x[np.arange(len(x)), ..., 1 - colour.astype(int)] = 0
    # Named as DomainBed does: the agreement of colour and label, up to which way round it is.
    return Domain(
        name=f"{'+' if share < 0.5 else '-'}{abs(1 - 2 * share) / 2 + 0.5:.0%}", x=x, y=label.astype(np.int64)
    )
