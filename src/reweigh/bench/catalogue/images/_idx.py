"""The idx format of the MNIST family, raw or gzipped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reweigh.bench import limits
from reweigh.bench.catalogue.card import Array
from reweigh.bench.catalogue.images import Arrays
from reweigh.bench.errors import MissingFileError, UserError

#: The four official files.
FILES: Mapping[str, str] = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def find(root: Path, folders: Sequence[str]) -> dict[str, Path]:
    """The four files, raw or `.gz`, in the first of these folders that has any of them."""
    for folder in folders:
        either = {part: (root / folder / name, root / folder / f"{name}.gz") for part, name in FILES.items()}
        files = {part: path for part, paths in either.items() for path in paths[::-1] if path.is_file()}
        missing = [name for part, name in FILES.items() if part not in files]
        if not missing:
            return {part: files[part] for part in FILES}
        if len(missing) < len(FILES):
            raise MissingFileError(
                f"{root / folder} has no {missing[0]} (or {missing[0]}.gz), but has other idx files."
            )
    return {}


def read(files: Mapping[str, Path], classes: tuple[str, ...]) -> Arrays:
    """Images and labels of the four files."""
    return arrays({part: path.read_bytes() for part, path in files.items()}, classes)


def arrays(contents: Mapping[str, bytes], classes: tuple[str, ...]) -> Arrays:
    """Images and labels from the bytes of the four files."""
    parts = {part: decode(content, part) for part, content in contents.items()}
    return Arrays(
        parts["x_train"][..., None],
        parts["y_train"].astype(np.int64),
        parts["x_test"][..., None],
        parts["y_test"].astype(np.int64),
        classes,
    )


def decode(content: bytes, what: str) -> Array:
    """An idx file of unsigned bytes: two zeros, the type, the number of axes, their lengths, the values."""
    if content[:2] == b"\x1f\x8b":
        content = limits.gunzipped(content, what)
    if content[:3] != b"\x00\x00\x08" or len(content) < 4:
        raise UserError(f"{what}: not an idx file of unsigned bytes (it starts with {content[:4].hex(' ')}).")
    axes = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=axes, offset=4))
    start = 4 + 4 * axes
    if len(content) - start != math.prod(shape):
        raise UserError(
            f"{what}: the idx header announces {math.prod(shape)} values, the file holds {len(content) - start}. "
            "It was cut off; fetch it again."
        )
    # A copy, because a view of `bytes` could not be written to, and torch warns of such arrays.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()
