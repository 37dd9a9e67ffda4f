"""BANKING77: which of 77 questions does a customer ask the bank? 35 to 187 examples of each."""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Labelled, csv, part

FILES = {"train": "banking77/train.csv", "test": "banking77/test.csv"}
CARD = DataCard(
    size="10 003 + 3080 questions, 77 classes",
    licence="CC BY 4.0",
    source="Casanueva et al., Efficient Intent Detection with Dual Sentence Encoders, NLP4ConvAI 2020",
    official="train.csv and test.csv into DATA_ROOT/banking77/.",
    stand_in_for="GLUE",
)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Questions in the official split."""
    frames = {key: csv(content) for key, content in contents.items()}
    classes = tuple(sorted(set(frames["train"].get_column("category"))))
    train, test = (part(frames[key], "text", "category", classes) for key in ("train", "test"))
    return Labelled(train=train, val=None, test=test, classes=classes)
