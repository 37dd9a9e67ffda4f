"""What the user can fix. Everything else that is raised is a bug.

The bench raises a `UserError` where it meets the fault: an option, a file, a folder, a package that is not installed.
The library outside the bench raises `ValueError` and `TypeError` for its own arguments. Where these came from the
command line, `of_user` turns them into a `UserError` on the spot. A `ValueError` from anywhere else is a bug.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class UserError(ValueError):
    """One sentence that names what is wrong, what was given, and the fix. The command prints it and exits with 2."""


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder that the user named, or has to provide, is not there."""


class MissingPackageError(UserError, ImportError):
    """An optional package is not installed; the sentence says how to install it."""


@contextmanager
def of_user(what: str) -> Generator[None]:
    """Check something that the user wrote: what the library objects to is raised as a `UserError` about `what`."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{what}: {error}") from None
    except ImportError as error:
        raise MissingPackageError(f"{what}: {error}") from None
