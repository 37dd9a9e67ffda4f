"""VLCS: photographs of five things from four collections. Official files only."""

from __future__ import annotations

from reweigh.bench.catalogue.domains._folders import Folders

OFFICIAL = Folders(
    folder="VLCS",
    domains=("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    size="10 729 images, 5 classes, 4 domains",
    source="Fang, Xu and Rockmore, 2013",
)
CARD, find, read = OFFICIAL.card, OFFICIAL.find, OFFICIAL.read
