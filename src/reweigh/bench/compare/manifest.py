"""The card of a kept model, `model.json`: its hashes, and whether what it says can be a model, before one is built.

Hashes detect damage, not intent: anyone who can write the folder can write its hashes. So types and sizes are checked
as well, against each other and against the header of the weights, before any memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reweigh.bench.errors import UserError
from reweigh.bench.files import sha256_of
from reweigh.bench.tables import TableError

#: Raised by one whenever what is written down changes its meaning.
FORMAT = 3
NAME = "model.json"
_KINDS = ("binary", "multiclass", "regression")
#: Bounds that no model of this bench comes near.
_LARGEST_FILE, _LARGEST_HEADER = 256 << 20, 16 << 20
_MOST_CLASSES, _MOST_LAYERS, _WIDEST, _LONGEST_AXIS = 100_000, 32, 100_000, 10_000_000


def write(folder: Path, card: Mapping[str, Any]) -> None:
    """Write the card last, with the hash of every other file in the folder and of itself."""
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
    complete = {**card, "format": FORMAT, "files": files}
    (folder / NAME).write_text(json.dumps({**complete, "sha256": _hash(complete)}, indent=1))


def read(folder: Path) -> dict[str, Any]:
    """The card of a model's folder, if it and all files are what they were when they were written.

    Raises
    ------
    TableError
        If the folder is not a model, is one of another version, or was changed.
    """
    path = folder / NAME
    if not path.is_file():
        raise TableError(
            f"{folder} is not a model: it has no {NAME}. `reweigh compare` writes one and prints its path."
        )
    if path.stat().st_size > _LARGEST_FILE:
        raise TableError(f"{path} has {path.stat().st_size} bytes, which no model's card has. Train the model again.")
    try:
        card: Any = json.loads(path.read_text())
        written, own = card["format"], card.pop("sha256", None)
        expected = _hash(card)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, repr(error)[:80]) from None
    if written != FORMAT:
        raise TableError(
            f"the model was written in format {str(written)[:20]}, and this version reads {FORMAT}. Train it again, or "
            "use the version it was made with."
        )
    if own != expected:
        raise damaged(path, "its hash does not match")
    if not isinstance(card.get("files"), dict):
        raise damaged(path, "it does not list the model's files")
    for name, expected in card["files"].items():
        if Path(name).name != name or not (folder / name).is_file():
            raise damaged(folder / Path(name).name, "it is missing")
        if sha256_of(folder / name) != expected:
            raise damaged(folder / name, "its hash does not match")
    return card


def damaged(path: Path, why: str) -> TableError:
    """The error for a file that cannot be trusted."""
    return TableError(f"{path} is damaged ({why}). Train the model again.")


def check(card: Mapping[str, Any], networks: tuple[str, ...], boosters: tuple[str, ...]) -> None:
    """Refuse a card whose values are not of the types and sizes that a model has; raises `ValueError`."""
    classes, kind, shape = card["classes"], card["kind"], card["shape"]
    _demand(kind in _KINDS, "kind", kind)
    _demand(isinstance(classes, list) and len(classes) <= _MOST_CLASSES, "classes", classes)
    _demand(all(isinstance(name, str) for name in classes), "classes", classes)
    counts = {"binary": len(classes) == 2, "multiclass": len(classes) > 1, "regression": not classes}
    _demand(counts[kind], "classes", len(classes))
    _demand(isinstance(shape, list) and len(shape) in (1, 3), "shape", shape)
    _demand(all(_whole(axis, _LONGEST_AXIS) for axis in shape), "shape", shape)
    _demand(card["model"] in (*networks, *boosters), "model", card["model"])
    _plain(card["preprocessing"])
    _correction(card["correction"], len(classes))
    if card["model"] in networks:
        _demand(isinstance(card["scale"], float) and 0 < card["scale"] < math.inf, "scale", card["scale"])
        hidden = card["hidden"]
        _demand(hidden is None or (isinstance(hidden, list) and len(hidden) <= _MOST_LAYERS), "hidden", hidden)
        _demand(hidden is None or all(_whole(width, _WIDEST) for width in hidden), "hidden", hidden)
        _demand(isinstance(card["head"], str), "head", card["head"])


def _correction(state: Any, classes: int) -> None:
    """Refuse a correction of outputs that is not made for so many classes."""
    if state is None:
        return
    _demand(isinstance(state, dict) and state.get("kind") in ("affine", "knots"), "correction", state)
    if state["kind"] == "affine":
        rows = [state["scale"], state["offset"]]
        _demand(all(isinstance(row, list) and len(row) == classes for row in rows), "correction", state)
    else:
        _demand(state["classes"] == classes, "correction", state)
        functions = 1 if classes == 2 else classes
        _demand(len(state["x"]) == len(state["y"]) == functions, "correction", state)
        _demand(all(len(x) == len(y) > 0 for x, y in zip(state["x"], state["y"], strict=True)), "correction", state)
        rows = [*state["x"], *state["y"]]
    _demand(all(isinstance(v, float) and math.isfinite(v) for row in rows for v in row), "correction", state)


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a file of weights says it holds, read from its header alone.

    Raises
    ------
    ValueError
        If the header is not one, or the file is not as long as it says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise UserError("it has no header")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    sizes = {"F32": 4, "F64": 8, "I64": 8, "U8": 1, "BOOL": 1}
    total, shapes = 0, dict[str, tuple[int, ...]]()
    for name, entry in header.items():
        shape = tuple(entry["shape"])
        _demand(all(type(axis) is int and 0 <= axis <= _LONGEST_AXIS for axis in shape), name, shape)
        total += math.prod(shape) * sizes[entry["dtype"]]
        shapes[name] = shape
    if total != size - 8 - length:
        raise UserError("its length is not what its header says")
    return shapes


def _hash(card: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()


def _whole(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _plain(value: Any) -> None:
    """Refuse numbers that no preprocessing has: infinite ones, and whole ones that would be the size of something."""
    if isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            _plain(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            _plain(inner)
    elif isinstance(value, float):
        _demand(math.isfinite(value), "preprocessing", value)
    elif type(value) is int:
        _demand(abs(value) <= _WIDEST, "preprocessing", value)


def _demand(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise UserError(f"{name} is {str(value)[:60]}")
