"""How large a packed file may become: small files that unpack to more than memory holds are refused, not tried."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import IO

from reweigh.bench.errors import UserError

_MB = 1 << 20
#: A packed file may grow to this many times its size, or to this many bytes if that is more; ordinary text grows 5-fold
#: to 20-fold, and one byte in a thousand is the most that gzip can do.
TIMES, LEAST = 50, 256 * _MB
#: The share of the machine's memory that no packed file may exceed, whatever its size.
_SHARE = 4


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
    with path.open("rb") as file:
        return _gunzipped(file, path.stat().st_size, path)


def gunzipped(content: bytes, what: str) -> bytes:
    """The same for the bytes of a gzip file that is called `what`."""
    return _gunzipped(io.BytesIO(content), len(content), what)


def first_lines(path: Path, count: int) -> bytes:
    """The first lines of a file, which may be gzip-compressed, with the same limit."""
    most, content = most_unpacked(path.stat().st_size), bytearray()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for _ in range(count):
            line = file.readline(most - len(content) + 1)
            content += line
            if len(content) > most:
                raise too_large(path, path.stat().st_size, most)
            if not line:
                break
    return bytes(content)


def _gunzipped(packed: IO[bytes], size: int, what: Path | str) -> bytes:
    most = most_unpacked(size)
    try:
        with gzip.open(packed) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{what} is gzip-compressed and damaged. Save or download it again.") from None
    if len(content) > most:
        raise too_large(what, size, most)
    return content


def too_large(what: Path | str, packed: int, most: int) -> TooLargeError:
    """The error for a file of `packed` bytes that would unpack to more than `most`."""
    return TooLargeError(
        f"{what} ({_in_words(packed)}) unpacks to more than {_in_words(most)}, so reading stopped. If it "
        "is meant to be that large, unpack it or take fewer rows."
    )


def _in_words(size: int) -> str:
    return f"{size / _MB / 1024:.1f} GB" if size >= 1024 * _MB else f"{size / _MB:.1f} MB"
