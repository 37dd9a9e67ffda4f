"""Members of archives, read in place.

Nothing is unpacked to disk, so no member's name can ever reach outside a folder.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from reweigh.bench import limits
from reweigh.bench.catalogue.card import Array
from reweigh.bench.errors import UserError


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The name and bytes of each wanted regular file in a tar, zip (wheel) or Debian archive, in one pass."""
    try:
        yield from _members(path, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}). Delete it and fetch it again.") from error


def _members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    most = limits.most_unpacked(path.stat().st_size)
    if path.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and wanted(entry.filename):
                    if entry.file_size > most:
                        raise limits.too_large(path, path.stat().st_size, most)
                    yield entry.filename, archive.read(entry)
        return
    with path.open("rb") as file:
        stream = _debian_data(file, path) if path.suffix == ".deb" else file
        with tarfile.open(fileobj=stream) as archive:
            for entry in archive:
                # Links are ignored: only a regular file holds its own bytes.
                if entry.isreg() and wanted(entry.name):
                    if entry.size > most:
                        raise limits.too_large(path, path.stat().st_size, most)
                    content = archive.extractfile(entry)
                    assert content is not None
                    yield entry.name, content.read()


def read(path: Path, names: dict[str, str]) -> dict[str, bytes]:
    """Exactly these members, by the caller's own short names: `{short: name in the archive}`."""
    short = {full: key for key, full in names.items()}
    contents = {short[name]: content for name, content in members(path, short.__contains__)}
    missing = [full for key, full in names.items() if key not in contents]
    if missing:
        raise UserError(f"{path} has no member {missing[0]!r}. It is not the expected archive; delete it.")
    return contents


def decode_png(content: bytes, mode: str) -> Array:
    """The pixels of an image file as uint8, in Pillow's `mode` (`"RGB"`, `"L"`)."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return np.array(image.convert(mode), dtype=np.uint8)


def _debian_data(file: IO[bytes], path: Path) -> IO[bytes]:
    """The tar of installed files inside a Debian package, which is an `ar` archive of three members."""
    if file.read(8) != b"!<arch>\n":
        raise UserError(f"{path} is not a Debian package. Delete it and fetch it again.")
    while header := file.read(60):
        name, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])
        if name.startswith("data.tar"):
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)  # members start at even offsets
    raise UserError(f"{path} holds no data.tar. Delete it and fetch it again.")
