"""Tiny Shakespeare: forty thousand lines of the plays, one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.texts import Corpus

CARD = DataCard(
    size="1.1 million characters",
    licence="public domain",
    source="Karpathy, char-rnn, 2015",
    official="tinyshakespeare.txt (or input.txt) into DATA_ROOT/text/.",
    stand_in_for="lm1b",
)


def find(root: Path) -> dict[str, Path]:
    """The file under either of its two names."""
    paths = (root / "text" / name for name in ("tinyshakespeare.txt", "input.txt"))
    return next(({"text": path} for path in paths if path.is_file()), {})


def read(contents: Mapping[str, bytes]) -> Corpus:
    """Scenes are not marked, so a document is twenty speeches, which blank lines part."""
    speeches = contents["text"].decode("utf-8").replace("\r\n", "\n").split("\n\n")
    return Corpus(["\n\n".join(speeches[i : i + 20]) for i in range(0, len(speeches), 20)])
