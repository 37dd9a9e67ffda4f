"""Recipes by name: one file per experiment in the folder of recipes, imported when it is first asked for."""

from __future__ import annotations

import difflib
import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from reweigh.bench import registry

#: The package whose files are the recipes. It stands on this room, so it is known here by its name alone.
_PACKAGE = "reweigh.bench.recipes"
#: The recipe behind a command of its own: what it asks is the user's data, not a preset.
_ELSEWHERE = {"compare": "reweigh.bench.compare.recipe"}


def names() -> list[str]:
    """The recipes there are."""
    return registry.listing(_folder())


def load(name: str) -> ModuleType:
    """A recipe by name, or an error that suggests a near one."""
    if name in _ELSEWHERE:
        return importlib.import_module(_ELSEWHERE[name])
    check(name)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def check(name: str) -> None:
    """Refuse what `reweigh run` cannot run, with an error that suggests a near name."""
    if name in names():
        return
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names())}."
    if name in _ELSEWHERE:
        hint = f"It is a command of its own: `reweigh {name}`."
    raise ValueError(f"there is no recipe named {name!r}. {hint}")


def _folder() -> Path:
    spec = find_spec(_PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
