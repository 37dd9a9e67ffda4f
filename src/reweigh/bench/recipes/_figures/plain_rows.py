"""Every re-weighted row against its own plain one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.report.verdict import between


def against_plain_rows(
    results: Results, columns: Sequence[ColumnResults], plain_of: Mapping[str, str]
) -> Iterator[Sequence[str]]:
    """Rows of a table: the row, its plain one, and their difference in points with its interval in each column."""
    for label, plain in plain_of.items():
        differences = [between(results, column, label, plain) for column in columns]
        if any(d is not None and d.n > 1 for d in differences):
            yield [
                label,
                plain,
                *(
                    "" if d is None or d.n < 2 else f"{100 * d.mean:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
                    for d in differences
                ),
            ]
