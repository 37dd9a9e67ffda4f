"""Tasks one by one: the worst shares of a frozen pool, all scores in order, and the hardest tasks as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Figure, Outcome, Results, RowResults
from reweigh.bench.report import svg
from reweigh.bench.report.charts import Line, lines
from reweigh.bench.report.markup import element, picture, table
from reweigh.bench.report.numbers import looks, typeset
from reweigh.bench.train.scores import PERCENT, worst_share

Floats = np.ndarray[Any, Any]
#: The paper's figures of one row, by column: `10 … 50` for the worst shares and `100` for all tasks.
Paper = Mapping[int, float]

_SCORES = "task_scores"
#: How many of the hardest tasks are drawn, and how large.
_DRAWN, _PIXELS = 8, 2
#: Below it a p-value says no more than that it is small.
_TINY_P = 1e-12
#: Scores of a task that differ by less are equal: they are kept in single precision.
_EQUAL = 1e-6


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """The scores of one row on the frozen pool, `(seeds, tasks)`, each run at its chosen epoch."""

    seeds: Sequence[int]
    scores: Floats


def figures(results: Results, paper: Mapping[str, Mapping[str, Paper]] | None = None) -> list[Figure]:
    """The table of worst shares, the curves of all scores, and pictures where runs kept some.

    Parameters
    ----------
    results
        Of a recipe whose runs kept the score of each task of one frozen pool.
    paper
        The paper's figures by column and row, in the unit of the table.
    """
    pools = {column.name: _pools(column) for column in results.columns}
    shown = [column for column in results.columns if pools[column.name]]
    if not shown:
        return []
    unit = 1.0 if results.table.smallest else 100.0
    drawn = [
        _table(results, shown, pools, paper or {}, unit),
        _paired(results, shown, pools, unit),
        _curves(results, shown, pools, unit),
    ]
    pictures = [markup for column in shown if (markup := _pictures(results, column, pools[column.name]))]
    if pictures:
        drawn.append(
            Figure(
                title="The hardest tasks",
                markup=str(Markup("").join(pictures)),
                caption="Test tasks with the lowest mean accuracy of the baseline over seeds. Above, the example of "
                "each class that the model learns from; below, a query of the same class, the one that a baseline run "
                "got most wrong, framed where it was taken for another class. Accuracies are means over seeds; of "
                "tasks chosen for being bad under the baseline, any other row looks better by chance alone.",
            )
        )
    return [figure for figure in drawn if figure.markup]


def _pools(column: ColumnResults) -> dict[str, TaskScores]:
    """The rows whose runs all kept scores of the same pool."""
    pools: dict[str, TaskScores] = {}
    hashes = {_hash(outcome) for row in column.rows.values() for outcome in row.outcomes.values()}
    if len(hashes) > 1:
        raise ValueError(
            f"the runs of {column.name!r} were tested on {len(hashes)} different pools of tasks, so they cannot be "
            "compared. Run them again with one version of the data."
        )
    for label, row in column.rows.items():
        seeds = sorted(row.outcomes)
        if all(row.outcomes[seed].run.has_array(_SCORES) for seed in seeds):
            scores = np.stack([row.outcomes[seed].run.array(_SCORES) for seed in seeds]).astype(np.float64)
            pools[label] = TaskScores(seeds=seeds, scores=scores)
    return pools


def _hash(outcome: Outcome) -> str:
    return str(next((r["test_tasks_sha256"] for r in outcome.records if "test_tasks_sha256" in r), ""))


# --- the worst shares ---


def _table(
    results: Results,
    columns: Sequence[ColumnResults],
    pools: Mapping[str, Mapping[str, TaskScores]],
    paper: Mapping[str, Mapping[str, Paper]],
    unit: float,
) -> Figure:
    def rows() -> Iterator[Sequence[str]]:
        for column in columns:
            yield [column.name]
            printed = paper.get(column.name, {})
            for label, pool in pools[column.name].items():
                yield [label, *(_share(pool, percent, results, unit) for percent in (*PERCENT, 100))]
                if label in printed:
                    given = [f"{printed[label][p]:.2f}" if p in printed[label] else "" for p in (*PERCENT, 100)]
                    yield [element("small", text) for text in ("  the paper", *given)]

    return Figure(
        title="Worst shares of the pool",
        markup=table(["", *(f"worst {percent} %" for percent in PERCENT), "all tasks"], rows()),
        caption=f"Mean {'error' if results.table.smallest else 'accuracy, percent,'} over the worst K % of the test "
        "tasks, which are each run's own, at the chosen epoch: mean over seeds; ± half of the 95 % Student-t interval "
        "over tasks, mean over seeds. It says how well the pool measures one model, not how much trainings differ.",
    )


def _share(pool: TaskScores, percent: int, results: Results, unit: float) -> str:
    shares = [worst_share(scores, percent, smallest=results.table.smallest) for scores in pool.scores]
    digits = 2 if unit != 1.0 else 3
    mean, half = np.mean([share.mean for share in shares]) * unit, np.mean([share.half for share in shares]) * unit
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


# --- the same tasks under two methods ---


def _paired(
    results: Results, columns: Sequence[ColumnResults], pools: Mapping[str, Mapping[str, TaskScores]], unit: float
) -> Figure:
    """Every row against the baseline: on identical tasks, and by what its own worst share changed over seeds."""

    def rows() -> Iterator[Sequence[str]]:
        for column in columns:
            known = pools[column.name]
            if plan.BASELINE not in known or len(known) < 2:
                continue
            yield [column.name]
            for label, pool in known.items():
                seeds = sorted(set(pool.seeds) & set(known[plan.BASELINE].seeds))
                if label != plan.BASELINE and seeds:
                    yield [label, *_compared(results, pool, known[plan.BASELINE], seeds, unit)]

    heads = ("", "over tasks, 95 %", "p", "tasks better", "tasks worse", "worst 10 % over seeds, 95 %")
    return Figure(
        title="On identical tasks",
        markup=table(heads, rows()),
        caption="Difference to the baseline. Over tasks: each task's mean over seeds, paired t-test on the whole pool; "
        "its interval is for these trained models, as the paper's is. Over seeds: the worst tenth of each run, paired "
        "by seed; this is what another training would show. Not corrected for the number of rows.",
    )


def _compared(results: Results, ours: TaskScores, theirs: TaskScores, seeds: Sequence[int], unit: float) -> list[str]:
    first, second = (pool.scores[[list(pool.seeds).index(seed) for seed in seeds]] for pool in (ours, theirs))
    over_tasks = stats.paired(first.mean(0).tolist(), second.mean(0).tolist())
    tenths = [[worst_share(s, 10, smallest=results.table.smallest).mean for s in pool] for pool in (first, second)]
    over_seeds = stats.paired(*tenths)
    better = (first.mean(0) - second.mean(0)) * (-1.0 if results.table.smallest else 1.0)
    return [
        _difference(over_tasks, unit),
        f"{over_tasks.p:.2g}" if over_tasks.p >= _TINY_P else f"< {_TINY_P:g}",
        f"{np.mean(better > _EQUAL):.0%}",
        f"{np.mean(better < -_EQUAL):.0%}",
        _difference(over_seeds, unit) if over_seeds.n > 1 else "one seed",
    ]


def _difference(d: stats.Difference, unit: float) -> str:
    digits = 2 if unit != 1.0 else 3
    mean, low, high = (f"{value * unit:+.{digits}f}" for value in (d.mean, d.low, d.high))
    return typeset(f"{mean} [{low}, {high}]")


# --- all scores ---


def _curves(
    results: Results, columns: Sequence[ColumnResults], pools: Mapping[str, Mapping[str, TaskScores]], unit: float
) -> Figure:
    panels = [str(_curve(results, column, pools[column.name], unit)) for column in columns]
    return Figure(
        title="All tasks, from worst to best",
        markup='<div class="panels">' + "".join(f"<div>{panel}</div>" for panel in panels if panel) + "</div>",
        caption="Scores of the test tasks in order, mean over seeds of each place: a point at 10 % says that a tenth "
        "of the tasks go worse than this.",
    )


def _curve(results: Results, column: ColumnResults, pools: Mapping[str, TaskScores], unit: float) -> Markup:
    shares = np.linspace(0.5, 99.5, 100)
    curves = {
        label: (_ordered(pools[label], shares, results.table.smallest) * unit).tolist()
        for label in (plan.BASELINE, results.table.primary)
        if label in pools
    }
    if not curves:
        return Markup("")
    return lines(
        [
            Line(name=label, role=looks(results)[label].role, xs=shares.tolist(), ys=values, tip=label)
            for label, values in curves.items()
        ],
        title=f"Scores in order, {column.name}",
        description="; ".join(f"{label}: worst tenth below {values[9]:.3g}" for label, values in curves.items()),
        x_label=f"{column.name}: percent of the tasks",
        x_domain=(0.0, 100.0),
        y_domain=svg.padded(
            [v for values in curves.values() for v in values], within=(0.0, 1e9 if unit == 1.0 else 100.0)
        ),
        tick=(lambda v: f"{v:g} %") if unit != 1.0 else "{:g}".format,
        names=60,
    )


def _ordered(pool: TaskScores, shares: Floats, smallest: bool) -> Floats:
    """The scores at these percentages, from worst to best, mean over seeds."""
    at = 100.0 - shares if smallest else shares
    return np.percentile(pool.scores, at, axis=1).mean(1)


# --- pictures ---


def _pictures(results: Results, column: ColumnResults, pools: Mapping[str, TaskScores]) -> Markup | None:
    row = column.rows.get(plan.BASELINE)
    if row is None or plan.BASELINE not in pools:
        return None
    kept = _kept(row)
    if not kept:
        return None
    mean = pools[plan.BASELINE].scores.mean(0)
    chosen = sorted(kept, key=lambda task: (mean[task], task))[:_DRAWN]
    labels = [label for label in (plan.BASELINE, results.table.primary) if label in pools]
    drawn = [
        _picture(kept[task], {label: float(pools[label].scores[:, task].mean()) for label in labels}) for task in chosen
    ]
    rows = Markup("").join(drawn)
    return Markup('<h3 class="of-panel">{}</h3><div class="panels">{}</div>').format(column.name, rows)


def _kept(row: RowResults) -> dict[int, tuple[Floats, Floats, Floats]]:
    """Pictures by task: support, query and what the query was taken for, from the first run that has them."""
    kept: dict[int, tuple[Floats, Floats, Floats]] = {}
    for seed in sorted(row.outcomes):
        run = row.outcomes[seed].run
        if not run.has_array("hardest"):
            continue
        parts = [run.array(f"hardest_{name}") for name in ("support", "query", "taken_for")]
        for i, task in enumerate(run.array("hardest").tolist()):
            kept.setdefault(task, (parts[0][i], parts[1][i], parts[2][i]))
    return kept


def _picture(parts: tuple[Floats, Floats, Floats], scores: Mapping[str, float]) -> Markup:
    """Two lines of images, and the predictions for them."""
    support, query, taken = parts
    wrong = [f"{i + 1}→{int(to) + 1}" for i, to in enumerate(taken) if int(to) != i]
    accuracies = ", ".join(f"{label} {100 * score:.0f} %" for label, score in scores.items())
    alt = f"A task of {len(support)} classes, one example and one query of each; wrong: {', '.join(wrong) or 'none'}."
    image = picture(
        _page(support, query, [int(to) != i for i, to in enumerate(taken)]),
        colours=16 if support.shape[1] == 1 else 256,
        alt=alt,
        style="width:100%;max-width:320px;image-rendering:pixelated",
    )
    return element("figure", image, element("figcaption", f"{accuracies}. Wrong: {', '.join(wrong) or 'none'}."))


def _page(support: Floats, query: Floats, wrong: Sequence[bool]) -> Floats:
    """Images side by side on white, support above queries, wrong ones in a frame."""
    channels, height, width = support.shape[1:]
    gap, most = 3, 10
    columns = min(len(support), most)
    blocks = -(-len(support) // columns)
    page = np.full((blocks * 2 * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, np.uint8)
    for i in range(len(support)):
        block, column = divmod(i, columns)
        left = gap + column * (width + gap)
        for line, image in enumerate((support[i], query[i])):
            top = gap + (2 * block + line) * (height + gap)
            if line and wrong[i]:
                page[top - 2 : top + height + 2, left - 2 : left + width + 2] = (196, 80, 11)
            shown = np.moveaxis(image, 0, -1)
            # Ink dark on light, as it was drawn.
            page[top : top + height, left : left + width] = 255 - shown if channels == 1 else shown
    return page.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1)
