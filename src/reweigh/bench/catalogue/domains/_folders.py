"""Official folder layouts: one folder per domain, with one folder of images per class."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.catalogue.cache import cache_folder
from reweigh.bench.catalogue.card import Array, DataCard
from reweigh.bench.catalogue.domains import Domain
from reweigh.bench.catalogue.images.image_folder import images_below, pixels
from reweigh.bench.errors import MissingFileError
from reweigh.bench.files import replacing

#: Images that are decoded at once.
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Folders:
    """A data set that is published in this layout and is in no registry.

    Parameters
    ----------
    folder, domains
        Its folder under the data root, and its domains' folders in that.
    size, source
        Of its card.
    """

    folder: str
    domains: tuple[str, ...]
    size: str
    source: str

    @property
    def card(self) -> DataCard:
        """What `reweigh list data` shows of it."""
        return DataCard(
            size=self.size,
            licence="none stated (research use)",
            source=self.source,
            official=f"the folders {', '.join(self.domains)}, each with one folder of images per class, into "
            f"DATA_ROOT/{self.folder}/.",
        )

    def find(self, root: Path, size: int = 224) -> dict[str, Path]:
        """The folders of the domains, if all are there."""
        validate.whole("size", size, 1)
        folders = {domain: root / self.folder / domain for domain in self.domains}
        return folders if all(path.is_dir() for path in folders.values()) else {}

    def read(self, files: Mapping[str, Path], size: int = 224) -> tuple[tuple[str, ...], list[Domain]]:
        """Every image, scaled to `size` x `size`; kept decoded in the cache and read from there a batch at a time."""
        listed = {domain: images_below(path) for domain, path in files.items()}
        classes = tuple(sorted({path.parent.name for paths in listed.values() for path in paths}))
        if not classes:
            raise MissingFileError(f"there are no images in the folders {', '.join(files)}. Put {self.card.official}")
        number = {label: i for i, label in enumerate(classes)}
        return classes, [
            Domain(
                name=domain, x=_decoded(paths, size), y=np.array([number[path.parent.name] for path in paths], np.int64)
            )
            for domain, paths in listed.items()
        ]


def _decoded(paths: Sequence[Path], size: int) -> Array:
    """The images as one array on disk that is not read whole: DomainNet's would not fit into memory."""
    digest = hashlib.sha256(f"1 {size}".encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    cached = cache_folder() / "features" / f"images-{digest.hexdigest()[:16]}.npy"
    if not cached.exists():
        with replacing(cached) as temporary:
            shape = (len(paths), size, size, 3)
            # np.save would add .npy to the temporary name; a memory map takes the name as it is.
            whole = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for i in range(0, len(paths), _CHUNK):
                whole[i : i + _CHUNK] = pixels(paths[i : i + _CHUNK], size, grey=False)
            whole.flush()
    return np.load(cached, mmap_mode="r", allow_pickle=False)
