"""The page of a comparison: the bench's report with the answer first, and figures that only a comparison has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reweigh.bench import report
from reweigh.bench.compare import hardest
from reweigh.bench.compare.answer import Answer, ModelAnswer, Score, SubsetScore, unit_of
from reweigh.bench.compare.problem import Problem
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Figure, Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.suspects import Ranking
from reweigh.bench.report.markup import Toned, element, table
from reweigh.bench.report.numbers import Unit, breakable, typeset
from reweigh.bench.train.scores import Metric

#: Rows of the hardest that the page shows; the file has more.
_SHOWN = 12


def with_answer(
    gathered: Results,
    answer: Answer | None,
    *,
    caveats: Sequence[str] = (),
    ranking: Ranking | None = None,
    problem: Problem | None = None,
) -> Results:
    """The results with the answer in front, and the figures that only a comparison has."""
    if answer is None:
        return gathered
    figures = [_metrics(model) for model in answer.models]
    figures += [figure for model in answer.models for figure in _groups(model)]
    if ranking is not None and problem is not None:
        figures.append(_hardest(ranking, problem))
    return dataclasses.replace(
        gathered, headline=answer.headline, details=(*answer.details, *caveats), extra=(*gathered.extra, *figures)
    )


def write(shown: Results, path: Path) -> Path:
    """Write the page."""
    return report.write([shown], path)


def as_data(answer: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    """The answer for scripts: plain values, with None for NaN and infinity, which JSON does not have."""
    return _plain(_as_data(answer, caveats))


def _as_data(answer: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    return {
        "headline": answer.headline,
        "details": list(answer.details),
        "caveats": list(caveats),
        "use": {"model": answer.model, "method": answer.row},
        "models": [
            {
                "model": model.model,
                "splits": model.splits,
                "use": model.chosen,
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
                "classes": [dataclasses.asdict(score) for score in model.classes],
                "groups": [dataclasses.asdict(score) for score in model.groups],
            }
            for model in answer.models
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metrics(model: ModelAnswer) -> Figure:
    heads = [score.metric.name + (" ↓" if score.metric.smallest else "") for score in model.scores[plan.BASELINE]]
    rows = ([breakable(label), *(_entry(score) for score in scores)] for label, scores in model.scores.items())
    return Figure(
        title=f"Every metric, {model.model}",
        markup=table(["method", *heads], rows, label="All metrics", class_="results"),
        caption="Means over splits at the epoch that validation chose, and the difference to plain training with its "
        "95 % interval, corrected for overlapping splits. Coloured where there is evidence; corrected for the number "
        "of methods (Holm) in each column. Arrows down: less is better.",
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


def _groups(model: ModelAnswer) -> list[Figure]:
    if not model.groups:
        return []
    metric = Metric(key="group", name="group", percent=bool(model.classes))
    heads = ("group", "plain", "re-weighted", "difference")
    return [
        Figure(
            title=f"Group by group, {model.model}",
            markup=table(heads, (_subset(group, metric) for group in model.groups), class_="results"),
            caption="Accuracy of each group (for numbers, the root mean squared error), mean over the splits that "
            "tested on it. The intervals are not corrected for the number of groups.",
        )
    ]


def _subset(score: SubsetScore, metric: Metric) -> list[str]:
    unit, d = unit_of(metric, score.plain), score.difference
    apart = "–" if d is None else typeset(f"{unit.signed(d.mean)} {_interval(unit, d)}")
    return [score.name, unit.value(score.plain), unit.value(score.ours), apart]


def _hardest(ranking: Ranking, problem: Problem) -> Figure:
    counted = "" if problem.images is not None else "Rows are numbered as in the table, from 1 below its header. "
    kinds = {kind: len(ranking.of_kind(kind)) for kind in ("suspected label error", "hard")}
    rows = [
        [str(problem.row_name(s.index)), s.kind, "" if s.label is None else problem.classes[s.label], s.reason]
        for s in ranking[:_SHOWN]
        if s.kind not in ("ordinary", "never seen")
    ]
    return Figure(
        title="The hardest rows",
        markup=table(("row", "kind", "class", "why"), rows, class_="results") or "<p>No row stands out.</p>",
        caption=f"{kinds['suspected label error']} rows keep a loss far above their class through the later half of "
        f"training: their label may be wrong. {kinds['hard']} are hard: their loss fell late, or went up and down. "
        f"{counted}The file hardest.csv has more of them, with the course of loss and weight. "
        f"{hardest.caution(ranking)}",
    )
