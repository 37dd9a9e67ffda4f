"""Your own images: one subfolder per class, scaled to one size.

`image_folder:folder=flowers,size=64` reads `DATA_ROOT/flowers/train/<class>/*` and `DATA_ROOT/flowers/test/<class>/*`
(or `val/`), or `DATA_ROOT/flowers/<class>/*` with one fixed stratified 80/20 split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
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
#: Folders of images to test on: the first that is there. The images of the others are trained on.
_HELD_OUT = ("test", "val", "valid", "validation")
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
    divided = [base / "train", *(base / name for name in _HELD_OUT)]
    folders = [part for part in divided if part.is_dir()]
    if divided[0] not in folders or len(folders) == 1:
        folders = [base]
    return {str(path.relative_to(base)): path for place in folders for path in _images(place)}


def parts(names: Iterable[str]) -> dict[str, bool]:
    """The parts that a folder is divided into, and whether each is tested on; empty where it holds the classes itself.

    It is divided if it has `train/` and one of `test/`, `val/`, `valid/` and `validation/`. Where there are several of
    these, one is tested on, and the others are more images to train on: validation images are drawn from them.

    Examples
    --------
    >>> parts(["train/cat/1.png", "val/cat/2.png"]), parts(["cat/1.png", "dog/2.png"])
    ({'train': False, 'val': True}, {})
    """
    present = {PurePath(name).parts[0] for name in names if len(PurePath(name).parts) > 2}
    held_out = [name for name in _HELD_OUT if name in present]
    return {"train": False, **{name: name == held_out[0] for name in held_out}} if held_out else {}


def held_out(names: Sequence[str]) -> Array | None:
    """Which images lie in the part to test on, by their paths below the folder; None where it is not divided."""
    divided = parts(names)
    return np.array([divided[PurePath(name).parts[0]] for name in names]) if divided else None


def read(files: Mapping[str, Path], folder: Any = "images", size: int = 32, grey: bool = False) -> Arrays:
    """The images, scaled, with the names of their folders as classes."""
    paths = list(files.values())
    x, y, classes = labelled(paths, size, grey)
    tested = held_out(list(files))
    train, test = fixed_split(y, 0.2) if tested is None else (np.flatnonzero(~tested), np.flatnonzero(tested))
    return Arrays(x[train], y[train], x[test], y[test], classes)


def labelled(files: Sequence[Path], size: int, grey: bool) -> tuple[Array, Array, tuple[str, ...]]:
    """The images of files, the class of each, and the names of the classes."""
    y, classes = labels(files)
    return pixels(files, size, grey), y, classes


def labels(files: Sequence[Path]) -> tuple[Array, tuple[str, ...]]:
    """The class of each file, and the names of the classes: those of the folders they lie in."""
    classes = tuple(sorted({path.parent.name for path in files}))
    if len(classes) < 2:
        raise UserError(f"`folder` must hold a subfolder for each of at least two classes, got {list(classes)}.")
    label = {name: number for number, name in enumerate(classes)}
    return np.array([label[path.parent.name] for path in files], np.int64), classes


def pixels(files: Sequence[Path], size: int, grey: bool) -> Array:
    """The images of files, scaled: uint8, NHWC."""
    return np.stack([_pixels(path, size, grey) for path in files])


def readable(
    files: Sequence[Path], size: int, grey: bool, out: Array | None = None
) -> tuple[Array, list[Path], list[str]]:
    """The images that can be read, scaled, their files, and for each of the others why it cannot.

    They are written one by one to the first places of `out`, if it is given, which may be a file.

    Raises
    ------
    UserError
        If more than half cannot: then something else is wrong than single files.
    """
    images = np.empty((len(files), size, size, 1 if grey else 3), np.uint8) if out is None else out
    kept: list[Path] = []
    reasons: list[str] = []
    for path in files:
        try:
            images[len(kept)] = _pixels(path, size, grey)
        except UserError as error:
            reasons.append(str(error))
            continue
        kept.append(path)
    if len(reasons) > len(files) / 2:
        raise UserError(f"{len(reasons)} of {len(files)} images cannot be used, the first because {reasons[0]}")
    return images[: len(kept)], kept, reasons


def skipped(reasons: Sequence[str], folder: Path) -> list[str]:
    """A note on images below a folder that were left out, if any were.

    It names the first of them by its path below the folder: pages show notes to others, whom the folder does not
    concern.
    """
    if not reasons:
        return []
    images = "1 image is skipped" if len(reasons) == 1 else f"{len(reasons)} images are skipped, the first"
    return [f"{images} because {reasons[0].replace(f'{folder}/', '')}"]


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
