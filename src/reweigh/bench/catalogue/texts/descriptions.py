"""Descriptions: the texts with which scikit-learn describes its data sets; nothing to fetch, and little to learn."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Corpus, Labelled, TextPart

CARD = DataCard(
    size="14 documents, 40 thousand characters",
    licence="BSD 3-Clause",
    source="the scikit-learn developers; installed with scikit-learn",
)


def read(labels: bool = False, capitals: bool = False) -> Corpus | Labelled:
    """The descriptions in the order of their names or, with `labels`, the lines of the longest and whose they are.

    With `capitals` they have no small letters: another domain, for trying out what becomes of a model that changes its.
    """
    folder = resources.files("sklearn.datasets.descr")
    entries = sorted((one for one in folder.iterdir() if one.name.endswith(".rst")), key=lambda one: one.name)
    documents = [entry.read_text(encoding="utf-8") for entry in entries]
    if capitals:
        documents = [document.upper() for document in documents]
    return _lines(sorted(documents, key=len)[-4:]) if labels else Corpus(documents)


def _lines(documents: list[str]) -> Labelled:
    """Which document does a line come from? A question for trying things out; every third line is for testing."""
    lines = [(line.strip(), i) for i, text in enumerate(documents) for line in text.splitlines()]
    once = dict(reversed(lines))  # a line that occurs twice must not be in both parts
    sentences = [(line, i) for line, i in once.items() if len(re.findall(r"[a-z]{3,}", line)) >= 4]

    def of(rests: tuple[int, ...]) -> TextPart:
        chosen = [pair for position, pair in enumerate(sentences) if position % 3 in rests]
        return TextPart([line for line, _ in chosen], np.array([i for _, i in chosen], np.int64))

    names = tuple(f"text {i + 1}" for i in range(len(documents)))
    return Labelled(train=of((0, 1)), val=None, test=of((2,)), classes=names)
