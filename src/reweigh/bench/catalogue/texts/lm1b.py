"""The One Billion Word Benchmark, from its official files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Corpus

_FOLDER = "1-billion-word-language-modeling-benchmark-r13output"
_TRAINING, _HELD = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
CARD = DataCard(
    size="30 million sentences, 0.8 billion words",
    licence="none stated; news crawls of WMT 2011",
    source="Chelba et al., One Billion Word Benchmark, 2013",
    official=f"the unpacked folder {_FOLDER}/ into DATA_ROOT/lm1b/.",
)


def find(root: Path, shards: int = 1) -> dict[str, Path]:
    """The first training shards of 99, and the first held-out shard of 50; `shards=99` reads them all."""
    folder = root / "lm1b" / _FOLDER
    training = sorted((folder / _TRAINING).glob("news.en-*-of-00100"))[:shards]
    held = folder / _HELD / "news.en.heldout-00000-of-00050"
    return {path.name: path for path in (*training, held)} if training and held.is_file() else {}


def read(contents: Mapping[str, bytes], shards: int = 1) -> Corpus:
    """One document per line: sentences are shuffled, so none follows from the one before."""
    held = [name for name in contents if "heldout" in name]
    lines = {name: content.decode("utf-8").splitlines() for name, content in contents.items()}
    training = [line for name in sorted(contents) if name not in held for line in lines[name]]
    return Corpus(training, [line for name in held for line in lines[name]])
