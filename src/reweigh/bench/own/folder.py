"""What the folder of a comparison of the user's own training stores: its table, and the runs it rests on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from reweigh.bench.files import write_atomically
from reweigh.bench.lab import results, stats
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.runs import Run, Spec, read_run
from reweigh.bench.lab.table import Table

#: The name under which runs are kept.
NAME = "own"
_FILE = "own.json"


def write(root: Path, table: Table, specs: Iterable[Spec], alpha: float) -> Results:
    """Store what a report needs: the table, which runs belong to it, and what the look at them may spend."""
    root.mkdir(parents=True, exist_ok=True)
    runs = list(dict.fromkeys(spec.id for spec in specs))
    write_atomically(
        root / _FILE, json.dumps({"table": dataclasses.asdict(table), "runs": runs, "alpha": alpha}, indent=1)
    )
    return results_at(root)


def results_at(root: Path) -> Results:
    """The results of the comparison in a folder."""
    stored = json.loads((root / _FILE).read_text())
    runs = [run for identity in stored["runs"] if (run := read_run(root, NAME, identity)) is not None]
    return at_look(Table.from_dict(stored["table"]), runs, stored["alpha"])


def at_look(table: Table, runs: Sequence[Run], alpha: float) -> Results:
    """The results of these runs, at a look that may spend `alpha` of the five percent."""
    gathered = results.of_runs(NAME, table, runs)
    columns = [
        dataclasses.replace(
            column, differences={label: stats.at_level(d, alpha) for label, d in column.differences.items()}
        )
        for column in gathered.columns
    ]
    return dataclasses.replace(gathered, columns=columns)
