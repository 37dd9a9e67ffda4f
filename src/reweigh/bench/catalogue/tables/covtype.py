"""CovType: which of seven kinds of forest grows on a patch of 30 by 30 metres?"""

from __future__ import annotations

from collections.abc import Mapping

from reweigh.bench.catalogue.card import DataCard, Package
from reweigh.bench.catalogue.tables import RawTable, parse

CARD = DataCard(
    size="581 012 rows, 54 columns (12 attributes), 7 classes (0.5 % to 49 %)",
    licence="CC BY 4.0",
    source="Blackard, UCI, 1998",
    official="covtype.data (or covtype.data.gz) into DATA_ROOT/covtype/.",
    packages=(
        Package(
            registry="pip",
            name="scikit-multiflow",
            version="0.4.1",
            sha256="17842a0719992871f66f2edd475c3cf947be73d16595cb28d9ec26a79cfc58de",
            size=16_266_610,
            # Built for one old Python; nothing in it is run, and any Python may unpack it.
            options=(
                "--only-binary=:all:",
                "--python-version=3.7",
                "--platform=manylinux1_x86_64",
                "--implementation=cp",
                "--abi=cp37m",
            ),
        ),
    ),
)
FILES = {"all": "covtype/covtype.data"}
MEMBERS = {"all": "skmultiflow/data/datasets/covtype.csv"}

_NAMES = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
    *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)),
    "Cover_Type",
)
_INDICATORS = {"Wilderness_Area": _NAMES[10:14], "Soil_Type": _NAMES[14:54]}
#: The official parts are the first rows, the next, and all others.
_TRAIN, _VAL = 11_340, 3_780
_NOTE = (
    "The official training part has as many rows of each class; the official test part, all the others, is far from "
    "that."
)


def read(contents: Mapping[str, bytes]) -> RawTable:
    """One file in the official order; the package's has a header line, the official one has none."""
    content = contents["all"]
    frame = parse(content, None if content.startswith(b"Elevation") else _NAMES)
    end = frame.height
    return RawTable(frame, "Cover_Type", range(_TRAIN + _VAL, end), range(_TRAIN, _TRAIN + _VAL), (_NOTE,), _INDICATORS)
