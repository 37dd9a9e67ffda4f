"""The effect against the number of training rows: would it be another with more rows?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from reweigh.bench.compare.answer import Answer
from reweigh.bench.lab.results import Figure, Results, difference
from reweigh.bench.lab.runs import Run
from reweigh.bench.lab.stats import Difference
from reweigh.bench.report.charts import Line, for_widths, lines
from reweigh.bench.report.svg import padded


def sizes(answer: Answer, results: Results, smaller: Sequence[Run], trained: int | None) -> list[Figure]:
    """The difference to plain training by training size; nothing where no smaller trainings have finished.

    Parameters
    ----------
    answer, results
        The answer, and what it rests on.
    smaller
        Runs of the same two actions on shares of the training rows.
    trained
        Rows that the others train on, where that is known.
    """
    decision = answer.decision
    shown = decision.best if decision.keeps_plain else decision.use
    if shown is None:
        return []
    by_share: dict[float, dict[tuple[str, str], dict[int, float]]] = {}
    metric = results.table.metric
    for run in smaller:
        key, share = (run.spec.column, run.spec.label), float(run.spec.settings["train_share"])
        by_share.setdefault(share, {}).setdefault(key, {})[run.spec.seed] = float(run.records()[-1][metric])
    seeds = {seed for own in by_share.values() for row in own.values() for seed in row}
    columns = {column.name: column for column in results.columns}
    by_share[1.0] = {
        (model, label): {s: o.value for s, o in columns[model].rows[label].outcomes.items() if s in seeds}
        for model, label in (shown.key, decision.reference.key)
    }
    known: dict[float, Difference] = {}
    for share, own in sorted(by_share.items()):
        apart = _apart(own, shown.key, decision.reference.key, results.table.overlap)
        if apart is not None:
            known[share] = apart
    if len(known) < 2:
        return []
    unit = answer.unit
    at = [float(round(share * trained)) if trained else share for share in known]
    written = [f"{round(x)} rows" if trained else f"{share:.0%}" for x, share in zip(at, known, strict=True)]
    words = [
        f"{name}: {unit.signed(d.mean)} {unit.interval(d)}" for name, d in zip(written, known.values(), strict=True)
    ]
    low, high = [d.low for d in known.values()], [d.high for d in known.values()]
    ours = Line(
        name=answer.names[shown.key],
        role="primary",
        xs=at,
        ys=[d.mean for d in known.values()],
        band=(low, high),
        tips=words,
        named=False,
    )

    def draw(width: float, height: float, letters: int) -> Markup:
        return lines(
            [ours],
            title="The difference to plain training by training rows",
            description="; ".join(words) + ".",
            x_label="training rows" if trained else "share of the training rows",
            x_ticks=at,
            y_domain=padded([*low, *high, 0.0]),
            tick=unit.tick,
            size=(width, 0.8 * height),
            zero=True,
        )

    return [
        Figure(
            title="Would more rows change it?",
            markup=for_widths(draw),
            caption=f"{answer.names[shown.key]} against {answer.names[decision.reference.key]} in "
            f"{answer.metric.name}, trained on shares of the rows and tested on the same splits, with 95 % intervals "
            "over these splits: "
            + "; ".join(words)
            + ". An effect that shrinks from left to right may be gone with more rows.",
        )
    ]


def _apart(
    own: Mapping[tuple[str, str], Mapping[int, float]],
    ours: tuple[str, str],
    plain: tuple[str, str],
    overlap: float,
) -> Difference | None:
    first, second = own.get(ours, {}), own.get(plain, {})
    shared = [s for s in sorted(set(first) & set(second)) if math.isfinite(first[s] + second[s])]
    if len(shared) < 2:
        return None
    return difference([first[s] for s in shared], [second[s] for s in shared], overlap)
