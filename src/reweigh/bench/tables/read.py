"""A person's file as a table: CSV, TSV (plain or gzip), Parquet, Arrow."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from reweigh.bench import limits
from reweigh.bench.tables import arrow_stream, values
from reweigh.bench.tables.errors import TableError, listed, quoted

#: Fewer rows than this cannot be split into training, validation and test parts that mean anything.
LEAST_ROWS = 20

FileFormat = Literal["text", "json", "parquet", "arrow", "arrow stream"]

#: Reads what a column holds.
Cleaning = Callable[[pl.Series], pl.Series]

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
#: What text that is not UTF-8 may be.
_ENCODINGS = {"cp1252": "Windows-1252", "latin-1": "Latin-1"}
#: Columns compress better than text: so much may Parquet and Arrow files grow, and so many bytes has a cell at least.
_COLUMNAR_TIMES, _COLUMNAR_LEAST, _CELL = 200, 1 << 30, 8
#: Bytes of raw columns that are read at once.
_AT_ONCE = 32 << 20
#: The first bytes of files that are not tables, what these are and what to do with them.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive or an Excel workbook, not a table. Save the sheet as CSV, or unpack the archive",
    b"%PDF": "a PDF document, not a table. Export the table as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook, not a table. Save the sheet as CSV",
    b"SQLite format 3": "an SQLite database, not a table. Export the table as CSV",
    b"\x89PNG": "a PNG image, not a table. Give a table, or a folder of class folders of images",
    b"\xff\xd8\xff": "a JPEG image, not a table. Give a table, or a folder of class folders of images",
    b"\x89HDF": "an HDF5 file, not a table. Save the table as Parquet",
    b"\x28\xb5\x2f\xfd": "zstd-compressed. Unpack it first",
    b"BZh": "bzip2-compressed. Unpack it first",
    b"\xfd7zXZ": "xz-compressed. Unpack it first",
}


def read(
    path: str | Path,
    *,
    skip: Collection[str] = (),
    least: int = LEAST_ROWS,
    target: str | None = None,
    notes: list[str] | None = None,
) -> pl.DataFrame:
    r"""A table from a file, in which missing is always null.

    Parameters
    ----------
    path
        CSV or TSV (separator `,`, `;` or tab, plain or gzip, UTF-8, UTF-16 or Windows/Latin-1), JSON Lines or a JSON
        list of records, Parquet, or Arrow (Feather, stream). The first bytes decide what it is, not the name.
    skip
        Columns to leave out. Those of a Parquet file are never loaded.
    least
        Rows the table must have: `LEAST_ROWS` for training, 1 for prediction.
    target
        The column to predict: if it holds words, "None" and "NA" are classes like others, and not missing.
    notes
        Takes a sentence for everything that was guessed or changed: separator, encoding, infinite numbers.

    Returns
    -------
    polars.DataFrame
        Strings without white space around them, numbers, truth values, dates. Infinite numbers are missing.

    Raises
    ------
    TableError
        If there is no such file, it is not a table, or it has too few rows, in one sentence with the fix.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name) / "people.csv"
    >>> _ = file.write_text("age;job;height\n39;clerk;1,80\n50;?;1,75\n")
    >>> read(file, least=1).rows()
    [(39, 'clerk', 1.8), (50, None, 1.75)]
    >>> folder.cleanup()
    """
    path = Path(path)
    kind = _format(path)
    notes = [] if notes is None else notes
    clean = functools.partial(_cleaned, target=target, notes=notes)
    try:
        if kind == "json":
            frame = _read_json(path, skip, clean, notes)
        elif kind == "text":
            frame = _read_text(path, skip, target, clean, notes)
        else:
            frame = _read_columns(path, kind, skip, clean)
    except MemoryError:
        raise TableError(f"{path} does not fit into memory. Save it as Parquet, or take fewer rows.") from None
    if frame.width == 0:
        raise TableError(f"{path} has no columns left. Skip fewer of them.")
    if frame.height == 0:
        raise TableError(f"{path} has a header and no rows. Give a file with at least {max(least, 1)} rows.")
    if frame.height < least:
        rows = "1 row" if frame.height == 1 else f"{frame.height} rows"
        raise TableError(f"{path} has {rows}, and at least {least} are needed. Give a file with more.")
    return frame


def _format(path: Path) -> FileFormat:
    if not path.exists():
        raise TableError(f"there is no file {path}. Check the path; it is relative to {Path.cwd()}.")
    if path.is_dir():
        raise TableError(f"{path} is a folder. Give the file of the table.")
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise TableError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None
    if not head:
        raise TableError(f"{path} is empty (0 bytes). Save or download it again.")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "arrow"
    if head.startswith(b"\xff\xff\xff\xff"):
        return "arrow stream"
    wanted = {".parquet": "Parquet", ".feather": "Arrow", ".arrow": "Arrow", ".ipc": "Arrow"}.get(path.suffix.lower())
    if wanted:
        raise TableError(f"{path} is not a {wanted} file, despite its name. Save it again, or name it .csv.")
    return "json" if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[{", b"[\n", b"[ ")) else "text"


def _read_json(path: Path, skip: Collection[str], clean: Cleaning, notes: list[str]) -> pl.DataFrame:
    """A record per line, or a list of records; numbers and words as they are written."""
    content = _as_utf8(path, _uncompressed(path), notes)
    try:
        # All rows decide the type of a column, so that a late fraction or word does not end the reading.
        frame = pl.read_json(content) if content.startswith(b"[") else pl.read_ndjson(content, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        details = " ".join(str(error).split())[:100]
        raise TableError(
            f"{path} cannot be read as JSON ({details}). Write one record per line, or a list of records."
        ) from None
    return values.table(clean(column) for column in frame if column.name not in skip)


def _cleaned(column: pl.Series, *, target: str | None, notes: list[str]) -> pl.Series:
    """A column cleaned; the words of a target stay what they are."""
    cleaned = values.clean(column)
    infinite = int(column.is_infinite().sum()) if column.dtype.is_float() else 0
    if infinite:
        cells = "1 cell is" if infinite == 1 else f"{infinite} cells are"
        notes.append(f"{cells} infinite in {quoted(column.name)} and count as missing; leave such cells empty.")
    return values.clean(column, names=True) if column.name == target and _has_words(cleaned) else cleaned


def _has_words(cells: pl.Series) -> bool:
    filled = cells.drop_nulls()
    return values.is_text(cells) and (not len(filled) or values.numbers(filled).null_count() > len(filled) / 2)


def _read_columns(path: Path, kind: FileFormat, skip: Collection[str], clean: Cleaning) -> pl.DataFrame:
    """Parquet and Arrow, a few columns at a time: beside the table only those are ever in memory raw."""
    try:
        most = limits.most_unpacked(path.stat().st_size, times=_COLUMNAR_TIMES, least=_COLUMNAR_LEAST)
        if kind == "arrow stream":
            if arrow_stream.unpacked_size(path, cell=_CELL) > most:
                raise TableError(str(limits.too_large(path, path.stat().st_size, most)))
            whole = pl.read_ipc_stream(path)
            return values.table(_checked(column, path, most, clean) for column in whole if column.name not in skip)
        lazy = pl.scan_parquet(path, glob=False) if kind == "parquet" else pl.scan_ipc(path)
        names = lazy.collect_schema().names()
        # By position: a name may be "*" or look like a pattern, which polars would follow.
        wanted = [position for position, name in enumerate(names) if name not in skip]
        # One value repeated a billion times is a few bytes in such a file: count before anything is unpacked.
        height: int = lazy.select(pl.len()).collect().item()
        if height * len(wanted) * _CELL > most:
            raise TableError(str(limits.too_large(path, path.stat().st_size, most)))
        # Each look at a file of thousands of columns reads what it says of all of them: take many at a time.
        at_once = max(1, _AT_ONCE // (_CELL * max(height, 1)))
        blocks = (wanted[start : start + at_once] for start in range(0, len(wanted), at_once))
        return values.table(
            _checked(column, path, most, clean) for block in blocks for column in lazy.select(pl.nth(block)).collect()
        )
    except TableError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        details = " ".join(str(error).split())[:100]
        raise TableError(f"{path} is damaged ({details}). Save or download it again.") from None


def _checked(column: pl.Series, path: Path, most: int, clean: Cleaning) -> pl.Series:
    """A column cleaned, unless its cells share one long text, which cleaning would write out for each of them."""
    if values.is_text(column) and (column.str.len_bytes().sum() or 0) > most:
        raise TableError(str(limits.too_large(path, path.stat().st_size, most)))
    return clean(column)


def _read_text(
    path: Path, skip: Collection[str], target: str | None, clean: Cleaning, notes: list[str]
) -> pl.DataFrame:
    content = _as_utf8(path, _uncompressed(path), notes)
    named = ".tsv" in path.suffixes or ".tab" in path.suffixes
    separator = "\t" if named else _separator(content)
    if separator != "," and not named:
        commas = ", and a comma in a number is a decimal comma" if separator == ";" else ""
        notes.append(
            f"Separator guessed from the first lines of {path.name}: cells end at {_SEPARATORS[separator]}{commas}."
        )
    names, rows, blank = _scan(path, content, separator)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(
            f"{path} has more than one column named {listed(repeated)}. Rename them; if its first line is data "
            "already, put a line with the names of the columns before it."
        )
    own = names.index(target) if target in names else None
    frame = _parse(content, separator, rows, own)
    if frame is None:  # quotes that polars does not follow: write the same cells so that it does
        frame = _parse(_rewritten(content, separator), ",", rows, own)
    if frame is None:
        raise TableError(f"{path} cannot be read as a table. Put cells that hold quotes or separators in quotes.")
    if blank:
        frame = frame.filter(pl.Series(~np.isin(np.arange(frame.height), blank)))
    columns = [column.rename(name) for column, name in zip(frame, names, strict=True) if name not in skip]
    return values.table(_typed(clean(column), decimal_comma=separator == ";") for column in columns)


def _uncompressed(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if not packed:
        return path.read_bytes()
    try:
        content = limits.gunzip(path)
    except ValueError as error:
        raise TableError(str(error)) from None
    if not content:
        raise TableError(f"{path} is empty once unpacked. Save or download it again.")
    return content


def _as_utf8(path: Path, content: bytes, notes: list[str]) -> bytes:
    """The text of a file as UTF-8 without a byte-order mark; a file that is not text is rejected."""
    for magic, what in _FOREIGN.items():
        if content.startswith(magic):
            raise TableError(f"{path} is {what}.")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # Excel's "Unicode text"
        try:
            return content.decode("utf-16").encode()
        except UnicodeDecodeError:
            raise _no_table(path) from None
    head = content[: 1 << 16]
    control = sum(head.count(byte) for byte in [*range(9), *range(14, 27), *range(28, 32), 127])
    if 0 in head or control > len(head) / 100:
        raise _no_table(path)
    content = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    if not content.strip():
        raise TableError(f"{path} holds nothing but white space. Save or download it again.")
    for encoding in ("utf-8", *_ENCODINGS):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "utf-8":
            return content
        notes.append(
            f"Encoding guessed: {path.name} is not UTF-8 and is read as {_ENCODINGS[encoding]}. If letters look wrong, "
            "save it as UTF-8."
        )
        return text.encode()
    raise AssertionError("every byte is a Latin-1 character")


def _no_table(path: Path) -> TableError:
    return TableError(f"{path} is a binary file, not a table. Give CSV, TSV, Parquet or Arrow.")


def _cells(content: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Each record of a text with the number of its last line; blank lines are empty lists."""
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", newline=""), delimiter=separator, strict=True)
    for cells in lines:
        yield lines.line_num, cells


def _separator(content: bytes) -> str:
    """The separator by which most of the first lines have as many cells as the header, and more than one."""
    end = len(content) if len(content) <= 1 << 16 else max(content.rfind(b"\n", 0, 1 << 16), 0) or 1 << 16
    sample = content[:end].decode(errors="replace").encode()

    def score(separator: str) -> tuple[float, int]:
        widths: list[int] = []
        with contextlib.suppress(csv.Error):  # judged by the lines before
            widths.extend(len(cells) for _, cells in _cells(sample, separator) if cells)
        if not widths or widths[0] < 2:
            return 0.0, 0
        return sum(width == widths[0] for width in widths) / len(widths), widths[0]

    return max(_SEPARATORS, key=score)


class _Scan(NamedTuple):
    names: list[str]
    rows: int
    #: Positions of blank lines among the rows, where they are not rows.
    blank: list[int]


def _scan(path: Path, content: bytes, separator: str) -> _Scan:
    """The header and the number of rows; a line with more or fewer cells than the header is rejected by its number.

    polars silently pads short lines, and a shifted row is worse than none.
    """
    header: list[str] | None = None
    rows, blank, last = 0, list[int](), 0
    try:
        for line, cells in _cells(content, separator):
            last = line
            if header is None:
                header = [cell.strip() for cell in cells] or None
                continue
            if not cells and len(header) > 1:  # in a table of one column a blank line is a missing cell
                blank.append(rows)
            elif cells and len(cells) != len(header):
                raise TableError(
                    f"line {line} of {path} has {len(cells)} cells, but the header has {len(header)}. Fix that line; "
                    f"a cell that holds {quoted(separator)} must be in quotes."
                )
            rows += 1
    except csv.Error as error:
        why = "a quote is opened and not closed" if "unexpected end" in str(error) else str(error)
        raise TableError(
            f"{path} cannot be read from line {last + 1} on ({why}). Put cells that hold quotes or separators in "
            "quotes, and write a quote inside them twice."
        ) from None
    assert header is not None  # the text is not only white space
    return _Scan(header, rows, blank)


def _parse(content: bytes, separator: str, rows: int, target: int | None) -> pl.DataFrame | None:
    """The table as polars reads it, or None if it sees other rows than are there.

    The target, by its position, is read once more if it holds words: some that mean "missing" elsewhere are classes.
    """
    for sample in (10_000, None):  # types by the first rows are nearly always right, and much faster
        options: dict[str, Any] = {"separator": separator, "infer_schema_length": sample}
        try:
            frame = pl.read_csv(content, null_values=list(values.MISSING), **options)
            if target is not None and frame.height == rows and _has_words(frame.to_series(target)):
                words = [word for word in values.MISSING if word not in values.NAMES]
                again = pl.read_csv(content, null_values=words, columns=[target], **options).to_series()
                frame = frame.with_columns(again.alias(frame.columns[target]))
        except pl.exceptions.NoDataError:
            return pl.DataFrame()
        except pl.exceptions.PolarsError:
            continue
        if frame.height == rows:
            return frame
    return None


def _rewritten(content: bytes, separator: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows(cells for _, cells in _cells(content, separator))
    return file.getvalue().encode()


def _typed(column: pl.Series, *, decimal_comma: bool) -> pl.Series:
    """Numbers that were taken for strings: with spaces around them, or with a decimal comma."""
    if not values.is_text(column) or column.null_count() == len(column):
        return column
    attempts = [column, column.str.replace(",", ".", literal=True)] if decimal_comma else [column]
    for text in attempts:
        for dtype in (pl.Int64, pl.Float64):
            numbers = text.cast(dtype, strict=False)
            if numbers.null_count() == column.null_count():
                return values.clean(numbers)
    return column
