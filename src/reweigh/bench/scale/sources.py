"""Where images come from: arrays in memory, folders of files, or tar shards read in place.

A source is a list: it has a length, the label of every example, and gives one image by its number. The order in which
examples are read is thus the training's to choose, and the same on any number of processes. Shards are plain tar files
whose members are pairs `KEY.jpg` and `KEY.cls` (the label in digits), the layout of WebDataset; their index is made
once by reading headers, and images are read at their offsets. Nothing is unpacked.
"""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reweigh.bench import _names, data

Array = np.ndarray[Any, Any]
#: Endings of files that are taken for images.
_IMAGES = (".jpg", ".jpeg", ".png", ".webp")


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
class Arrays:
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
class Files:
    """Image files, one folder a class."""

    paths: tuple[Path, ...]
    labels: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> Any:
        """The image of a number."""
        return decoded(self.paths[number].read_bytes(), str(self.paths[number]))


@dataclass(frozen=True)
class Shards:
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
        return decoded(content, f"the member at byte {offset} of {self.paths[shard]}")


def parts(name: str, root: Path | None) -> dict[str, Source]:
    """The parts of a data set, `"train"` and `"test"` at least.

    Parameters
    ----------
    name
        A data set of `reweigh list data`, read into memory; or `food101`, `cars` or `grocery` as their authors hand
        them out; or `folder:path=imagenet` for
        `DATA_ROOT/imagenet/{train,val}/CLASS/*`; or `shards:path=imagenet` for
        `DATA_ROOT/imagenet/{train,val}-*.tar`.
    root
        The data root.
    """
    from reweigh.bench.scale.official import OFFICIAL

    short, options = _names.parse(name)
    if short in OFFICIAL and not options:
        if root is None:
            raise ValueError(f"`data` {name!r} needs a data root: --data-root or REWEIGH_DATA.")
        return {**OFFICIAL[short](root)}
    if short not in ("folder", "shards"):
        loaded = data.load(name, root=root)
        return {
            "train": Arrays(loaded.x_train, loaded.y_train, loaded.classes),
            "test": Arrays(loaded.x_test, loaded.y_test, loaded.classes),
        }
    if root is None or set(options) != {"path"}:
        raise ValueError(f"`data` {name!r} needs a data root and a path under it, as in {short}:path=imagenet.")
    base = (root / str(options["path"])).resolve()
    if not base.is_relative_to(root.resolve()):
        raise ValueError(f"`path` must lie under the data root {root}, got {options['path']!r}.")
    held = {"train": "train", "test": "val" if _there(base, "val", short) else "test"}
    reader = folder if short == "folder" else shards
    return {part: reader(base, held[part]) for part in held}


def folder(base: Path, part: str) -> Files:
    """Images in `base/part/CLASS/`; classes in the order of their names."""
    paths = tuple(sorted(path for path in (base / part).glob("*/*") if path.suffix.lower() in _IMAGES))
    if not paths:
        raise FileNotFoundError(f"there are no images in {base / part}/CLASS/. Put them there, one folder a class.")
    classes = tuple(sorted({path.parent.name for path in paths}))
    number = {name: k for k, name in enumerate(classes)}
    return Files(paths, np.array([number[path.parent.name] for path in paths], np.int64), classes)


def shards(base: Path, part: str) -> Shards:
    """Images in `base/part-*.tar`; the names of classes in `base/classes.txt`, if it is there."""
    paths = tuple(sorted(base.glob(f"{part}-*.tar")))
    if not paths:
        raise FileNotFoundError(f"there are no shards {base / part}-*.tar. Put them there, or use folder:path=…")
    places: list[tuple[int, int, int]] = []
    labels: list[int] = []
    for number, path in enumerate(paths):
        for place, label in _index(path):
            places.append((number, *place))
            labels.append(label)
    names = base / "classes.txt"
    classes = tuple(names.read_text().splitlines()) if names.exists() else tuple(map(str, range(max(labels) + 1)))
    if max(labels) >= len(classes):
        raise ValueError(f"{base} has a label {max(labels)} and {len(classes)} names of classes in classes.txt.")
    return Shards(paths, np.array(places, np.int64), np.array(labels, np.int64), classes)


def _index(path: Path) -> list[tuple[tuple[int, int], int]]:
    """Offset, length and label of each image of a shard, in the order of their keys."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                key, dot, ending = entry.name.rpartition(".")
                ending = dot + ending
                if not entry.isreg():
                    continue
                if ending.lower() in _IMAGES:
                    images[key] = (entry.offset_data, entry.size)
                elif ending == ".cls":
                    content = archive.extractfile(entry)
                    labels[key] = int(content.read()) if content is not None else -1
    except (tarfile.TarError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}). Make this shard again.") from error
    size = path.stat().st_size
    for key, (offset, length) in images.items():
        if key not in labels or offset + length > size:
            raise ValueError(f"{path} is damaged ({key!r} is cut off or has no label). Make this shard again.")
    if not images:
        raise ValueError(f"{path} holds no images. Members must be pairs KEY.jpg and KEY.cls.")
    return [(images[key], labels[key]) for key in sorted(images)]


def decoded(content: bytes, what: str) -> Any:
    """The image in these bytes."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB")
    except (Image.UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{what} is not an image that Pillow can read ({error}). Remove it or make it anew.") from None


def _there(base: Path, part: str, kind: str) -> bool:
    return (base / part).is_dir() if kind == "folder" else any(base.glob(f"{part}-*.tar"))
