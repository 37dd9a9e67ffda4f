"""People's tables: reading, describing, splitting and encoding them.

`read` makes a table from a file, `describe` finds out what is in it, `split` divides its rows, and a `TableEncoder`
that has seen only the training rows turns it into numbers.
"""

from reweigh.bench.tables.encode import ClassTarget, NumberTarget, TableEncoder
from reweigh.bench.tables.errors import TableError, listed, quoted
from reweigh.bench.tables.infer import describe
from reweigh.bench.tables.leaks import leaks
from reweigh.bench.tables.profile import Profile
from reweigh.bench.tables.read import LEAST_ROWS, read
from reweigh.bench.tables.saved import restored
from reweigh.bench.tables.schema import ColumnSchema, Schema
from reweigh.bench.tables.splits import FEW_GROUPS, Split, append, duplicates_across, folds, keeps_groups_whole, split

__all__ = [
    "read",
    "LEAST_ROWS",
    "describe",
    "leaks",
    "Profile",
    "restored",
    "Schema",
    "ColumnSchema",
    "split",
    "folds",
    "keeps_groups_whole",
    "FEW_GROUPS",
    "Split",
    "append",
    "duplicates_across",
    "TableEncoder",
    "ClassTarget",
    "NumberTarget",
    "TableError",
    "listed",
    "quoted",
]
