"""Images that are read one at a time: arrays in memory, files, or tar shards read in place. `read` gives the parts.

A source is a list: it has a length, the label of every example, and reads one image by its number. The training thus
chooses the order in which examples are read, and the order is the same on any number of processes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from reweigh.bench import catalogue
from reweigh.bench.catalogue.card import Array, Loaded
from reweigh.bench.catalogue.images import Dataset
from reweigh.bench.catalogue.places import Origin
from reweigh.bench.errors import MissingFileError, UserError

__all__ = ["ArraySource", "FileSource", "ShardSource", "Source", "Streams", "build", "labelled_files", "parts"]

#: Endings of files that are taken for images.
IMAGES = (".jpg", ".jpeg", ".png", ".webp")


class Source(Protocol):
    """A list of labelled images."""

    @property
    def labels(self) -> Array:
        """The class of each."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def read(self, number: int) -> Any:
        """The image of a number, as Pillow has it."""
        ...


@dataclass(frozen=True)
class ArraySource:
    """Images in memory, uint8 NHWC."""

    images: Array
    labels: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, number: int) -> Any:
        """The image of a number."""
        from PIL import Image

        pixels = self.images[number]
        return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


@dataclass(frozen=True)
class FileSource:
    """Image files."""

    paths: tuple[Path, ...]
    labels: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> Any:
        """The image of a number."""
        return _decoded(self.paths[number].read_bytes(), str(self.paths[number]))


@dataclass(frozen=True)
class ShardSource:
    """Members of tar files, each by its shard, offset and length."""

    paths: tuple[Path, ...]
    places: Array
    labels: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, number: int) -> Any:
        """The image of a number."""
        shard, offset, length = (int(value) for value in self.places[number])
        with self.paths[shard].open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), length, offset)
        return _decoded(content, f"the member at byte {offset} of {self.paths[shard]}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Streams(Loaded):
    """The parts of a data set, `"train"` and `"test"`."""

    parts: Mapping[str, Source]

    @property
    def summary(self) -> str:
        """Training and test images."""
        return f"{len(self.parts['train'])} training and {len(self.parts['test'])} test images"


VALUE = Streams


def build(name: str, module: ModuleType, origin: Origin, options: Mapping[str, Any]) -> Streams:
    """Sources that read from official files."""
    return Streams(**origin.about(name), parts=module.read(origin.files, **options))


def parts(name: str, root: Path | None = None) -> Mapping[str, Source]:
    """The parts of a data set, `"train"` and `"test"`: of this kind, or of images, which are read into memory."""
    loaded = catalogue.load(name, root=root)
    if isinstance(loaded, Streams):
        return loaded.parts
    if not isinstance(loaded, Dataset):
        raise UserError(f"`data` must name images, got {name!r}.")
    return {
        "train": ArraySource(loaded.x_train, loaded.y_train, loaded.classes),
        "test": ArraySource(loaded.x_test, loaded.y_test, loaded.classes),
    }


def labelled_files(paths: Sequence[Path], names: Sequence[str], classes: tuple[str, ...]) -> FileSource:
    """Image files and the name of the class of each."""
    number = {name: k for k, name in enumerate(classes)}
    unknown = set(names) - number.keys()
    if unknown:
        raise UserError(f"{paths[0].parent.parent} has a class {min(unknown)!r} that the training part does not have.")
    return FileSource(tuple(paths), np.array([number[name] for name in names], np.int64), classes)


def official_folder(root: Path, folder: str, *needed: str) -> dict[str, Path]:
    """The needed files and folders in the folder that the authors publish; none if it is not there."""
    base = root / folder
    missing = [name for name in needed if not (base / name).exists()]
    if missing and base.exists():
        raise MissingFileError(f"{base} has no {missing[0]}. Unpack the official archive there.")
    return {} if missing else {name: base / name for name in needed}


def below_root(root: Path, path: str) -> Path:
    """A folder under the data root, and never outside it."""
    base = (root / str(path)).resolve()
    if not base.is_relative_to(root.resolve()):
        raise UserError(f"`path` must lie under the data root {root}, got {path!r}.")
    return base


def _decoded(content: bytes, what: str) -> Any:
    """The image in these bytes."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")
    except (Image.UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise UserError(f"{what} is not an image that Pillow can read ({error}). Remove it or make it again.") from None
