"""Experiments, one file each: the file name is the name on the command line."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from types import ModuleType

#: The recipe behind a command of its own: what it asks is the user's data, not a preset.
_ELSEWHERE = {"compare": "reweigh.bench.compare.recipe"}


def names() -> list[str]:
    """The recipes there are."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def load(name: str) -> ModuleType:
    """A recipe by name, or an error that suggests a near one."""
    if name in _ELSEWHERE:
        return importlib.import_module(_ELSEWHERE[name])
    check(name)
    return importlib.import_module(f"reweigh.bench.recipes.{name}")


def check(name: str) -> None:
    """Refuse what `reweigh run` cannot run, with an error that suggests a near name."""
    if name in names():
        return
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names())}."
    if name in _ELSEWHERE:
        hint = f"It is a command of its own: `reweigh {name}`."
    raise ValueError(f"there is no recipe named {name!r}. {hint}")
