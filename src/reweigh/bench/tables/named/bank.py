"""Bank marketing: does a client subscribe to a term deposit after a telephone call?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.data._dataset import Card, Package
from reweigh.bench.tables.named._table import Table, parse

CARD = Card(
    kind="table",
    size="41 188 rows, 20 columns, 2 classes (11 % positive)",
    licence="CC BY 4.0",
    source="Moro, Cortez and Rita, UCI, 2014",
    official="bank-additional-full.csv into DATA_ROOT/bank/.",
    packages=(
        Package(
            registry="pip",
            name="aif360",
            version="0.3.0rc0",
            sha256="0db86e749bd8c6814023663cae76e1d7826a4596d1228cdaa758df3b0dccfd0a",
            size=56_483_891,
        ),
    ),
)
FILES = {"all": "bank/bank-additional-full.csv"}
MEMBERS = {"all": "aif360/data/raw/bank/bank-additional-full.csv"}

_NOTE = (
    "'duration' of the call is known only once its outcome is; `--drop duration` for a model of use before the call."
)


def table(contents: Mapping[str, bytes]) -> Table:
    """One file, in the order of the calls."""
    return Table(parse(contents["all"], separator=";"), "y", notes=(_NOTE,))
