"""The page of a comparison: the bench's report with the answer first, and figures that only a comparison has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reweigh.bench import report
from reweigh.bench.compare.actions import probability, with_reference
from reweigh.bench.compare.answer import Answer, ModelAnswer, Score
from reweigh.bench.compare.figures import figures_of, opening
from reweigh.bench.compare.power import power
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.row_scores import RowScores
from reweigh.bench.compare.sizes import sizes
from reweigh.bench.compare.tau_sensitivity import tau_sensitivity
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Figure, Results
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.stats import Difference
from reweigh.bench.report.advice import percent
from reweigh.bench.report.markup import Toned, element, table
from reweigh.bench.report.numbers import Unit, breakable, typeset
from reweigh.bench.tables import Schema


def with_answer(
    gathered: Results,
    answer: Answer | None,
    *,
    caveats: Sequence[str] = (),
    problem: Problem | None = None,
    tested: RowScores | None = None,
    smaller: Sequence[Run] = (),
    about_rows: Sequence[Figure] = (),
    model: Path | None = None,
) -> Results:
    """The results with the answer in front, and the figures that only a comparison has.

    `smaller` are trainings on fewer rows, `about_rows` the figures that need the data themselves, and `model` the
    folder of the kept model.
    """
    if answer is None:
        return gathered
    figures = figures_of(answer, gathered, tested)
    trained = None if problem is None else round(problem.rows * problem.train_share)
    figures += [_ranked(answer), *power(answer, gathered, tested), *sizes(answer, gathered, smaller, trained)]
    figures += [*tau_sensitivity(answer, gathered), *about_rows, *(_metrics(model) for model in answer.models)]
    if problem is not None and problem.schema is not None and problem.imbalance == 1.0:
        figures.append(_columns(problem.schema))
    return dataclasses.replace(
        with_reference(gathered, answer.decision),
        headline=answer.headline,
        details=(*answer.declared, *answer.unanswered, *caveats),
        opening=opening(answer, source=_new_rows(problem), model=model),
        extra=(*gathered.extra, *figures),
    )


def _new_rows(problem: Problem | None) -> str:
    """What stands for new rows in a command."""
    if problem is not None and problem.images is not None:
        return "photos/"
    return "texts/" if problem is not None and problem.files else "rows.csv"


def write(shown: Results, path: Path) -> Path:
    """Write the page."""
    return report.write([shown], path)


def as_data(answer: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    """The answer for scripts: plain values, with None for NaN and infinity, which JSON does not have."""
    return _plain(_as_data(answer, caveats))


def _as_data(answer: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    return {
        "headline": answer.headline,
        "strength": answer.strength,
        "costs": list(answer.costs),
        "declared": list(answer.declared),
        "open": list(answer.unanswered),
        "caveats": list(caveats),
        "use": {"model": answer.model, "method": answer.row},
        "reference": {"model": answer.decision.reference.model, "method": answer.decision.reference.label},
        "margin": answer.decision.margin,
        "actions": [dataclasses.asdict(action) for action in answer.decision.ranked],
        "models": [
            {
                "model": model.model,
                "splits": model.splits,
                "scores": {
                    label: {
                        score.metric.key: {
                            "mean": score.mean,
                            "difference": None if score.difference is None else dataclasses.asdict(score.difference),
                        }
                        for score in scores
                    }
                    for label, scores in model.scores.items()
                },
            }
            for model in answer.models
        ],
        "classes": [dataclasses.asdict(score) for score in answer.classes],
        "groups": [dataclasses.asdict(score) for score in answer.groups],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metrics(model: ModelAnswer) -> Figure:
    """Every metric of every row of a model."""
    heads = [score.metric.name + (" ↓" if score.metric.smallest else "") for score in model.scores[plan.BASELINE]]
    rows = ([breakable(label), *(_entry(score) for score in scores)] for label, scores in model.scores.items())
    return Figure(
        title=f"Every metric, {model.model}",
        markup=table(["method", *heads], rows, label=f"All metrics, {model.model}", class_="results"),
        caption="Means over splits, and the difference to the best plain training with its 95 % interval: over rows "
        "and rounds of splits, or over splits for what is not a matter of single rows (average precision, recall at a "
        "precision, calibration, the worst class, group or tenth) and for rows that were dropped after one round. "
        "Coloured where there is evidence after correction for the number of rows of all "
        "models (Holm), metric by metric. Arrows down: less is better.",
    )


def _entry(score: Score) -> Markup | Toned:
    d, unit = score.difference, score.unit
    mean = element("b", unit.value(score.mean))
    if d is None:
        return mean
    small = typeset(f"{unit.signed(d.mean)} {_interval(unit, d)}")
    tone = {"better": "good", "worse": "bad"}.get(d.conclusion(smallest=score.metric.smallest), "none")
    return Toned(mean + element("small", small, class_="difference"), tone)


def _interval(unit: Unit, difference: Difference) -> str:
    return "on every split" if difference.constant else unit.interval(difference)


def _ranked(answer: Answer) -> Figure:
    """Every action, the best first, with what the headline rests on."""
    unit, decision = answer.unit, answer.decision
    rows: list[list[str | Toned]] = []
    for action in decision.ranked:
        d, used = action.difference, action.key == decision.use.key
        name = breakable(answer.names[action.key])
        if d is None:
            difference: str | Toned = "the reference"
        else:
            tone = {"better": "good", "worse": "bad"}.get(d.conclusion(smallest=decision.smallest), "none")
            difference = Toned(typeset(f"{unit.signed(d.mean)} {_interval(unit, d)}"), tone)
        chance = "" if d is None else percent(probability(d, smallest=decision.smallest))
        rows.append(
            [element("b", name) if used else name, unit.value(action.mean), difference, chance, str(action.splits)]
        )
    heads = ("action", answer.metric.name, "against the best plain training", "better with probability", "splits")
    return Figure(
        title="What to use, best first",
        markup=table(heads, rows, label="Every action", class_="results"),
        caption="Bold is what the kept model uses. 95 % intervals; coloured where the difference is decided after "
        f"correction for {decision.comparisons} comparisons (Holm). The probability is of each row alone, uncorrected.",
    )


def _columns(schema: Schema) -> Figure:
    """What each column was taken for."""
    rows = [[c.name, c.kind, str(c.distinct), f"{c.missing:.0%}" if c.missing else ""] for c in schema.columns]
    return Figure(
        title="What each column was taken for",
        markup=table(("column", "taken for", "different", "missing"), rows, label="Columns"),
        caption="`--categorical COL` makes names of numbers, and `--drop COL` leaves a column out.",
    )
