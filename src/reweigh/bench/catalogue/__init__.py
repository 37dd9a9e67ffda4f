"""One catalogue of all data that have a name. The folders are the kinds, and a file is a data set.

A data set is looked for under the data root (its official files; `REWEIGH_DATA` or `root`), then in the cache
(`REWEIGH_CACHE` or the user's cache folder), and may be fetched from a registry package into the cache.

Its file has a `CARD`, a function `read`, whose keyword arguments are the data set's options, and what it is read from:

- nothing, where it comes with an installed library;
- `FILES`, the official files by short names, or a function `find(root, **options)` that gives them, and
  `MEMBERS` or `member(path)`, the same files in the registry package;
- or `BASE`, the name of the data set that it is made from.

The `__init__` of a folder defines what data of this kind are loaded as: the class `VALUE`, and `build`, which makes one
from what `read` returns.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from reweigh.bench import registry
from reweigh.bench.catalogue.card import DataCard, DataEntry, Loaded
from reweigh.bench.catalogue.fetching import DownloadProgress, FetchError
from reweigh.bench.catalogue.places import Origin, locate, present
from reweigh.bench.errors import UserError

__all__ = ["KINDS", "DataCard", "DataEntry", "FetchError", "Loaded", "describe", "get", "load", "names"]

_FOLDER = Path(__file__).parent
#: The kinds of data there are: the folders of this folder.
KINDS = tuple(sorted(path.parent.name for path in _FOLDER.glob("*/__init__.py")))

LoadedT = TypeVar("LoadedT", bound=Loaded)


def names(kind: str | None = None) -> list[str]:
    """The data sets there are, of one kind or of all."""
    return [name for name, folder in _folders().items() if kind in (None, folder)]


def describe(*, root: Path | None = None) -> list[DataEntry]:
    """All data sets, for a listing. Nothing is read and nothing is fetched."""
    return [_entry(name, root) for name in names()]


def load(
    name: str,
    kind: type[LoadedT] = Loaded,
    *,
    root: Path | None = None,
    download: bool = False,
    progress: DownloadProgress | None = None,
) -> LoadedT:
    """A data set by its name.

    Parameters
    ----------
    name
        One of `names`, with options where it has some: `"cifar10"`, `"image_folder:folder=flowers,size=64"`.
    kind
        What it must be loaded as, such as `Dataset` for images.
    root
        Folder of official files; the environment variable `REWEIGH_DATA` unless given.
    download
        Whether it may be fetched if it is neither there nor in the cache.
    progress
        Called while fetching with the bytes there are and the bytes there will be.

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.shape
    ((1258, 8, 8, 1), (539, 8, 8, 1), (1, 8, 8))
    """
    short, options = registry.parse(name)
    folder, module = _module(short, kind)
    registry.check_options(short, getattr(module, "read", lambda: None), options)
    if hasattr(module, "BASE"):
        base = load(module.BASE, root=root, download=download, progress=progress)
        origin = Origin(name=short, card=module.CARD, base=base)
    else:
        origin = locate(short, module, options, root, download, progress)
    return _package(folder).build(name, module, origin, options)


def get(name: str, progress: DownloadProgress | None = None) -> str:
    """Fetch a data set into the cache, unless it is there, and describe in one line what there is now.

    Parameters
    ----------
    name
        One of `names`, with options where it has some.
    progress
        Called while fetching with the bytes there are and the bytes there will be.
    """
    return f"{name} is ready: {load(name, download=True, progress=progress).summary}."


@functools.cache
def _folders() -> dict[str, str]:
    """The folder of each name."""
    return {name: folder for folder in KINDS for name in registry.listing(_FOLDER / folder)}


def _package(folder: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{folder}")


def _module(name: str, kind: type[Loaded] = Loaded) -> tuple[str, ModuleType]:
    """The folder and the file of a name, which must be of this kind; other names are answered with the near ones."""
    folder = _folders().get(name)
    if folder is not None and issubclass(_package(folder).VALUE, kind):
        return folder, registry.module(f"{__name__}.{folder}", _FOLDER / folder, name, "data set")
    wanted = [folder for folder in KINDS if issubclass(_package(folder).VALUE, kind)]
    problem = "there is no data set named" if folder is None else f"this takes {' or '.join(wanted)}, not"
    raise UserError(f"{problem} {name!r}. {registry.near(name, [one for kind in wanted for one in names(kind)])}")


def _entry(name: str, root: Path | None) -> DataEntry:
    kind, module = _module(name)
    base = getattr(module, "BASE", name)
    return DataEntry(name=name, kind=kind, card=module.CARD, present=present(base, _module(base)[1], root))
