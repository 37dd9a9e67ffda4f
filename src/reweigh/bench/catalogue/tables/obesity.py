"""Obesity: is a person obese or lean, from the shares of bacteria in the gut?"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from reweigh.bench import limits
from reweigh.bench.catalogue.card import DataCard
from reweigh.bench.catalogue.tables import RawTable
from reweigh.bench.errors import UserError

CARD = DataCard(
    size="253 rows, 465 columns, 2 classes (65 % positive)",
    licence="MIT",
    source="Pasolli et al., MetAML, 2016; data of Le Chatelier et al., 2013",
    official="abundance.zip, the archive of abundance tables that MetAML publishes, into DATA_ROOT/obesity/.",
)
FILES = {"all": "obesity/abundance.zip"}

_MEMBER = "abundance_Obesity.txt"
_NOTE = "253 people: differences of a few points in accuracy are one or two of them."


def read(contents: Mapping[str, bytes]) -> RawTable:
    """One line per feature and one column per person, transposed; only the species are kept."""
    import polars as pl

    with zipfile.ZipFile(io.BytesIO(contents["all"])) as archive:
        packed, most = len(contents["all"]), limits.most_unpacked(len(contents["all"]))
        if archive.getinfo(_MEMBER).file_size > most:
            raise limits.too_large(FILES["all"], packed, most)
        text = archive.read(_MEMBER).decode()
    lines = {name: cells for name, *cells in (line.split("\t") for line in text.splitlines() if line)}
    species = {name: [float(cell) for cell in cells] for name, cells in lines.items() if name.startswith("k__")}
    if not species or "disease" not in lines:
        raise UserError(f"{_MEMBER} should have lines of species (k__...) and one of diseases. Is it MetAML's table?")
    classes = ["obese" if cell == "obesity" else "lean" for cell in lines["disease"]]
    return RawTable(pl.DataFrame({**species, "class": classes}), "class", notes=(_NOTE,))
