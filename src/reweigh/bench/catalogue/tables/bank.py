"""Bank marketing: does a client subscribe to a term deposit after a telephone call?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.tables import RawTable, parse
from reweigh.bench.catalogue.tables.adult import CARD as ADULT

CARD = DataCard(
    size="41 188 rows, 20 columns, 2 classes (11 % positive)",
    licence="CC BY 4.0",
    source="Moro, Cortez and Rita, UCI, 2014",
    official="bank-additional-full.csv into DATA_ROOT/bank/.",
    packages=ADULT.packages,
)
FILES = {"all": "bank/bank-additional-full.csv"}
MEMBERS = {"all": "aif360/data/raw/bank/bank-additional-full.csv"}

_NOTE = (
    "'duration' of the call is known only once its outcome is; `--drop duration` for a model of use before the call."
)


def read(contents: Mapping[str, bytes]) -> RawTable:
    """One file, in the order of the calls."""
    return RawTable(parse(contents["all"], separator=";"), "y", notes=(_NOTE,))
