"""What the folder of a comparison of the user's own training stores: its table, and the runs it rests on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from reweigh.bench.files import write_atomically
from reweigh.bench.lab import results
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.runs import Spec, read_run
from reweigh.bench.lab.table import Table

#: The name under which runs are kept.
NAME = "own"
_FILE = "own.json"


def write(root: Path, table: Table, specs: Iterable[Spec]) -> None:
    """Store what a report needs: the table, and which runs belong to it."""
    root.mkdir(parents=True, exist_ok=True)
    stored = {"table": dataclasses.asdict(table), "runs": list(dict.fromkeys(spec.id for spec in specs))}
    write_atomically(root / _FILE, json.dumps(stored, indent=1))


def results_at(root: Path) -> Results:
    """The results of the comparison in a folder."""
    stored = json.loads((root / _FILE).read_text())
    runs = [run for identity in stored["runs"] if (run := read_run(root, NAME, identity)) is not None]
    return results.of_runs(NAME, Table.from_dict(stored["table"]), runs)
