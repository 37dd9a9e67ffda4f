"""Emoji-4D: the same emoji as four sets of artists have drawn them, in eight classes.

Each emoji is an *identity*: a split that holds out a style should hold out identities too, or the test style shows
things that were seen in training in another style.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.catalogue.card import Array, DataCard, Package
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.errors import MissingPackageError
from reweigh.bench.files import replacing

CARD = DataCard(
    size="1553 emoji in 4 drawing styles, 8 classes",
    licence="Noto Apache-2.0; Twemoji CC BY 4.0; OpenMoji CC BY-SA 4.0; Fluent MIT",
    source="Noto Emoji (Google), Twemoji (Twitter and contributors), OpenMoji (HfG Schwäbisch Gmünd and contributors) "
    "and Fluent Emoji High Contrast (Microsoft), as packed by Iconify",
    packages=(
        Package(
            registry="npm",
            name="@iconify-json/noto",
            version="1.2.9",
            sha256="3e918d88fc945c0bb3d468dbace6f88caef67f01c9f0e7bcae0915a042e8f1ad",
            size=3_102_958,
        ),
        Package(
            registry="npm",
            name="@iconify-json/twemoji",
            version="1.2.5",
            sha256="19046dff7d8707ce96212ec86468b36ac5f8e60409629dd13f809265c6d0ebb7",
            size=1_555_888,
        ),
        Package(
            registry="npm",
            name="@iconify-json/openmoji",
            version="1.2.29",
            sha256="03181e2c156cab35cf4a62f1f7886bd971d59212e75ac3f189d5a4cae3930fc5",
            size=1_264_633,
        ),
        Package(
            registry="npm",
            name="@iconify-json/fluent-emoji-high-contrast",
            version="1.2.6",
            sha256="0b92d48c90d2200bd499e3cdd09a127ca6a8c8ddefd34c35eb5a1e4994012ae0",
            size=1_054_969,
        ),
    ),
    together=True,
    stand_in_for="PACS",
)
STYLES = ("noto", "twemoji", "openmoji", "high contrast")
#: To be shown wherever a picture of the emoji is.
ATTRIBUTION = (
    "Noto Emoji © Google, Apache-2.0",
    "Twemoji © Twitter and other contributors, CC BY 4.0",
    "OpenMoji, CC BY-SA 4.0",
    "Fluent Emoji © Microsoft, MIT",
)
_LEFT_OUT = "Flags"


def read(packages: Sequence[Path], size: int = 64) -> tuple[tuple[str, ...], list[Domain]]:
    """All emoji that the four styles share, on white.

    Parameters
    ----------
    packages
        One per style, Noto's first.
    size
        Height and width.
    """
    validate.whole("size", size, 8)
    icons = [_member(package, "package/icons.json") for package in packages]
    categories: dict[str, list[str]] = _member(packages[0], "package/metadata.json")["categories"]
    category = {name: kind for kind, names in categories.items() for name in names if kind != _LEFT_OUT}
    sets = [_bodies(one) for one in icons]
    shared = sorted(name for name in category if all(name in bodies for bodies in sets))
    classes = tuple(sorted({category[name] for name in shared}))
    y = np.array([classes.index(category[name]) for name in shared], np.int64)
    drawn = _kept(sets, shared, size)
    styles = zip(STYLES, drawn, strict=True)
    return classes, [Domain(name=style, x=x, y=y, identity=np.arange(len(shared))) for style, x in styles]


def _member(package: Path, name: str) -> Any:
    return json.loads(archive.read(package, {"file": name})["file"])


def _bodies(icons: Any) -> dict[str, str]:
    """Every emoji of a set as a whole SVG, those that only have another name included."""
    named: dict[str, Any] = dict(icons["icons"])
    for alias, value in icons.get("aliases", {}).items():
        if set(value) == {"parent"} and value["parent"] in named:
            named[alias] = named[value["parent"]]
    width, height = icons.get("width", 16), icons.get("height", 16)
    return {name: _svg(icon, width, height) for name, icon in named.items()}


def _svg(icon: Any, width: int, height: int) -> str:
    box = f"{icon.get('left', 0)} {icon.get('top', 0)} {icon.get('width', width)} {icon.get('height', height)}"
    # Line art takes the colour of the text around it, which is black.
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" color="black">{icon["body"]}</svg>'
    )


def _kept(sets: list[dict[str, str]], shared: list[str], size: int) -> Array:
    """The pictures, `(styles, emoji, size, size, 3)`, drawn once and kept in the cache."""
    digest = hashlib.sha256(f"1 {size} {[p.sha256 for p in CARD.packages]} {shared}".encode())
    cached = cache_folder() / "features" / f"emoji4d-{digest.hexdigest()[:16]}.npy"
    if not cached.exists():
        drawn = np.stack([np.stack([_drawn(bodies[name], size) for name in shared]) for bodies in sets])
        with replacing(cached) as temporary, temporary.open("wb") as file:
            np.save(file, drawn, allow_pickle=False)
    return np.load(cached, allow_pickle=False)


def _drawn(svg: str, size: int) -> Array:
    from PIL import Image

    try:
        import resvg_py
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "'emoji4d' needs resvg_py, which draws SVG and is not installed. Install it with: pip install "
            "'reweigh[domains]'"
        ) from error
    png = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size, background="white"))
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB").resize((size, size)), np.uint8)
