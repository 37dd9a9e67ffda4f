"""Whose fault an error is, what the command prints about it, and checks that find wrong calls early."""

from __future__ import annotations

import os
import platform
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from reweigh import __version__
from reweigh.bench.errors import UserError, of_user


def message_for_user(error: Exception) -> str | None:
    """What to print about an error that the user can fix; None for a bug.

    What the system refuses to do with a file counts: a full disk, a missing permission, a folder that does not exist.
    """
    if isinstance(error, UserError):
        return str(error)
    return _about_path(error) if isinstance(error, OSError) and error.errno is not None else None


def write_details(error: Exception, arguments: Sequence[str]) -> Path:
    """Write the traceback of a bug, with what is needed to reproduce it, to a temporary file."""
    lines = [
        f"reweigh {__version__}, python {platform.python_version()}, {platform.platform()}",
        f"arguments: {list(arguments)}",
        "".join(traceback.format_exception(error)),
    ]
    # A name that nobody can have guessed: in a shared folder a known one could be a link to another file.
    descriptor, name = tempfile.mkstemp(prefix=f"reweigh-bug-{time.strftime('%Y%m%d-%H%M%S')}-", suffix=".txt")
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines))
    return Path(name)


def _about_path(error: OSError) -> str:
    """What the system refused to do with a file, in words. Of a renaming that failed the new name is the user's."""
    path = error.filename if error.filename2 is None else error.filename2
    if path is None:
        return f"{error.strerror}."
    folder = Path(os.fsdecode(path)).parent
    if isinstance(error, FileNotFoundError) and not folder.exists():
        return f"there is no folder {folder}. Make it, or give another one."
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder where a file is needed. Give the name of a file."
    if isinstance(error, NotADirectoryError):
        return f"{folder} is not a folder, and one is needed. Give another path."
    return f"{path}: {error.strerror}."


def check_methods(texts: Sequence[str]) -> None:
    """Refuse a text that is not a method before anything is read or run."""
    from reweigh.method import method

    for text in texts:
        with of_user(f"`--method {text}`"):
            method(text)


def check_folder(runs_dir: Path) -> None:
    """Refuse a folder that cannot be: otherwise every run fails on its own."""
    for place in (runs_dir, *runs_dir.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"`--runs-dir` must be a folder, got {runs_dir}, and {place} is a file.")
