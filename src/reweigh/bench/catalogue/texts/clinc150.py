"""CLINC150: which of 150 things does somebody ask an assistant for? 25 to 100 examples of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Labelled, TextPart

CARD = DataCard(
    size="10 525 + 3000 + 4500 requests, 150 classes",
    licence="CC BY 3.0",
    source="Larson et al., An Evaluation Dataset for Intent Classification and Out-of-Scope Prediction, EMNLP 2019",
    official="data_imbalanced.json and data_full.json into DATA_ROOT/clinc150/.",
    stand_in_for="GLUE",
)


def find(root: Path, variant: str = "imbalanced") -> dict[str, Path]:
    """The official file of a variant, `imbalanced` or `full`."""
    path = root / "clinc150" / f"data_{variant}.json"
    return {"json": path} if path.is_file() else {}


def read(contents: Mapping[str, bytes], variant: str = "imbalanced") -> Labelled:
    """Requests within the scope, in the official split."""
    content = json.loads(contents["json"])
    classes = tuple(sorted({intent for _, intent in content["train"]}))
    index = {name: i for i, name in enumerate(classes)}

    def of(name: str) -> TextPart:
        labelled = [(text, index[intent]) for text, intent in content[name] if intent in index]
        return TextPart([text for text, _ in labelled], np.array([i for _, i in labelled], np.int64))

    return Labelled(train=of("train"), val=of("val"), test=of("test"), classes=classes)
