"""The idx format of the MNIST family, raw or gzipped."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from reweigh.bench.data._dataset import Array, Arrays

#: The four official files.
FILES: Mapping[str, str] = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def find(root: Path, folders: Sequence[str]) -> list[Path]:
    """The four files, raw or `.gz`, in the first of these folders that has any of them."""
    for folder in folders:
        found = [_either(root / folder / name) for name in FILES.values()]
        missing = [name for name, path in zip(FILES.values(), found, strict=True) if path is None]
        if not missing:
            return [path for path in found if path is not None]
        if len(missing) < len(FILES):
            raise FileNotFoundError(
                f"{root / folder} has no {missing[0]} (or {missing[0]}.gz), but has other idx files."
            )
    return []


def read_files(files: Sequence[Path], classes: tuple[str, ...]) -> Arrays:
    """Images and labels of the four files, in the order of `FILES`."""
    return arrays({part: path.read_bytes() for part, path in zip(FILES, files, strict=True)}, classes)


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
        content = gzip.decompress(content)
    if content[:3] != b"\x00\x00\x08" or len(content) < 4:
        raise ValueError(f"{what}: not an idx file of unsigned bytes (it starts with {content[:4].hex(' ')}).")
    axes = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=axes, offset=4))
    start = 4 + 4 * axes
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{what}: the idx header announces {math.prod(shape)} values, the file holds {len(content) - start}. "
            "It was cut off or is not whole; get it again."
        )
    # A copy, because a view of `bytes` could not be written to, and torch warns of such arrays.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _either(path: Path) -> Path | None:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None
