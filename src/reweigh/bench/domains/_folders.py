"""Official folder layouts: a folder a domain, in it a folder a class, in it images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reweigh import _validate as validate
from reweigh.bench.data._cache import cache_folder, replacing
from reweigh.bench.data._dataset import Card
from reweigh.bench.data.image_folder import images_below, pixels
from reweigh.bench.domains._domains import Array, Domain

#: Images that are decoded at once.
_CHUNK = 256


def found(root: Path | None, folder: str, domains: Sequence[str]) -> str | None:
    """The folder under the data root, if it has all domains."""
    if root is None or not all((root / folder / domain).is_dir() for domain in domains):
        return None
    return str(root / folder)


def read(
    name: str, card: Card, root: Path | None, folder: str, domains: Sequence[str], size: int
) -> tuple[tuple[str, ...], list[Domain], str]:
    """Every image of every domain, scaled; kept decoded in the cache and read from there a batch at a time.

    Parameters
    ----------
    name, card
        Of the data set.
    root, folder, domains
        Where it lies, and its domains' folders.
    size
        Height and width that every image is scaled to.
    """
    validate.whole("size", size, 1)
    place = found(root, folder, domains)
    if place is None:
        raise FileNotFoundError(f"{name} is not under the data root {root}. Put {card.official}")
    listed = {domain: images_below(Path(place) / domain) for domain in domains}
    classes = tuple(sorted({path.parent.name for paths in listed.values() for path in paths}))
    if not classes:
        raise FileNotFoundError(f"{place} has the folders of {name}, but no images in them. Put {card.official}")
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
