"""Errors at construction: what was wrong, what was given, and the fix.

A hyper-parameter may also be a 0-d array (a traced or batched value inside `vmap` or `jit`): its value is not
known yet, so only its shape is checked. NumPy traces nothing: what it holds is known, and checked like a number.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from reweigh._array import is_array

#: Numbers whose value is known.
_NUMBERS = (int, float, np.floating, np.integer)


def real(name: str, value: Any, fix: str = "") -> None:
    """Demand a finite number."""
    _demand(name, value, "a finite number", lambda v: True, fix)


def positive(name: str, value: Any, fix: str = "") -> None:
    """Demand a positive, finite number."""
    _demand(name, value, "a positive number", lambda v: v > 0, fix)


def non_negative(name: str, value: Any, fix: str = "") -> None:
    """Demand a finite number that is zero or more."""
    _demand(name, value, "zero or a positive number", lambda v: v >= 0, fix)


def non_zero(name: str, value: Any, fix: str = "") -> None:
    """Demand a finite number other than zero."""
    _demand(name, value, "a number other than zero", lambda v: v != 0, fix)


def fraction(name: str, value: Any, fix: str = "", *, zero: bool = False, one: bool = True) -> None:
    """Demand a number between 0 and 1; `zero` and `one` say whether the ends are allowed."""
    ends = f"{'[' if zero else '('}0, 1{']' if one else ')'}"

    def inside(v: float) -> bool:
        return (v >= 0 if zero else v > 0) and (v <= 1 if one else v < 1)

    _demand(name, value, f"a number in {ends}", inside, fix)


def whole(name: str, value: Any, least: int, fix: str = "") -> None:
    """Demand an integer of at least `least`."""
    known = _known(value)
    if isinstance(known, bool) or not isinstance(known, numbers.Integral) or known < least:
        raise ValueError(_sentence(name, f"a whole number of at least {least}", value, fix))


def boolean(name: str, value: Any, fix: str = "") -> None:
    """Demand True or False; a text such as "no" would count as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(_sentence(name, "True or False", value, fix))


def one_of(name: str, value: Any, choices: Collection[Any], fix: str = "") -> None:
    """Demand one of a few values; near misses are suggested."""
    if value in choices:
        return
    import difflib  # not for a call that is right

    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1)
    hint = f"Did you mean {near[0]!r}?" if near else fix
    raise ValueError(_sentence(name, "one of " + ", ".join(repr(c) for c in choices), value, hint))


def _demand(name: str, value: Any, what: str, holds: Callable[[Any], bool], fix: str) -> None:
    known = _known(value)
    if isinstance(known, _NUMBERS) and not isinstance(known, bool):
        if not (-math.inf < known < math.inf and holds(known)):  # torch.compile can trace this, not math.isfinite
            raise ValueError(_sentence(name, what, value, fix))
    elif isinstance(known, (bool, np.generic)) or not is_array(known):
        raise TypeError(_sentence(name, what, value, fix))
    elif known.ndim != 0:
        raise ValueError(_sentence(name, what, f"an array of shape {tuple(known.shape)}", fix))


def _known(value: Any) -> Any:
    """A 0-d array of NumPy as its scalar; anything else as it is."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _sentence(name: str, what: str, value: Any, fix: str) -> str:
    given = value if isinstance(value, str) and value.startswith("an array") else repr(value)
    return f"`{name}` must be {what}, got {given}.{' ' + fix if fix else ''}"
