"""PACS: paintings, cartoons, photographs and sketches of seven things. Official files only."""

from __future__ import annotations

from reweigh.bench.domains._folders import Folders

OFFICIAL = Folders(
    name="pacs",
    folder="PACS",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    size="9991 images, 7 classes, 4 domains",
    source="Li, Yang, Song and Hospedales, 2017",
)
CARD, present, read = OFFICIAL.card, OFFICIAL.present, OFFICIAL.read
