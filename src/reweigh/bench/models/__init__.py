"""Models: one file each; the file name is the name on the command line.

A file of this folder has one function, `build(shape, classes, **options) -> nn.Module`, whose docstring is the model's
card. Models take float tensors (NCHW for images), draw their initial parameters from torch's ambient generator, and
seed nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from reweigh import _validate as validate
from reweigh.bench import registry

__all__ = ["ModelEntry", "build", "describe", "names"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model in a listing."""

    name: str
    summary: str
    options: Mapping[str, Any]


def names() -> list[str]:
    """The models there are: the files of this folder."""
    return registry.listing(_FOLDER)


def describe() -> list[ModelEntry]:
    """All models, for a listing."""
    return [_entry(name) for name in names()]


def build(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """A freshly initialised model.

    Parameters
    ----------
    name
        A file of this folder, with options where wanted: `"resnet32"`, `"wrn:depth=16,width=8"`.
    shape
        Shape of one example: (channels, height, width) for images, (features,) for tables.
    classes
        Number of outputs; 1 for a regression.
    options
        As the file's own `build` takes them, in addition to those in `name`; `head="cosine"` for every model.

    Returns
    -------
    nn.Module
        Maps a batch of examples to a batch of `classes` outputs each.

    Examples
    --------
    >>> model = build("mlp:hidden=64-64", (32,), 10)
    >>> sum(p.numel() for p in model.parameters())
    6922
    """
    short, written = registry.parse(name)
    twice = set(written) & set(options)
    if twice:
        raise ValueError(f"option {min(twice)!r} is given twice, in {name!r} and as an argument. Keep one of them.")
    function = registry.module(__name__, _FOLDER, short, "model").build
    chosen = {**written, **options}
    registry.check_options(short, function, chosen)
    validate.whole("classes", classes, 1)
    return function(tuple(shape), classes, **chosen)


def _entry(name: str) -> ModelEntry:
    function = registry.module(__name__, _FOLDER, name, "model").build
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return ModelEntry(name=name, summary=summary, options=registry.defaults(function))
