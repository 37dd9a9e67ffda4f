"""Texts that can be asked for by name: one file each; the file name is the name on the command line.

A text is looked for under the data root (the official files, `REWEIGH_DATA` or `root`), then in the cache, and may be
fetched from a registry package into the cache. A file of this folder has a `CARD` that says what it is, and

- `find(root, **options)`: the official files under a data root by short names, or none,
- `member(path)`: the short name of a wanted file of the registry package, or None,
- `read(contents, **options)`: the `Corpus` or `Labelled` text in the bytes of those files,

or, where the text comes with an installed library, `read()` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reweigh.bench import _names
from reweigh.bench.data import Row
from reweigh.bench.data._archive import members
from reweigh.bench.data._dataset import Card, sha256_of_files
from reweigh.bench.data._fetch import Progress
from reweigh.bench.data._places import cached_package, data_root, first_cached
from reweigh.bench.text._text import Corpus, Labelled, Part

__all__ = ["Corpus", "Labelled", "Part", "Text", "corpus", "describe", "fetch", "labelled", "load", "names"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """A text asked for by name.

    Parameters
    ----------
    name
        What it was asked for by.
    content
        Documents to read on from, or labelled texts.
    licence, source
        Of the text; where these bytes came from.
    sha256
        Of what was read; empty where it comes with an installed library.
    stand_in_for
        What it is used in the place of, or None if it is the real thing.
    """

    name: str
    content: Corpus | Labelled
    licence: str
    source: str
    sha256: str
    stand_in_for: str | None


def names() -> list[str]:
    """The texts there are: the files of this folder."""
    return _names.listing(_FOLDER)


def describe(*, root: Path | None = None) -> list[Row]:
    """One row a text, for a listing. Nothing is read and nothing is fetched."""
    return [_row(name, data_root(root)) for name in names()]


def load(name: str, *, root: Path | None = None, download: bool = False, progress: Progress | None = None) -> Text:
    """A text by its name.

    Parameters
    ----------
    name
        A file of this folder, with options where it has some: `"sotu"`, `"glue:task=CoLA"`.
    root
        Folder of official files; the environment variable `REWEIGH_DATA` unless given.
    download
        Whether it may be fetched if it is neither there nor in the cache.
    progress
        Called while fetching with the bytes there are and the bytes there will be.
    """
    short, options = _names.parse(name)
    module = _module(short)
    card: Card = module.CARD
    _names.check_options(short, module.read, options)
    if card.embedded:
        return _text(name, card, module.read(**options), card.source, "")
    place = data_root(root)
    files: dict[str, Path] = module.find(place, **options) if place else {}
    if files:
        content = module.read({key: path.read_bytes() for key, path in files.items()}, **options)
        found = f"official files in {next(iter(files.values())).parent}"
        return _text(name, card, content, found, sha256_of_files(files.values()))
    package = cached_package(short, card, place, download=download, progress=progress)
    contents: dict[str, bytes] = {
        module.member(path): content for path, content in members(package, lambda path: bool(module.member(path)))
    }
    return _text(name, card, module.read(contents, **options), str(card.packages[0]), card.packages[0].sha256)


def corpus(name: str) -> tuple[Corpus, Text]:
    """Documents by their name, and where they come from."""
    text = load(name)
    if not isinstance(text.content, Corpus):
        raise ValueError(f"{name!r} is labelled text, and a corpus is asked for. {_others(Corpus)}")
    return text.content, text


def labelled(name: str) -> tuple[Labelled, Text]:
    """Labelled texts by their name, and where they come from."""
    text = load(name)
    if not isinstance(text.content, Labelled):
        raise ValueError(f"{name!r} has no labels, and labelled text is asked for. {_others(Labelled)}")
    return text.content, text


def fetch(name: str, progress: Progress | None = None) -> str:
    """Get a text into the cache, unless it is there, and say in one line what there is now."""
    content = load(name, download=True, progress=progress).content
    if isinstance(content, Corpus):
        return f"{name}: {len(content.documents)} documents are ready."
    return f"{name}: {len(content.train.first)} training texts of {len(content.classes)} classes are ready."


def _module(name: str) -> ModuleType:
    return _names.module(__name__, _FOLDER, name, "text")


def _text(name: str, card: Card, content: Any, source: str, sha256: str) -> Text:
    return Text(
        name=name,
        content=content,
        licence=card.licence,
        source=source,
        sha256=sha256,
        stand_in_for=card.stand_in_for,
    )


def _others(kind: type[Corpus] | type[Labelled]) -> str:
    kinds = {name: _module(name).read.__annotations__["return"] for name in names()}
    return f"There are: {', '.join(name for name, found in kinds.items() if kind.__name__ in found)}."


def _row(name: str, root: Path | None) -> Row:
    module = _module(name)
    card: Card = module.CARD
    files: dict[str, Path] = module.find(root) if root and not card.embedded else {}
    present = str(next(iter(files.values())).parent) if files else first_cached(card)
    return Row.of(name, card, "installed" if card.embedded else present)
