"""`reweigh list`: recipes, methods, data sets or models."""

from __future__ import annotations

from typing import Literal

from tyro.conf import Positional

from reweigh.bench.cli.console import SafeConsole


def list_command(what: Positional[Literal["recipes", "methods", "data", "models"]], /) -> int:
    """List what there is: recipes, methods, data sets or models.

    Args:
        what: Which list.
    """
    from reweigh.bench.cli import listing

    console = SafeConsole()
    if what == "methods":
        listing.show(listing.methods(console.width if console.is_terminal else None), console)
    else:
        listing.show({"recipes": listing.recipes, "data": listing.data, "models": listing.models}[what](), console)
    return 0
