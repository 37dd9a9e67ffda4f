"""What a comparison leaves behind for its user: the page, the hardest rows, the model, and the answer for scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reweigh.bench.compare import folder, hardest, page
from reweigh.bench.compare.answer import Answer, row_name
from reweigh.bench.compare.class_shares import class_shares
from reweigh.bench.compare.model import train_and_save
from reweigh.bench.compare.model_card import ModelEvidence
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.rows_shown import rows_shown
from reweigh.bench.compare.search import SearchOutcome
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.suspects import Ranking
from reweigh.bench.lab.table import Table
from reweigh.bench.report.verdict import BASELINE_NAME


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where things were written, and the ranking of the hardest rows; there is no model of an interrupted search."""

    report: Path
    hardest: Path
    model: Path | None
    ranking: Ranking


def write(
    root: Path,
    problem: Problem,
    table: Table,
    outcome: SearchOutcome,
    results: Results,
    answer: Answer,
    caveats: Sequence[str],
    *,
    progress: Callable[[float], None],
) -> Files:
    """Write everything into the folder; training the model to keep reports its `progress` as a share."""
    runs = [run for run in outcome.runs if (run.spec.column, run.spec.label) == (answer.model, answer.row)]
    # A correction has no training of its own: the hardest rows are those of the training that it corrects.
    trained_as = table.row(answer.row).settings.get("base") or answer.row
    trained = [run for run in outcome.runs if (run.spec.column, run.spec.label) == (answer.model, trained_as)]
    # Plain training's weights would all be one.
    label = trained_as if trained_as != plan.BASELINE else table.primary
    weighed_by = next((run.spec.method for run in outcome.runs if run.spec.label == label), label)
    losses = hardest.trajectories(problem, trained)
    ranking = hardest.write(problem, trained, root / "hardest.csv", weighed_by=weighed_by, losses=losses)
    plain = [run for run in outcome.runs if (run.spec.column, run.spec.label) == (answer.model, plan.BASELINE)]
    ours = [run for run in outcome.runs if (run.spec.column, run.spec.label) == (answer.model, label)]
    pairs = [(BASELINE_NAME, plain), (row_name(label, ours[0].spec.method) if ours else label, ours)]
    about_rows = [*class_shares(problem, pairs), *rows_shown(ranking, problem, losses, trained)]
    shown = page.with_answer(
        results,
        answer,
        caveats=caveats,
        problem=problem,
        tested=folder.row_scores(root, table, problem),
        smaller=outcome.smaller,
        about_rows=about_rows,
        model=root / folder.MODEL if outcome.ended != "interrupted" else None,
    )
    report = page.write(shown, root / "report.html")
    model = None
    if outcome.ended != "interrupted":
        own = next(m for m in answer.models if m.model == answer.model)
        expected = {score.metric.name: score.mean for score in own.scores[answer.row]}
        sha256 = str(runs[0].spec.settings.get("sha256", ""))
        evidence = ModelEvidence(problem=problem, sha256=sha256, results=results, answer=answer)
        model = train_and_save(
            problem, runs[0].spec, root / folder.MODEL, expected=expected, evidence=evidence, progress=progress
        )
    rows = {"compared on": problem.rows, "of": problem.sampled_from or problem.rows}
    data = {**page.as_data(answer, caveats), "rows": rows}
    write_atomically(root / "answer.json", json.dumps(data, indent=1, allow_nan=False))
    return Files(report=report, hardest=root / "hardest.csv", model=model, ranking=ranking)
