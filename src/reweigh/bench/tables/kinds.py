"""What a column is, inferred from its cells: a number, a name, a date, prose, or nothing a model could use."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from reweigh.bench.tables import values
from reweigh.bench.tables.errors import TableError, quoted
from reweigh.bench.tables.schema import ColumnKind, ColumnSchema

#: The share of cells that must be numbers (or dates) for the others to count as typing errors.
MOSTLY = 0.95
#: Share of different cells from which nearly every row has its own value.
_UNIQUE = 0.95
#: Below this many cells "all different" and "ascending" may be chance.
_ENOUGH = 20
#: Among this many amounts some would be equal.
_ENOUGH_TO_REPEAT = 100
#: Words per cell, and share of different cells, from which strings are prose rather than names.
_PROSE_WORDS, _PROSE_DISTINCT = 4.0, 0.2


def describe_column(cells: pl.Series, kind: ColumnKind | None, categorical: bool, notes: list[str]) -> ColumnSchema:
    """One column of the table, of the `kind` given or else of the one inferred from its cells."""
    missing, distinct = cells.null_count(), _distinct(cells)
    pattern: str | None = None
    if kind == "time":
        pattern = _check_time(cells)
    if kind is None:
        kind, missing, pattern = _kind(cells, distinct, categorical, notes)
    return ColumnSchema(
        name=cells.name, kind=kind, missing=missing / max(len(cells), 1), distinct=distinct, pattern=pattern
    )


def _distinct(cells: pl.Series) -> int:
    if values.is_unusable(cells):
        return 0
    return cells.n_unique() - bool(cells.null_count())


def _kind(cells: pl.Series, distinct: int, categorical: bool, notes: list[str]) -> tuple[ColumnKind, int, str | None]:
    """What a feature is, how many cells are missing or of another kind, and how its dates are written."""
    missing = cells.null_count()
    if missing == len(cells):
        return "empty", missing, None
    if values.is_unusable(cells):
        return "unusable", missing, None
    if distinct == 1 and not missing:
        return "constant", missing, None
    if categorical:
        return "category", missing, None
    if cells.dtype == pl.Boolean:
        return "boolean", missing, None
    if cells.dtype.is_temporal():
        return "date", missing, None
    if cells.dtype.is_numeric():
        return _number_kind(cells, distinct, notes), missing, None
    return _text_kind(cells, distinct, notes)


def _number_kind(cells: pl.Series, distinct: int, notes: list[str]) -> ColumnKind:
    if distinct == 2 and bool(((cells == 0) | (cells == 1)).all()):
        return "boolean"
    own = cells.dtype.is_integer() and len(cells) >= _ENOUGH and distinct == len(cells)
    if own and _counts_up(cells):
        return "id"
    if own and len(cells) >= _ENOUGH_TO_REPEAT:
        name = quoted(cells.name)
        notes.append(
            f"{name} has another whole number in every row and is treated as a number. If it is an id, leave it out: "
            f"`--drop {name}`."
        )
    return "number"


def _counts_up(cells: pl.Series) -> bool:
    """Whether whole numbers, none of them twice, only number the rows: in order, and without large gaps."""
    ordered = cells.is_sorted() or cells.is_sorted(descending=True)
    low, high = cells.min(), cells.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    return ordered and high - low < 10 * len(cells)


def _text_kind(cells: pl.Series, distinct: int, notes: list[str]) -> tuple[ColumnKind, int, str | None]:
    filled = len(cells) - cells.null_count()
    name = quoted(cells.name)
    as_numbers = values.numbers(cells)
    if as_numbers.count() >= MOSTLY * filled:
        odd = cells.filter(as_numbers.is_null() & cells.is_not_null())
        if len(odd):
            notes.append(
                f"{name} is treated as a number; {len(odd)} of its cells are text (for example {quoted(odd[0])}) and "
                f"count as missing. Fix them, or use `--categorical {name}` if they are names."
            )
        return "number", as_numbers.null_count(), None
    lowered = {word.lower() for word in cells.drop_nulls().unique()} if distinct <= 4 else set[str]()
    if any(lowered == set(pair) for pair in values.TRUTH):
        return "boolean", cells.null_count(), None
    patterns = values.date_patterns(cells, MOSTLY)
    if patterns:
        return "date", _note_dates(cells, patterns, notes), patterns[0]
    if _is_prose(cells, distinct, filled):
        notes.append(f"{name} is treated as free text; `--categorical {name}` makes each cell one name.")
        return "text", cells.null_count(), None
    if filled >= _ENOUGH and distinct >= _UNIQUE * filled:
        return "id", cells.null_count(), None
    return "category", cells.null_count(), None


def _note_dates(cells: pl.Series, patterns: Sequence[str], notes: list[str]) -> int:
    """Note what is doubtful about dates in strings; returns the number of cells without one."""
    best, name = patterns[0], quoted(cells.name)
    absent = values.dates(cells, best).null_count()
    odd = absent - cells.null_count()
    if odd:
        notes.append(f"{name} is treated as a date ({best}); {odd} of its cells are not dates and count as missing.")
    if best.startswith("%m/%d") and best.replace("%m/%d", "%d/%m") in patterns:
        notes.append(
            f"{name} may be month/day/year or day/month/year and is read as the first; write 2024-12-31 to be sure."
        )
    return absent


def _is_prose(cells: pl.Series, distinct: int, filled: int) -> bool:
    if distinct < _PROSE_DISTINCT * filled:
        return False
    mean = cells.str.count_matches(r"\S+").mean()
    return isinstance(mean, float) and mean >= _PROSE_WORDS


def _check_time(cells: pl.Series) -> str | None:
    """How the moments in a time column are written; refuses one that cannot be put in order."""
    if cells.dtype.is_numeric() or cells.dtype.is_temporal():
        if cells.null_count() < len(cells):
            return None
    elif values.is_text(cells) and (patterns := values.date_patterns(cells, MOSTLY)):
        return patterns[0]
    raise TableError(
        f"`--time` names {quoted(cells.name)}, which holds neither numbers nor dates. Write dates like 2024-12-31, or "
        "choose another column."
    )
