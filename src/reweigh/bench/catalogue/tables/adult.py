"""Adult (census income): does a person earn more than 50 000 dollars a year?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.tables import RawTable, parse

CARD = DataCard(
    size="32 561 + 16 281 rows, 14 columns, 2 classes (24 % positive)",
    licence="CC BY 4.0",
    source="Becker and Kohavi, UCI, 1996",
    official="adult.data and adult.test into DATA_ROOT/adult/.",
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
FILES = {"train": "adult/adult.data", "test": "adult/adult.test"}
MEMBERS = {key: f"aif360/data/raw/{path}" for key, path in FILES.items()}

_NAMES = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)


def read(contents: Mapping[str, bytes]) -> RawTable:
    """The official training rows, and below them the official test rows, whose classes end in a full stop."""
    import polars as pl

    train, test = (parse(contents[key], _NAMES, comment="|") for key in ("train", "test"))
    frame = pl.concat([train, test])
    income = frame.get_column("income").str.strip_suffix(".")
    return RawTable(frame.with_columns(income), "income", range(train.height, frame.height))
