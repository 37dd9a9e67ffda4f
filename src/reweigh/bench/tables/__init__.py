"""People's tables: reading, describing, splitting and encoding them.

`read` makes a table of a file, `describe` says what is in it, `split` deals its rows out, and an `Encoder` that has
seen the training rows alone turns it into numbers. `named` holds the tables that can be asked for by name.
"""

from reweigh.bench.tables.encode import ClassTarget, Encoder, NumberTarget
from reweigh.bench.tables.errors import TableError, listed, quoted
from reweigh.bench.tables.infer import describe
from reweigh.bench.tables.read import LEAST_ROWS, read
from reweigh.bench.tables.schema import Column, Schema
from reweigh.bench.tables.splits import Split, append, duplicates_across, split

__all__ = [
    "read",
    "LEAST_ROWS",
    "describe",
    "Schema",
    "Column",
    "split",
    "Split",
    "append",
    "duplicates_across",
    "Encoder",
    "ClassTarget",
    "NumberTarget",
    "TableError",
    "listed",
    "quoted",
]
