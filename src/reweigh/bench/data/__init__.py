"""Datasets: one file each; the file name is the name on the command line.

A dataset is looked for under the data root (the official files, `REWEIGH_DATA` or `root`), then in the cache
(`REWEIGH_CACHE` or the user's cache folder), and may be fetched from a registry package into the cache.

A file of this folder has a `CARD` that says what it is and where it comes from, and

- `find(root, **options)`: the official files under a data root, or none,
- `read_files(files, **options)`: the arrays in those files,
- `read_package(path)`: the arrays in the registry package,

or, where the data comes with an installed library, `read()` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reweigh.bench import _names
from reweigh.bench.data._cache import decoded, decoded_path, package_path
from reweigh.bench.data._dataset import Arrays, Card, Dataset, Kind, Package, sha256_of_arrays, sha256_of_files
from reweigh.bench.data._fetch import FetchError, HashMismatchError, Progress, fetch_package
from reweigh.bench.data._longtail import longtail_counts, longtail_indices
from reweigh.bench.data._noise import NoisyLabels, noisy_labels
from reweigh.bench.data._places import data_root, not_found
from reweigh.bench.data._split import fixed_split, load_indices, save_indices, split

if TYPE_CHECKING:
    from reweigh.bench.data._augment import (
        CIFAR_MEAN,
        CIFAR_STD,
        Augment,
        as_tensor,
        cutout,
        normalize,
        pixel_statistics,
        random_crop_flip,
    )

__all__ = [
    "load",
    "fetch",
    "names",
    "describe",
    "Dataset",
    "Row",
    "FetchError",
    "HashMismatchError",
    "longtail_counts",
    "longtail_indices",
    "NoisyLabels",
    "noisy_labels",
    "split",
    "fixed_split",
    "save_indices",
    "load_indices",
    "Augment",
    "CIFAR_MEAN",
    "CIFAR_STD",
    "as_tensor",
    "normalize",
    "pixel_statistics",
    "random_crop_flip",
    "cutout",
]

_FOLDER = Path(__file__).parent


def __getattr__(name: str) -> Any:
    # Augmentation is the only part that needs torch; a listing of datasets should not wait for it.
    if name in __all__:
        from reweigh.bench.data import _augment

        return getattr(_augment, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A dataset in a listing. `present` is where it was found, or None."""

    name: str
    kind: Kind
    size: str
    licence: str
    source: str
    stand_in_for: str | None
    packages: tuple[Package, ...]
    official: str
    present: str | None

    @classmethod
    def of(cls, name: str, card: Card, present: str | None) -> Row:
        """The row of a card."""
        return cls(
            name=name,
            kind=card.kind,
            size=card.size,
            licence=card.licence,
            source=card.source,
            stand_in_for=card.stand_in_for,
            packages=card.packages,
            official=card.official,
            present=present,
        )


def names() -> list[str]:
    """The datasets there are: the files of this folder."""
    return _names.listing(_FOLDER)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row a dataset, for a listing. Nothing is read and nothing is fetched."""
    return [_row(name, root) for name in names()]


def load(name: str, *, root: Path | None = None, download: bool = False) -> Dataset:
    """A dataset in memory.

    Parameters
    ----------
    name
        A file of this folder, with options where it has some: `"cifar10"`, `"image_folder:folder=flowers,size=64"`.
    root
        Folder of official files; the environment variable `REWEIGH_DATA` unless given.
    download
        Whether it may be fetched if it is neither there nor in the cache.

    Returns
    -------
    Dataset
        Arrays, class names, licence, where it came from and the sha256 of what was read.

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.shape
    ((1258, 8, 8, 1), (539, 8, 8, 1), (1, 8, 8))
    """
    short, options = _names.parse(name)
    module = _module(short)
    card: Card = module.CARD
    _names.check_options(short, _function(module), options)
    if card.embedded:
        arrays: Arrays = module.read()
        return _dataset(name, card, arrays, card.source, sha256_of_arrays(arrays[:4]), card.stand_in_for)
    root = data_root(root)
    files: list[Path] = module.find(root, **options) if root else []
    if files:
        arrays = module.read_files(files, **options)
        return _dataset(name, card, arrays, f"official files in {files[0].parent}", sha256_of_files(files), None)
    package = _cached(short, card)
    if package is None and download:
        package = _fetch_best(short, card, None)
    if package is None:
        raise FileNotFoundError(not_found(short, card, root))
    arrays = decoded(short, package, package_path(package), module.read_package)
    stand_in = package.stand_in_for or card.stand_in_for
    return _dataset(name, card, arrays, str(package), package.sha256, stand_in)


def fetch(name: str, progress: Progress | None = None) -> Path | None:
    """Get a dataset into the cache and return the file; None where it comes with an installed library.

    Parameters
    ----------
    name
        A file of this folder.
    progress
        Called now and then with the bytes there are and the bytes there will be.
    """
    name, _ = _names.parse(name)
    card: Card = _module(name).CARD
    if card.embedded:
        return None
    return package_path(_fetch_best(name, card, progress))


def _fetch_best(name: str, card: Card, progress: Progress | None) -> Package:
    """The first package that can be fetched; why each of the others could not, if none can."""
    if not card.packages:
        raise FetchError(f"{name} is in no registry, so it cannot be fetched. Put {card.official}")
    failures: list[str] = []
    for package in card.packages:
        try:
            fetch_package(package, progress)
        except HashMismatchError:
            raise  # not a reason to try elsewhere: somebody should look at it
        except FetchError as error:
            failures.append(str(error))
        else:
            return package
    raise FetchError("\n".join([*failures, f"Instead, put {card.official}"]))


def _dataset(name: str, card: Card, arrays: Arrays, source: str, sha256: str, stand_in: str | None) -> Dataset:
    return Dataset(
        name=name,
        **arrays._asdict(),
        kind=card.kind,
        licence=card.licence,
        source=source,
        sha256=sha256,
        stand_in_for=stand_in,
    )


def _module(name: str) -> ModuleType:
    return _names.module(__name__, _FOLDER, name, "dataset")


def _function(module: ModuleType) -> Any:
    return module.read if module.CARD.embedded else module.find


def _cached(name: str, card: Card) -> Package | None:
    """The best package of which the cache has the file or its arrays."""
    for package in card.packages:
        if package_path(package).exists() or decoded_path(name, package).exists():
            return package
    return None


def _row(name: str, root: Path | None) -> Row:
    module = _module(name)
    return Row.of(name, module.CARD, _present(name, module, data_root(root)))


def _present(name: str, module: ModuleType, root: Path | None) -> str | None:
    card: Card = module.CARD
    if card.embedded:
        return "installed"
    try:
        files: list[Path] = module.find(root) if root else []
    except FileNotFoundError:  # only some of the files: `load` says which are missing
        files = []
    if files:
        return str(files[0].parent)
    package = _cached(name, card)
    return None if package is None else str(package_path(package))
