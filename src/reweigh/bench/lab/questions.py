"""The questions that a folder of runs answers, stored next to the runs.

```
runs/longtail/questions/5d0c61b2e9aa.json    one question: recipe, preset, settings, table, and the ids of its runs
```

A report is made from these files and from the runs they name. It looks at no other run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reweigh.bench.errors import UserError
from reweigh.bench.files import write_atomically
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Spec
from reweigh.bench.lab.table import Table, with_tuples

_FOLDER = "questions"


@dataclass(frozen=True, kw_only=True)
class StoredQuestion:
    """A question, the ids of the runs planned for it so far, and when that last changed (seconds since 1970)."""

    question: Question
    runs: tuple[str, ...]
    changed: float


def store(root: Path, question: Question, runs: Iterable[Spec]) -> Path:
    """Write down a question and the runs planned for it so far; the same question has the same file."""
    values = {
        "recipe": question.recipe,
        "preset": question.preset,
        "settings": dict(question.settings),
        "table": dataclasses.asdict(question.table),
    }
    name = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
    path = root / question.recipe / _FOLDER / f"{name}.json"
    # A command that is interrupted early must not lose sight of what an earlier one had finished.
    earlier = _read(path).runs if path.exists() else ()
    ids = list(dict.fromkeys((*earlier, *(spec.id for spec in runs))))
    if not path.exists() or len(ids) > len(earlier):  # what is finished can be reported from a read-only disk
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({**values, "runs": ids, "changed": time.time()}, indent=1, sort_keys=True))
    return path


def stored(root: Path, *, recipe: str | None = None) -> list[StoredQuestion]:
    """The questions that a folder stores, of one recipe or of all, the last to change first."""
    paths = root.glob(f"{recipe or '*'}/{_FOLDER}/*.json")
    return sorted((_read(path) for path in paths), key=lambda one: (-one.changed, one.question.recipe))


def _read(path: Path) -> StoredQuestion:
    try:
        values = json.loads(path.read_bytes())
        question = Question(
            recipe=values["recipe"],
            preset=values["preset"],
            settings=with_tuples(values["settings"]),
            table=Table.from_dict(values["table"]),
        )
        return StoredQuestion(question=question, runs=tuple(values["runs"]), changed=float(values["changed"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} does not hold a question ({error}). Something else changed the file; delete it, and run the "
            "command again that made it: finished runs are kept."
        ) from None
