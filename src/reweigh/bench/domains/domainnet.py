"""DomainNet: 345 things in six ways of showing them. Official files only."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.domains import _folders
from reweigh.bench.domains._domains import Domain

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
_FOLDER = "domain_net"
CARD = Card(
    kind="images",
    size="586 575 images, 345 classes, 6 domains",
    licence="none stated (research use)",
    source="Peng et al., 2019",
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
    return _folders.read("domainnet", CARD, root, _FOLDER, DOMAINS, size)
