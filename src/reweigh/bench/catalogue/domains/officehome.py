"""OfficeHome: things of office and home as art, clip art, products and photographs. Official files only."""

from __future__ import annotations

from reweigh.bench.catalogue.domains._folders import Folders

OFFICIAL = Folders(
    folder="office_home",
    domains=("Art", "Clipart", "Product", "Real World"),
    size="15 588 images, 65 classes, 4 domains",
    source="Venkateswara, Eusebio, Chakraborty and Panchanathan, 2017",
)
CARD, find, read = OFFICIAL.card, OFFICIAL.find, OFFICIAL.read
