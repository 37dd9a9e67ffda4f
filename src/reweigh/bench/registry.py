"""A folder as a registry: its files are the names, `"name:key=value"` is a name with its options."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

from reweigh.bench.errors import MissingPackageError, UserError


def listing(folder: Path) -> list[str]:
    """The names a folder offers: its Python files, except those that start with an underscore."""
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def summary(path: Path) -> str:
    """The first line of a file's docstring, read without importing the file."""
    return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its options, written `name:key=value,key=value`.

    Examples
    --------
    >>> parse("wrn:depth=10,width=1")
    ('wrn', {'depth': 10, 'width': 1})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, raw = (part.strip() for part in item.partition("="))
        if not (key and equals):
            raise UserError(f"options are written name:key=value,key=value, got {item!r} in {text!r}.")
        options[key] = _value(raw)
    return name.strip(), options


def module(package: str, folder: Path, name: str, what: str) -> ModuleType:
    """The file of this name, imported; the error for an unknown name lists similar ones."""
    known = listing(folder)
    if name not in known:
        raise UserError(f"there is no {what} named {name!r}. {near(name, known)}")
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "reweigh":
            raise
        raise MissingPackageError(
            f'{name!r} needs {error.name}, which is not installed. Install it with: pip install "reweigh[bench]"'
        ) from error


def instance(package: str, folder: Path, name: str, what: str, options: dict[str, Any]) -> Any:
    """A value of the class that the file of this name exports first, made with these options."""
    file = module(package, folder, name, what)
    kind = getattr(file, file.__all__[0])
    check_options(name, kind, options)
    return kind(**options)


def check_options(name: str, function: Callable[..., Any], options: Collection[str]) -> None:
    """Check that a function takes these options by keyword."""
    known = list(defaults(function))
    for option in options:
        if option not in known:
            raise UserError(f"{name!r} has no option {option!r}. {near(option, known)}")


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function, which are its arguments with defaults, and the defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def near(name: str, known: Collection[str]) -> str:
    """One sentence that helps with a misspelt name."""
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return f"Did you mean {' or '.join(repr(c) for c in close)}?"
    return f"Known: {', '.join(known)}." if known else "It has none."


def _value(raw: str) -> Any:
    lowered = raw.lower()
    if lowered in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[lowered]
    try:
        return ast.literal_eval(raw)
    except (ValueError, SyntaxError):
        return raw
