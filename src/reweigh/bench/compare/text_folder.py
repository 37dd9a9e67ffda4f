"""A folder of texts, one folder per class, as a table with a column of text."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from reweigh.bench.catalogue.images import image_folder
from reweigh.bench.tables import TableError

#: The columns of the table.
TEXT, CLASS = "text", "class"
_SUFFIXES = frozenset({".txt", ".text", ".md"})
#: Bytes that are read of a text; more than a model reads of it.
_MOST = 1 << 20


def files_below(folder: Path) -> list[Path]:
    """Every text in a folder and the folders in it, in the order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())


def classified(folder: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The texts of class folders with their classes, and the path of each; there may be none."""
    files = [path for path in files_below(folder) if path.parent != folder]
    if not files:
        return pl.DataFrame({TEXT: [], CLASS: []}), ()
    y, classes = image_folder.labels(files)
    frame = read(files).with_columns(pl.Series(CLASS, [classes[k] for k in y]))
    return frame, tuple(str(path.relative_to(folder)) for path in files)


def unclassified(folder: Path) -> tuple[pl.DataFrame, list[str]]:
    """All texts of a folder, and the path of each."""
    files = files_below(folder)
    if not files:
        raise TableError(
            f"{folder} has no texts. Give a table, or a folder with .txt files in it or in its subfolders."
        )
    return read(files), [str(path.relative_to(folder)) for path in files]


def read(files: list[Path]) -> pl.DataFrame:
    """The texts of files; what is not UTF-8 is read as Windows-1252."""
    return pl.DataFrame({TEXT: [_text(path) for path in files]}, schema={TEXT: pl.String})


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
    if b"\0" in content:
        raise TableError(f"{path} is a binary file, not a text. Remove it or save it as text.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    return text.strip() or None
