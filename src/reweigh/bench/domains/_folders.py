"""Official folder layouts: a folder a domain, in it a folder a class, in it images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.data._cache import cache_folder, replacing
from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data.image_folder import images_below, pixels
from reweigh.bench.domains._domains import Array, Domain

#: Images that are decoded at once.
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class Folders:
    """A data set that is handed out in this layout and is in no registry.

    Parameters
    ----------
    name, folder, domains
        What it is called here, its folder under the data root, and its domains' folders in that.
    size, source
        Of its card.
    """

    name: str
    folder: str
    domains: tuple[str, ...]
    size: str
    source: str

    @property
    def card(self) -> Card:
        """What `reweigh list data` says of it."""
        return Card(
            kind="images",
            size=self.size,
            licence="none stated (research use)",
            source=self.source,
            official=f"the folders {', '.join(self.domains)}, each with a folder of images a class, into "
            f"DATA_ROOT/{self.folder}/.",
        )

    def present(self, root: Path | None) -> str | None:
        """The folder under the data root, if it has all domains."""
        if root is None or not all((root / self.folder / domain).is_dir() for domain in self.domains):
            return None
        return str(root / self.folder)

    def read(
        self, root: Path | None, download: bool, progress: Progress | None, size: int = 224
    ) -> tuple[tuple[str, ...], list[Domain], str]:
        """Every image, scaled to `size` x `size`; kept decoded in the cache and read from there a batch at a time."""
        validate.whole("size", size, 1)
        place = self.present(root)
        if place is None:
            raise FileNotFoundError(f"{self.name} is not under the data root {root}. Put {self.card.official}")
        listed = {domain: images_below(Path(place) / domain) for domain in self.domains}
        classes = tuple(sorted({path.parent.name for paths in listed.values() for path in paths}))
        if not classes:
            raise FileNotFoundError(
                f"{place} has the folders of {self.name}, but no images in them. Put {self.card.official}"
            )
        number = {label: i for i, label in enumerate(classes)}
        result = [
            Domain(
                name=domain,
                x=_decoded(paths, size),
                y=np.array([number[path.parent.name] for path in paths], np.int64),
            )
            for domain, paths in listed.items()
        ]
        return classes, result, f"official files in {place}"


def _decoded(paths: Sequence[Path], size: int) -> Array:
    """The images as one array on disk that is not read whole: DomainNet's would not fit into memory."""
    digest = hashlib.sha256(f"1 {size}".encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    kept = cache_folder() / "features" / f"images-{digest.hexdigest()[:16]}.npy"
    if not kept.exists():
        with replacing(kept) as temporary:
            shape = (len(paths), size, size, 3)
            # np.save would add .npy to the temporary name; a memory map takes the name as it is.
            whole = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for i in range(0, len(paths), _CHUNK):
                whole[i : i + _CHUNK] = pixels(list(paths[i : i + _CHUNK]), size, grey=False)
            whole.flush()
    return np.load(kept, mmap_mode="r", allow_pickle=False)
