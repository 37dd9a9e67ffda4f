"""How long something may take, as people write it."""

from __future__ import annotations

import re

from reweigh.bench.errors import UserError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str | float) -> float:
    """A budget such as `90s`, `2m`, `1.5h`, `1d` or `120` (seconds) in seconds.

    Examples
    --------
    >>> seconds("2m"), seconds("1.5h"), seconds(120)
    (120.0, 5400.0, 120.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(text).strip().lower())
    if match is None or not float(match[1]):
        raise UserError(f"a budget must be a time such as 90s, 2m or 1h, or a number of seconds, got {text!r}.")
    return float(match[1]) * _UNITS[match[2]]
