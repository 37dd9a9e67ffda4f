"""What the folder of a comparison stores: its table, the runs its answer rests on, and how the search ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reweigh.bench.compare import page
from reweigh.bench.compare.answer import Answer, answer
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.row_scores import RowScores, keep_splits
from reweigh.bench.compare.search import SearchOutcome
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import results
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.runs import Run, read_run
from reweigh.bench.lab.table import Table, with_tuples
from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import ScoringRules

#: The name under which runs are kept.
NAME = "compare"
_FILE, _SPLITS = "compare.json", "splits"
#: The folder of the model that is kept.
MODEL = "model"


def splits_of(problem: Problem) -> str:
    """The folder of which rows each split tests: a sample has one of its own."""
    return f"{_SPLITS}-{problem.sample}" if problem.sample else _SPLITS


def save(
    root: Path, table: Table, outcome: SearchOutcome, problem: Problem, *, jobs: int = 1
) -> tuple[Results, Answer | None]:
    """Store what an answer would rest on; the results, and the answer if there is one yet."""
    facts = {
        "classes": list(problem.classes),
        "groups": list(problem.groups),
        "kind": problem.kind,
        "judging": dataclasses.asdict(problem.judging),
        "jobs": jobs,
        "rows": problem.rows,
        "sampled_from": problem.sampled_from,
        "splits": splits_of(problem),
    }
    keep_splits(root / splits_of(problem), problem, {run.spec.seed for run in outcome.runs})
    stored = {
        "table": dataclasses.asdict(table),
        "facts": facts,
        "runs": [run.spec.id for run in outcome.runs],
        "tuning": [run.spec.id for run in outcome.tuning],
        "smaller": [run.spec.id for run in outcome.smaller],
        "tuned": outcome.tuned,
        "learning_rates_tuned": outcome.rates,
        "ended": outcome.ended,
        "dropped": {f"{column}: {label}": splits for (column, label), splits in outcome.dropped.items()},
        "failed": {f"{column}: {label}": reason for (column, label), reason in outcome.failed.items()},
    }
    if outcome.runs or not (root / _FILE).exists():  # an earlier answer is worth more than none
        write_atomically(root / _FILE, json.dumps(stored, indent=1))
    return _answered(root, table, [*outcome.runs, *outcome.tuning], facts)


def results_at(root: Path) -> Results:
    """The results of the comparison in a folder, as they were last answered."""
    stored = json.loads((root / _FILE).read_text())
    begun = (read_run(root, NAME, identity) for identity in dict.fromkeys((*stored["runs"], *stored["tuning"])))
    runs = [run for run in begun if run is not None]
    table, facts = Table.from_dict(stored["table"]), stored["facts"]
    results, stored_answer = _answered(root, table, runs, facts)
    fewer = (read_run(root, NAME, identity) for identity in stored.get("smaller", ()))
    return page.with_answer(
        results,
        stored_answer,
        tested=_row_scores(root, table, facts),
        smaller=[run for run in fewer if run is not None and run.done],
        model=root / MODEL if (root / MODEL).is_dir() else None,
    )


def row_scores(root: Path, table: Table, problem: Problem) -> RowScores:
    """The scores of single rows of the comparison in a folder."""
    return RowScores(table, root / splits_of(problem), problem.judging)


def _row_scores(root: Path, table: Table, facts: Mapping[str, Any]) -> RowScores:
    return RowScores(table, root / facts.get("splits", _SPLITS), ScoringRules(**with_tuples(facts["judging"])))


def _answered(root: Path, table: Table, runs: Sequence[Run], facts: Mapping[str, Any]) -> tuple[Results, Answer | None]:
    known = metrics.REGRESSION if facts["kind"] == "regression" else metrics.CLASSIFICATION
    scores = _row_scores(root, table, facts)
    gathered = results.of_runs(NAME, table, runs, scores.difference)
    return gathered, answer(gathered, known, facts["classes"], facts["groups"], jobs=facts.get("jobs", 1))
