"""How large an Arrow stream becomes, read from what it says of itself: nothing is unpacked.

A stream is a sequence of messages: a marker, the length of a flatbuffer, the flatbuffer, and a body. The flatbuffer of
a batch lists how many cells each column has and where its buffers are; a packed buffer begins with its unpacked length.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import BinaryIO

_MARKER = 0xFFFFFFFF
#: Headers of messages that hold cells.
_DICTIONARY, _BATCH = 2, 3


def unpacked_size(path: Path, *, cell: int) -> int:
    """Bytes that the cells of a stream take in memory, each of them `cell` at least.

    Raises
    ------
    ValueError
        If it is not what a stream looks like.
    """
    total, end = 0, path.stat().st_size
    try:
        with path.open("rb") as file:
            while file.tell() + 8 <= end:
                marker, length = struct.unpack("<Ii", file.read(8))
                if marker != _MARKER or length == 0:
                    break
                message = _Flatbuffer(file.read(length))
                body = file.tell()
                total += _batch_size(message, file, body, cell)
                file.seek(body + message.number("<q", message.root, 3))
    except (struct.error, OverflowError, OSError) as error:
        raise ValueError(f"not a stream of Arrow messages ({error})") from None
    return total


class _Flatbuffer:
    """Just enough of the format: tables of numbered fields, and vectors of structures."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.root = self._at("<I", 0)

    def number(self, kind: str, table: int, field: int) -> int:
        """The number in a field, 0 if it is not there."""
        place = self._place(table, field)
        return self._at(kind, place) if place else 0

    def table(self, table: int, field: int) -> int:
        """Where the table or vector in a field is; 0 if there is none."""
        place = self._place(table, field)
        return place + self._at("<I", place) if place else 0

    def pairs(self, table: int, field: int) -> list[tuple[int, int]]:
        """A vector of structures of two long numbers."""
        vector = self.table(table, field)
        count = self._at("<I", vector) if vector else 0
        return list(struct.iter_unpack("<qq", self.content[vector + 4 : vector + 4 + 16 * count]))

    def _place(self, table: int, field: int) -> int:
        entries = table - self._at("<i", table)
        entry = 4 + 2 * field
        offset = self._at("<H", entries + entry) if entry < self._at("<H", entries) else 0
        return table + offset if offset else 0

    def _at(self, kind: str, place: int) -> int:
        if place < 0:
            raise struct.error("an offset is negative")
        return struct.unpack_from(kind, self.content, place)[0]


def _batch_size(message: _Flatbuffer, file: BinaryIO, body: int, cell: int) -> int:
    kind, header = message.number("<B", message.root, 1), message.table(message.root, 2)
    if kind == _DICTIONARY:
        header = message.table(header, 1)
    elif kind != _BATCH:
        return 0
    cells = sum(count for count, _ in message.pairs(header, 1))
    packed = bool(message.table(header, 3))
    size = 0
    for offset, length in message.pairs(header, 2):
        unpacked = -1
        if packed and length >= 8:
            file.seek(body + offset, io.SEEK_SET)
            (unpacked,) = struct.unpack("<q", file.read(8))
        size += length if unpacked < 0 else unpacked
    return max(size, cells * cell)
