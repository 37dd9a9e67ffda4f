"""Omniglot: 1623 handwritten characters, each drawn once by twenty people. Official files only."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue import archive
from reweigh.bench.catalogue.card import Array, DataCard
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.errors import MissingFileError, UserError

_PARTS = ("images_background", "images_evaluation")
CARD = DataCard(
    size="19 280 + 13 180 images of 105 x 105, scaled to 28 x 28; 964 + 659 characters",
    licence="MIT",
    source="Lake, Salakhutdinov and Tenenbaum, 2015",
    official="images_background.zip and images_evaluation.zip into DATA_ROOT/omniglot/.",
)


def find(root: Path, size: int = 28) -> dict[str, Path]:
    """The two official archives in `omniglot/`, or where torchvision puts them.

    Parameters
    ----------
    root
        The data root.
    size
        Height and width that every image is scaled to.
    """
    validate.whole("size", size, 1)
    for folder in ("omniglot", "omniglot-py"):
        files = {part: root / folder / f"{part}.zip" for part in _PARTS}
        missing = [path for path in files.values() if not path.is_file()]
        if not missing:
            return files
        if len(missing) < len(files):
            there = next(path for path in files.values() if path not in missing)
            raise MissingFileError(f"{there.parent} has {there.name} but no {missing[0].name}. Both are needed.")
    return {}


def read(files: Mapping[str, Path], size: int = 28) -> Arrays:
    """Ink bright on dark ground; the background characters as training, the evaluation characters as test part.

    The two parts have no class in common: this is data for learning to learn, and few-shot recipes pool the parts and
    split the *characters* again.
    """
    parts = [_characters(path, size) for path in files.values()]
    classes = tuple(name for characters in parts for name in characters)
    arrays: list[Array] = []
    first = 0
    for characters in parts:
        arrays.append(np.stack([image for drawn in characters.values() for image in drawn])[..., None])
        counts = [len(drawn) for drawn in characters.values()]
        arrays.append(np.repeat(np.arange(first, first + len(counts)), counts).astype(np.int64))
        first += len(counts)
    return Arrays(arrays[0], arrays[1], arrays[2], arrays[3], classes)


def _characters(path: Path, size: int) -> dict[str, list[Array]]:
    """The drawings of each character, in the order of their names, which are `<character>_<drawer>.png`.

    The number in a file's name counts the characters of all alphabets, so that it alone distinguishes them.
    """
    drawings: dict[str, dict[str, Array]] = {}
    for name, content in archive.members(path, lambda name: name.endswith(".png")):
        character, _, drawer = name.rpartition("/")[2].partition("_")
        drawings.setdefault(character, {})[drawer] = _ink(content, size)
    if len(drawings) < 2:
        raise UserError(f"{path} holds {len(drawings)} characters. It is not the official archive; download it again.")
    return {character: [drawn for _, drawn in sorted(drawings[character].items())] for character in sorted(drawings)}


def _ink(content: bytes, size: int) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        scaled = image.convert("L").resize((size, size), Image.Resampling.BILINEAR)
    return 255 - np.array(scaled, dtype=np.uint8)
