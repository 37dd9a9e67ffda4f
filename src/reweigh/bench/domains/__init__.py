"""Data with several domains: one file each; the file name is the name on the command line.

A file of this folder has a `CARD` that says what it is, and

- `read(root, download, progress, **options)`: the classes and domains, the official files in a data root first;
- `present(root)`: where they are found without reading or fetching anything, or None.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from reweigh.bench import _names
from reweigh.bench.data import Row
from reweigh.bench.data._dataset import Card
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data._places import data_root
from reweigh.bench.domains._domains import Domain, Domains

__all__ = ["Domain", "Domains", "describe", "load", "names"]

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The data sets there are: the files of this folder."""
    return _names.listing(_FOLDER)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row a data set, for a listing. Nothing is read and nothing is fetched."""
    return [Row.of(name, _module(name).CARD, _module(name).present(data_root(root))) for name in names()]


def load(name: str, *, root: Path | None = None, download: bool = False, progress: Progress | None = None) -> Domains:
    """Domains by their name.

    Parameters
    ----------
    name
        A file of this folder, with options where it has some: `"rotated_mnist:side=14,rows=1000"`.
    root
        Folder of official files; the environment variable `REWEIGH_DATA` unless given.
    download
        Whether they may be fetched if they are neither there nor in the cache.
    progress
        Called while fetching with the bytes there are and the bytes there will be.

    Examples
    --------
    >>> digits = load("rotated_digits")
    >>> [domain.name for domain in digits.domains], digits.domains[0].x.shape
    (['0°', '15°', '30°', '45°'], (450, 8, 8, 1))
    """
    short, options = _names.parse(name)
    module = _module(short)
    card: Card = module.CARD
    _names.check_options(short, module.read, options)
    classes, domains, source = module.read(data_root(root), download, progress, **options)
    stand_in = card.stand_in_for
    return Domains(
        name=name, domains=domains, classes=classes, licence=card.licence, source=source, stand_in_for=stand_in
    )


def _module(name: str) -> ModuleType:
    return _names.module(__name__, _FOLDER, name, "data set with domains")
