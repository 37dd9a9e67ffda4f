"""How large a packed file may become: small files that unpack to more than memory holds are refused, not tried."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Protocol

from reweigh.bench.errors import UserError

_MB = 1 << 20
#: A packed file may grow to this many times its size, or to this many bytes if that is more; ordinary text grows 5-fold
#: to 20-fold, and one byte in a thousand is the most that gzip can do.
TIMES, LEAST = 50, 256 * _MB
#: The share of the machine's memory that no packed file may exceed, whatever its size.
_SHARE = 4


class Readable(Protocol):
    """A file that unpacks as it is read."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""
        ...


class TooLargeError(UserError):
    """A file would unpack to more than is sensible."""


def most_unpacked(packed: int, *, times: int = TIMES, least: int = LEAST) -> int:
    """Bytes that a file of `packed` bytes may unpack to.

    Examples
    --------
    >>> most_unpacked(1000) // 2**20
    256
    """
    return min(max(times * packed, least), memory() // _SHARE)


def memory() -> int:
    """The bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gunzip(path: Path) -> bytes:
    """The content of a gzip file.

    Raises
    ------
    TooLargeError
        If it is much larger than the file should hold.
    UserError
        If the file is damaged.
    """
    try:
        with gzip.open(path) as file:
            return read_at_most(file, most_unpacked(path.stat().st_size), path)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{path} is gzip-compressed and damaged. Save or download it again.") from None


def read_at_most(file: Readable, most: int, path: Path) -> bytes:
    """All that can be read from a file that unpacks as it is read, unless there is more than `most` of it."""
    content = file.read(most + 1)
    if len(content) > most:
        raise too_large(path, most)
    return content


def too_large(path: Path, most: int) -> TooLargeError:
    """The error for a file that would unpack to more than `most` bytes."""
    return TooLargeError(
        f"{path} ({_in_words(path.stat().st_size)}) unpacks to more than {_in_words(most)}, so reading stopped. If it "
        "is meant to be that large, unpack it or take fewer rows."
    )


def _in_words(size: int) -> str:
    return f"{size / _MB / 1024:.1f} GB" if size >= 1024 * _MB else f"{size / _MB:.1f} MB"
