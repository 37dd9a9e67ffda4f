"""One sentence for every adapter whose framework is not installed."""

from __future__ import annotations


def missing(package: str, extra: str) -> ModuleNotFoundError:
    """The error to raise, before an adapter imports its framework: it names the line to run, not one of our files."""
    return ModuleNotFoundError(
        f"this adapter needs the package {package}, which is not installed. "
        f'Install it with `pip install "reweigh[{extra}]"`.',
        name=package,
    )
