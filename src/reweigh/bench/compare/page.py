"""The page of a comparison: the bench's report with the answer first, and what a person with data wants beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from reweigh.bench import plan, report
from reweigh.bench.compare import hardest
from reweigh.bench.compare.answer import Answer, ModelAnswer, Part, unit_of
from reweigh.bench.compare.metrics import Metric
from reweigh.bench.compare.problem import Problem
from reweigh.bench.report.numbers import Unit, breakable, typeset
from reweigh.bench.results import Figure, Results
from reweigh.bench.stats import Difference
from reweigh.bench.suspects import Ranking

#: Rows of the hardest that the page shows; the file has more.
_SHOWN = 12


def with_answer(
    gathered: Results,
    said: Answer | None,
    *,
    caveats: Sequence[str] = (),
    ranking: Ranking | None = None,
    problem: Problem | None = None,
) -> Results:
    """The results with the answer in front, and the figures that only a comparison has."""
    if said is None:
        return gathered
    figures = [_metrics(one) for one in said.models]
    figures += [f for one in said.models for f in _groups(one)]
    if ranking is not None and problem is not None:
        figures.append(_hardest(ranking, problem))
    return dataclasses.replace(
        gathered, headline=said.headline, details=(*said.details, *caveats), extra=(*gathered.extra, *figures)
    )


def write(shown: Results, path: Path) -> Path:
    """Write the page."""
    return report.write([shown], path)


def as_data(said: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    """The answer for scripts: plain values, with None for what is no number, which JSON has no word for."""
    return _plain(_as_data(said, caveats))


def _as_data(said: Answer, caveats: Sequence[str]) -> dict[str, Any]:
    return {
        "headline": said.headline,
        "details": list(said.details),
        "caveats": list(caveats),
        "use": {"model": said.model, "method": said.row},
        "models": [
            {
                "model": one.model,
                "splits": one.splits,
                "use": one.chosen,
                "scores": {
                    label: {
                        score.metric.key: {
                            "mean": score.mean,
                            "difference": None if score.difference is None else dataclasses.asdict(score.difference),
                        }
                        for score in scores
                    }
                    for label, scores in one.scores.items()
                },
                "classes": [dataclasses.asdict(part) for part in one.classes],
                "groups": [dataclasses.asdict(part) for part in one.groups],
            }
            for one in said.models
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metrics(one: ModelAnswer) -> Figure:
    heads = [score.metric for score in one.scores[plan.BASELINE]]
    head = Markup("").join(
        Markup('<th scope="col">{}{}</th>').format(m.name, " ↓" if m.smallest else "") for m in heads
    )
    body = Markup("").join(_row(label, scores) for label, scores in one.scores.items())
    table = Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="All metrics"><table class="results"><thead><tr>'
        '<th scope="col">method</th>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, body)
    return Figure(
        title=f"Every metric, {one.model}",
        markup=str(table),
        caption="Means over splits at the epoch that validation chose, and the difference to plain training with its "
        "95 % interval, corrected for overlapping splits. Coloured where there is evidence; corrected for the number "
        "of methods (Holm) in each column. Arrows down: less is better.",
    )


def _row(label: str, scores: Sequence[Any]) -> Markup:
    cells = Markup("").join(_cell(score) for score in scores)
    return Markup('<tr><th scope="row">{}</th>{}</tr>').format(breakable(label), cells)


def _cell(score: Any) -> Markup:
    d, unit = score.difference, score.unit
    if d is None:
        return Markup("<td><b>{}</b></td>").format(unit.value(score.mean))
    tone = {"better": "good", "worse": "bad"}.get(d.conclusion(smallest=score.metric.smallest), "none")
    return Markup('<td class="{}"><b>{}</b><small class="difference">{} {}</small></td>').format(
        tone, unit.value(score.mean), typeset(unit.signed(d.mean)), typeset(_interval(unit, d))
    )


def _interval(unit: Unit, difference: Difference) -> str:
    return "on every split" if difference.constant else unit.interval(difference)


def _groups(one: ModelAnswer) -> list[Figure]:
    if not one.groups:
        return []
    metric = Metric(key="group", name="group", percent=bool(one.classes))
    body = Markup("").join(_part(part, metric) for part in one.groups)
    table = Markup(
        '<div class="scroll"><table class="results"><thead><tr><th scope="col">group</th><th scope="col">plain</th>'
        '<th scope="col">re-weighted</th><th scope="col">difference</th></tr></thead><tbody>{}</tbody></table></div>'
    ).format(body)
    return [
        Figure(
            title=f"Group by group, {one.model}",
            markup=str(table),
            caption="Accuracy of each group (for numbers, the root mean squared error), mean over the splits that "
            "tested on it. The intervals are not corrected for the number of groups.",
        )
    ]


def _part(part: Part, metric: Metric) -> Markup:
    unit = unit_of(metric, part.plain)
    apart = (
        "–" if part.difference is None else f"{unit.signed(part.difference.mean)} {_interval(unit, part.difference)}"
    )
    return Markup('<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>').format(
        part.name, unit.value(part.plain), unit.value(part.ours), typeset(apart)
    )


def _hardest(ranking: Ranking, problem: Problem) -> Figure:
    counted = "" if problem.images is not None else "Rows are numbered as in the table, from 1 below its header. "
    kinds = {kind: len(ranking.of_kind(kind)) for kind in ("suspected label error", "hard")}
    rows = Markup("").join(_suspect(s, problem) for s in ranking[:_SHOWN] if s.kind not in ("ordinary", "never seen"))
    table = Markup(
        '<div class="scroll"><table class="results"><thead><tr><th scope="col">row</th><th scope="col">kind</th>'
        '<th scope="col">class</th><th scope="col">why</th></tr></thead><tbody>{}</tbody></table></div>'
    ).format(rows)
    return Figure(
        title="The hardest rows",
        markup=str(table) if rows else "<p>No row stands out.</p>",
        caption=f"{kinds['suspected label error']} rows keep a loss far above their class through the later half of "
        f"training: their label may be wrong. {kinds['hard']} are hard: their loss fell late, or went up and down. "
        f"{counted}The file hardest.csv has more of them, with the course of loss and weight. "
        f"{hardest.caution(ranking)}",
    )


def _suspect(suspect: Any, problem: Problem) -> Markup:
    label = "" if suspect.label is None else problem.classes[suspect.label]
    return Markup('<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>').format(
        problem.row_name(suspect.index), suspect.kind, label, escape(suspect.reason)
    )
