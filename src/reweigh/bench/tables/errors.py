"""One clear sentence with the fix, and names of columns and classes that may be any text."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from reweigh.bench.errors import UserError

_LONGEST = 60
_MOST = 8


class TableError(UserError):
    """A table cannot be used as it is; the message explains why and what to do."""


def quoted(name: object) -> str:
    r"""A user's own text inside a sentence: on one line, without control characters, of bounded length.

    Examples
    --------
    >>> print(quoted("two\nlines"))
    'two\nlines'
    """
    text = repr(str(name))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}…'"


def listed(names: Collection[object]) -> str:
    """Several names inside a sentence, the first few of many.

    Examples
    --------
    >>> listed(["a", "b"])
    "'a', 'b'"
    """
    shown = ", ".join(quoted(name) for name in list(names)[:_MOST])
    return f"{shown} and {len(names) - _MOST} more" if len(names) > _MOST else shown


def near(name: str, known: Collection[str]) -> str:
    """Help with a misspelt column: similar names, or all there are."""
    folded = {other.casefold().strip(): other for other in known}
    close = difflib.get_close_matches(name.casefold().strip(), folded, n=3)
    if close:
        return f"Did you mean {' or '.join(quoted(folded[match]) for match in close)}?"
    return f"The table has {listed(known)}." if known else "The table has none."
