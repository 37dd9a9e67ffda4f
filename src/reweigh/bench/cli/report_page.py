"""The page next to the runs."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from reweigh.bench.cli.console import print_plainly


def write_page(console: Console, page: Path, write: Callable[[Path], object]) -> None:
    """Write the page next to the runs; where nothing can be written, the terminal has shown what there is to know."""
    try:
        write(page)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        print_plainly(
            console,
            f"{page.parent} cannot be written to, so there is no page. `reweigh report {page.parent} -o PAGE.html` "
            "writes one elsewhere.",
        )
    else:
        print_plainly(console, f"Report: {page}")
