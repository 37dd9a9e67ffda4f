"""Criteo: is an advertisement clicked on? Official file only: no registry has it."""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.tables import RawTable, parse

CARD = DataCard(
    size="the first 1 000 000 of 45 840 617 rows, 39 columns, 2 classes (25 % positive)",
    licence="Criteo's terms for research",
    source="Criteo Labs, Display Advertising Challenge, 2014",
    official="train.txt (or train.txt.gz) of the challenge into DATA_ROOT/criteo/.",
)
FILES = {"all": "criteo/train.txt"}
#: Lines that are read: the whole file is eleven gigabytes.
LINES = 1_000_000

_NAMES = ("click", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
_NOTE = f"Only the first {LINES:,} rows are read; they are the earliest."


def read(contents: Mapping[str, bytes]) -> RawTable:
    """Tab-separated without a header: the label, 13 counts and 26 hashed categories."""
    return RawTable(parse(contents["all"], _NAMES, separator="\t"), "click", notes=(_NOTE,))
