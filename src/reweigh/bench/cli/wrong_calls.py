"""What to say of a call that cannot be done: which errors are the caller's, and checks that tell them early."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def wrong_call(error: Exception) -> str | None:
    """What to say of an error that the call, its input or this machine is the reason of; None for all others.

    The others are mistakes of the program, whose traceback is wanted.
    """
    if isinstance(error, BrokenPipeError):  # nobody is left to be told
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return _about_path(error)
    if isinstance(error, (ValueError, OSError, ImportError)):
        return str(error)
    from reweigh.bench.catalogue import FetchError  # not at the top: it costs time that `--help` should not take

    return str(error) if isinstance(error, FetchError) else None


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
    """Refuse a text that is no method. A value of the wrong kind is a `TypeError` elsewhere; here it is a wrong call.

    Only what the user wrote is looked at: a `TypeError` from anywhere else is a mistake of the program.
    """
    from reweigh.method import method

    for text in texts:
        try:
            method(text)
        except TypeError as error:
            raise ValueError(f"`--method {text}`: {error}") from None


def check_folder(runs_dir: Path) -> None:
    """Refuse a folder that cannot be: otherwise every run fails on its own."""
    for place in (runs_dir, *runs_dir.parents):
        if place.exists() and not place.is_dir():
            raise ValueError(f"`--runs-dir` must be a folder, got {runs_dir}, and {place} is a file.")
