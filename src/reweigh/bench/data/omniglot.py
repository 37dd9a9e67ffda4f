"""Omniglot: 1623 handwritten characters, each drawn once by twenty people. Official files only."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.data import _archive
from reweigh.bench.data._dataset import Array, Arrays, Card

_PARTS = ("images_background", "images_evaluation")
CARD = Card(
    kind="images",
    size="19 280 + 13 180 images of 105 x 105, scaled to 28 x 28; 964 + 659 characters",
    licence="MIT",
    source="Lake, Salakhutdinov and Tenenbaum, 2015",
    official="images_background.zip and images_evaluation.zip into DATA_ROOT/omniglot/.",
)


def find(root: Path, size: int = 28) -> list[Path]:
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
        files = [root / folder / f"{part}.zip" for part in _PARTS]
        present = [path for path in files if path.is_file()]
        if len(present) == len(files):
            return files
        if present:
            missing = next(path for path in files if path not in present)
            raise FileNotFoundError(f"{missing.parent} has {present[0].name} but no {missing.name}. Both are needed.")
    return []


def read_files(files: list[Path], size: int = 28) -> Arrays:
    """Ink bright on dark ground; the background characters as training, the evaluation characters as test part.

    The two parts have no class in common: this is data for learning to learn, and few-shot recipes pool the parts and
    split the *characters* anew.
    """
    parts = [_characters(path, size) for path in files]
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

    The number in a file's name counts the characters of all alphabets, so that it tells them apart by itself.
    """
    found: dict[str, dict[str, Array]] = {}
    for name, content in _archive.members(path, lambda name: name.endswith(".png")):
        character, _, drawer = name.rpartition("/")[2].partition("_")
        found.setdefault(character, {})[drawer] = _ink(content, size)
    if len(found) < 2:
        raise ValueError(f"{path} holds {len(found)} characters. It is not the official archive; get it again.")
    return {character: [drawn for _, drawn in sorted(found[character].items())] for character in sorted(found)}


def _ink(content: bytes, size: int) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        scaled = image.convert("L").resize((size, size), Image.Resampling.BILINEAR)
    return 255 - np.array(scaled, dtype=np.uint8)
