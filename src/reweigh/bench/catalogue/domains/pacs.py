"""PACS: paintings, cartoons, photographs and sketches of seven things. Official files only."""

from __future__ import annotations

from reweigh.bench.catalogue.domains._folders import Folders

OFFICIAL = Folders(
    folder="PACS",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    size="9991 images, 7 classes, 4 domains",
    source="Li, Yang, Song and Hospedales, 2017",
)
CARD, find, read = OFFICIAL.card, OFFICIAL.find, OFFICIAL.read
