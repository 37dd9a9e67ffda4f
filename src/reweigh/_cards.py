"""The card of a method read from its source, so that a listing need not import the framework that the method uses."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any, NamedTuple


class SourceCard(NamedTuple):
    """What the source of a method says about it."""

    summary: str
    defaults: dict[str, Any]
    search: dict[str, tuple[Any, ...]]
    cost: str


def read_card(path: Path) -> SourceCard:
    """The card of the class that a file exports first; base classes are looked up in the file and in its folder."""
    known = _names(path)
    exported = ast.literal_eval(known["__all__"])[0]
    defaults: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for kind in reversed(_lineage(path, exported)):
        for line in kind.body:
            if not isinstance(line, ast.AnnAssign) or line.value is None or not isinstance(line.target, ast.Name):
                continue
            if ast.unparse(line.annotation).startswith("ClassVar"):
                if line.target.id in ("search", "cost"):
                    constants[line.target.id] = ast.literal_eval(line.value)
            else:
                defaults[line.target.id] = _default(line.value)
    return SourceCard(
        summary=(ast.get_docstring(known[exported]) or "").partition("\n")[0],
        defaults=defaults,
        search=constants.get("search", {}),
        cost=constants.get("cost", ""),
    )


def packages(path: Path) -> set[str]:
    """The packages that a file imports when it is imported."""
    body = _parsed(path).body
    plain = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in plain | parts}


def _lineage(path: Path, name: str) -> list[ast.ClassDef]:
    """A class and those it inherits from, as far as the files of its folder define them."""
    for place in (path, *sorted(path.parent.glob("_[!_]*.py"))):
        kind = _names(place).get(name)
        if isinstance(kind, ast.ClassDef):
            bases = [base.id for base in kind.bases if isinstance(base, ast.Name)]
            return [kind, *(one for base in bases for one in _lineage(place, base))]
    return []


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@functools.cache
def _names(path: Path) -> dict[str, Any]:
    """The classes that a file defines, and the values that it assigns, by name."""
    tree = _parsed(path)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {**assigned, **classes}


def _default(value: ast.expr) -> Any:
    """A default as a value; one that is made by a factory as the text of that call, `Plain()`."""
    if isinstance(value, ast.Call):
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        made = given.get("default_factory")
        return _default(given["default"]) if made is None else f"{ast.unparse(made)}()"
    return ast.literal_eval(value)
