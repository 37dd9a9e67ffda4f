"""`reweigh data get`: a data set, fetched once."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reweigh.bench.cli.console import SafeConsole, print_plainly


def data(action: Positional[Literal["get"]], name: Annotated[str, Positional, arg(metavar="NAME")], /) -> int:
    """Get a data set: `reweigh data get NAME` fetches it once into the cache.

    Args:
        action: What to do; there is only get.
        name: Which data set; `reweigh list data` shows them.
    """
    from rich.markup import escape
    from rich.progress import Progress

    from reweigh.bench import catalogue

    console = SafeConsole()
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"getting {escape(name)}", total=None)
        ready = catalogue.get(name, lambda done, total: progress.update(bar, completed=done, total=total))
    print_plainly(console, ready)
    return 0
