"""Frozen values read back from plain data, each field checked to be of its type: the file may be made up."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, get_args, get_origin, get_type_hints


def restored(kind: Any, saved: Any) -> Any:
    """A value of a type from what JSON made of it: dataclasses are objects, tuples are lists.

    Parameters
    ----------
    kind
        `str`, `bool`, `int`, `float`, one of them or None, a tuple of one type, or a dataclass of such fields.
    saved
        What was read.

    Raises
    ------
    TypeError
        If it is not of that type.

    Examples
    --------
    >>> restored(tuple[float, ...], [1, 0.5])
    (1.0, 0.5)
    """
    if dataclasses.is_dataclass(kind):
        types_of = _types_of(kind)
        if not isinstance(saved, dict) or saved.keys() != types_of.keys():
            raise TypeError(f"{_shortened(saved)} does not have the fields {', '.join(types_of)}")
        return kind(**{name: restored(own, saved[name]) for name, own in types_of.items()})  # pyright: ignore[reportCallIssue]
    if get_origin(kind) is tuple:
        if not isinstance(saved, list):
            raise TypeError(f"{_shortened(saved)} is not a list")
        one = get_args(kind)[0]
        return tuple(restored(one, value) for value in saved)  # pyright: ignore[reportUnknownVariableType]
    if get_origin(kind) is types.UnionType:
        return None if saved is None else restored(get_args(kind)[0], saved)
    if kind is float and type(saved) is int:
        return float(saved)
    if type(saved) is not kind:
        raise TypeError(f"{_shortened(saved)} is not of the type {kind.__name__}")
    return saved


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _shortened(saved: Any) -> str:
    return repr(saved)[:40]
