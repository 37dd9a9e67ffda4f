"""All data that can be asked for by name: images, tables, texts, domains, checkpoints and weights."""

from __future__ import annotations

from pathlib import Path

from reweigh.bench import _names, checkpoints, data, domains, text
from reweigh.bench.data._fetch import Progress
from reweigh.bench.models import _weights
from reweigh.bench.tables import named

__all__ = ["describe", "get", "names"]


def names() -> list[str]:
    """Images first, then tables, texts, data with several domains, checkpoints, and weights of image models."""
    return data.names() + named.names() + text.names() + domains.names() + checkpoints.names() + _weights.names()


def describe(*, root: Path | None = None) -> list[data.Row]:
    """One row a data set, table, text or checkpoint, for a listing. Nothing is read and nothing is fetched."""
    tables_and_texts = named.describe(root=root) + text.describe(root=root)
    learnt = checkpoints.describe(root=root) + _weights.describe(root=root)
    return data.describe(root=root) + tables_and_texts + domains.describe(root=root) + learnt


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
    if short in domains.names():
        found = domains.load(name, download=True, progress=progress)
        return f"{name}: {sum(len(d.y) for d in found.domains)} examples of {len(found.domains)} domains are ready."
    if short in _weights.names():
        return f"{name}: the weights are ready in {_weights.fetch(name, progress)}."
    if short not in data.names():
        raise ValueError(f"there is no data named {short!r}. {_names.near(short, names())}")
    data.fetch(name, progress)
    loaded = data.load(name)
    return f"{name}: {len(loaded.x_train)} training and {len(loaded.x_test)} test examples are ready."
