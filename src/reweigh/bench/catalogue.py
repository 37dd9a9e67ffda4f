"""All data that can be asked for by name: images, tables, texts and checkpoints."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench import _names, checkpoints, data, text
from reweigh.bench.data._fetch import Progress
from reweigh.bench.tables import named

__all__ = ["describe", "get", "names"]


def names() -> list[str]:
    """Images first, then tables, then texts, then checkpoints."""
    return data.names() + named.names() + text.names() + checkpoints.names()


def describe(*, root: Path | None = None) -> list[data.Row]:
    """One row a data set, table, text or checkpoint, for a listing. Nothing is read and nothing is fetched."""
    tables_and_texts = named.describe(root=root) + text.describe(root=root)
    return data.describe(root=root) + tables_and_texts + checkpoints.describe(root=root)


def get(name: str, progress: Progress | None = None) -> str:
    """Get data into the cache, unless it is there, and say in one line what there is now.

    Parameters
    ----------
    name
        One of `names`, with options where it has some.
    progress
        Called while fetching with the bytes there are and the bytes there will be.
    """
    short, _ = _names.parse(name)
    if short in named.names():
        table = named.load(short, download=True, progress=progress)
        columns = table.frame.width - 1
        return f"{name}: {table.frame.height} rows with {columns} columns and the target {table.target!r} are ready."
    if short in text.names():
        return text.fetch(name, progress)
    if short in checkpoints.names():
        return f"{name}: the checkpoint is ready in {checkpoints.folder(name, download=True, progress=progress)}."
    if short not in data.names():
        raise ValueError(f"there is no data named {short!r}. {_names.near(short, names())}")
    data.fetch(name, progress)
    loaded = data.load(name)
    return f"{name}: {len(loaded.x_train)} training and {len(loaded.x_test)} test examples are ready."
