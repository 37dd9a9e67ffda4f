"""Your own images: one subfolder per class, scaled to one size.

`image_folder:folder=flowers,size=64` reads `DATA_ROOT/flowers/train/<class>/*` and `DATA_ROOT/flowers/test/<class>/*`,
or `DATA_ROOT/flowers/<class>/*` with one fixed stratified 80/20 split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue.card import Array, DataCard
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.draws import fixed_split
from reweigh.bench.errors import UserError

CARD = DataCard(
    size="what the folder holds",
    licence="the owner's",
    source="your own images",
    official="images into DATA_ROOT/FOLDER/train/CLASS/ and DATA_ROOT/FOLDER/test/CLASS/, or DATA_ROOT/FOLDER/CLASS/, "
    "and name it image_folder:folder=FOLDER.",
)
#: Pixels of an image: at most so many, and beyond an eighth of that at most so many for each byte of its file.
_MOST_PIXELS, _PIXELS_PER_BYTE = 80_000_000, 200
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})


def find(root: Path, folder: Any = "images", size: int = 32, grey: bool = False) -> dict[str, Path]:
    """Every image of the folder, in the order of their paths.

    Parameters
    ----------
    root
        The data root.
    folder
        A folder under it.
    size
        Height and width that every image is scaled to.
    grey
        One channel instead of three.
    """
    validate.whole("size", size, 1)
    if not isinstance(folder, str):
        raise UserError(f"`folder` must be text, got {folder!r}. Quote it: image_folder:folder='{folder}'.")
    base = (root / folder).resolve()
    if not base.is_relative_to(root.resolve()):
        raise UserError(f"`folder` must lie under the data root {root}, got {folder!r}. Change the root instead.")
    parts = [base / "train", base / "test"]
    folders = parts if all(part.is_dir() for part in parts) else [base]
    return {str(path.relative_to(base)): path for place in folders for path in _images(place)}


def read(files: Mapping[str, Path], folder: Any = "images", size: int = 32, grey: bool = False) -> Arrays:
    """The images, scaled, with the names of their folders as classes."""
    paths = list(files.values())
    x, y, classes = labelled(paths, size, grey)
    # Images lie in .../train/<class>/ and .../test/<class>/, or in .../<class>/ alone.
    part = np.array([path.parent.parent.name for path in paths])
    if set(part) == {"train", "test"}:
        train, test = np.flatnonzero(part == "train"), np.flatnonzero(part == "test")
    else:
        train, test = fixed_split(y, 0.2)
    return Arrays(x[train], y[train], x[test], y[test], classes)


def labelled(files: Sequence[Path], size: int, grey: bool) -> tuple[Array, Array, tuple[str, ...]]:
    """The images of files, the class of each, and the names of the classes: those of the folders they lie in."""
    classes = tuple(sorted({path.parent.name for path in files}))
    if len(classes) < 2:
        raise UserError(f"`folder` must hold a subfolder for each of at least two classes, got {list(classes)}.")
    label = {name: number for number, name in enumerate(classes)}
    y = np.array([label[path.parent.name] for path in files], np.int64)
    return pixels(files, size, grey), y, classes


def pixels(files: Sequence[Path], size: int, grey: bool) -> Array:
    """The images of files, scaled: uint8, NHWC."""
    return np.stack([_pixels(path, size, grey) for path in files])


def images_below(folder: Path) -> list[Path]:
    """Every image in a folder and the folders in it, in the order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in _SUFFIXES and path.is_file())


def _check_size(path: Path, width: int, height: int) -> None:
    """Refuse an image before it is unpacked whose size no camera makes, or that is far too large for its file."""
    most = min(_MOST_PIXELS, max(_MOST_PIXELS // 8, _PIXELS_PER_BYTE * path.stat().st_size))
    if width * height > most:
        raise UserError(
            f"{path} has {width} × {height} pixels, and an image of its size in bytes may have at most {most}. Remove "
            "it or scale it down."
        )


def _pixels(path: Path, size: int, grey: bool) -> Array:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            _check_size(path, *image.size)
            scaled = image.convert("L" if grey else "RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        # Pillow reports what is wrong with a torn or monstrous file, but not which file it is.
        raise UserError(f"{path} is not an image that Pillow can read ({error}). Remove it or save it again.") from None
    return np.array(scaled, dtype=np.uint8).reshape(size, size, -1)
