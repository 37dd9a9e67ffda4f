"""DomainNet: 345 things in six ways of showing them. Official files only."""

from __future__ import annotations

from reweigh.bench.catalogue.domains._folders import Folders

OFFICIAL = Folders(
    folder="domain_net",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    size="586 575 images, 345 classes, 6 domains",
    source="Peng et al., 2019",
)
CARD, find, read = OFFICIAL.card, OFFICIAL.find, OFFICIAL.read
