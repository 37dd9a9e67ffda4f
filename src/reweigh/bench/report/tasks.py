"""Tasks one by one: the worst shares of a frozen pool, all scores in order, and the hardest tasks as pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench import plan, stats
from reweigh.bench.report import svg
from reweigh.bench.report.numbers import looks, typeset
from reweigh.bench.report.svg import element
from reweigh.bench.results import CellResults, Figure, Outcome, Results, Row
from reweigh.bench.worst import PERCENT, worst

Floats = np.ndarray[Any, Any]
#: The paper's figures of one row, by column: `10 … 50` for the worst shares and `100` for all tasks.
Paper = Mapping[int, float]

_SCORES = "task_scores"
#: How many of the hardest tasks are drawn, and how large.
_DRAWN, _PIXELS = 8, 2
#: Below it a p-value says no more than that it is small.
_TINY_P = 1e-12


@dataclass(frozen=True, kw_only=True)
class Pool:
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
        The paper's figures by cell and row, in the unit of the table.
    """
    pools = {cell.cell.name: _pools(cell) for cell in results.cells}
    shown = [cell for cell in results.cells if pools[cell.cell.name]]
    if not shown:
        return []
    unit = 1.0 if results.table.smallest else 100.0
    drawn = [
        _table(results, shown, pools, paper or {}, unit),
        _paired(results, shown, pools, unit),
        _curves(results, shown, pools, unit),
    ]
    pictures = [markup for cell in shown if (markup := _pictures(results, cell, pools[cell.cell.name]))]
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


def _pools(cell: CellResults) -> dict[str, Pool]:
    """The rows whose runs all kept scores of the same pool."""
    found: dict[str, Pool] = {}
    hashes = {_hash(outcome) for row in cell.rows.values() for outcome in row.outcomes.values()}
    if len(hashes) > 1:
        raise ValueError(
            f"the runs of {cell.cell.name!r} were tested on {len(hashes)} different pools of tasks, so they cannot be "
            "compared. Run them again with one version of the data."
        )
    for label, row in cell.rows.items():
        seeds = sorted(row.outcomes)
        if all(row.outcomes[seed].run.has_array(_SCORES) for seed in seeds):
            scores = np.stack([row.outcomes[seed].run.array(_SCORES) for seed in seeds]).astype(np.float64)
            found[label] = Pool(seeds=seeds, scores=scores)
    return found


def _hash(outcome: Outcome) -> str:
    return str(next((r["test_tasks_sha256"] for r in outcome.records if "test_tasks_sha256" in r), ""))


# --- the worst shares ---


def _table(
    results: Results,
    cells: Sequence[CellResults],
    pools: Mapping[str, Mapping[str, Pool]],
    paper: Mapping[str, Mapping[str, Paper]],
    unit: float,
) -> Figure:
    heads = ["", *(f"worst {percent} %" for percent in PERCENT), "all tasks"]
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    body: list[Markup] = []
    for cell in cells:
        body.append(element("tr", element("th", cell.cell.name, scope="rowgroup", colspan=len(heads))))
        printed = paper.get(cell.cell.name, {})
        for label, pool in pools[cell.cell.name].items():
            body.append(_line(label, [_share(pool, percent, results, unit) for percent in (*PERCENT, 100)]))
            if label in printed:
                given = [f"{printed[label][p]:.2f}" if p in printed[label] else "" for p in (*PERCENT, 100)]
                body.append(_line("  the paper", given, quiet=True))
    return Figure(
        title="Worst shares of the pool",
        markup='<div class="scroll">'
        + str(element("table", element("thead", head), element("tbody", *body)))
        + "</div>",
        caption=f"Mean {'error' if results.table.smallest else 'accuracy, percent,'} over the worst K % of the test "
        "tasks, which are each run's own, at the chosen epoch: mean over seeds; ± half of the 95 % Student-t interval "
        "over tasks, mean over seeds. It says how well the pool measures one model, not how much trainings differ.",
    )


def _share(pool: Pool, percent: int, results: Results, unit: float) -> str:
    found = [worst(scores, percent, smallest=results.table.smallest) for scores in pool.scores]
    digits = 2 if unit != 1.0 else 3
    mean, half = np.mean([f.mean for f in found]) * unit, np.mean([f.half for f in found]) * unit
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _line(label: str, texts: Sequence[str], *, quiet: bool = False) -> Markup:
    name = element("small", label) if quiet else label
    cells = (element("td", element("small", text) if quiet else text) for text in texts)
    return element("tr", element("th", name, scope="row"), *cells)


# --- the same tasks under two methods ---


def _paired(
    results: Results, cells: Sequence[CellResults], pools: Mapping[str, Mapping[str, Pool]], unit: float
) -> Figure:
    """Every row against the baseline: on identical tasks, and by what its own worst share changed over seeds."""
    heads = ("", "over tasks, 95 %", "p", "tasks better", "tasks worse", "worst 10 % over seeds, 95 %")
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    body: list[Markup] = []
    for cell in cells:
        found = pools[cell.cell.name]
        if plan.BASELINE not in found or len(found) < 2:
            continue
        body.append(element("tr", element("th", cell.cell.name, scope="rowgroup", colspan=len(heads))))
        for label, pool in found.items():
            seeds = sorted(set(pool.seeds) & set(found[plan.BASELINE].seeds))
            if label != plan.BASELINE and seeds:
                body.append(_line(label, _compared(results, pool, found[plan.BASELINE], seeds, unit)))
    table = element("table", element("thead", head), element("tbody", *body))
    return Figure(
        title="On identical tasks",
        markup=f'<div class="scroll">{table}</div>' if body else "",
        caption="Difference to the baseline. Over tasks: each task's mean over seeds, paired t-test on the whole pool; "
        "its interval is for these trained models, as the paper's is. Over seeds: the worst tenth of each run, paired "
        "by seed; this is what another training would show. Not corrected for the number of rows.",
    )


def _compared(results: Results, ours: Pool, theirs: Pool, seeds: Sequence[int], unit: float) -> list[str]:
    first, second = (pool.scores[[list(pool.seeds).index(seed) for seed in seeds]] for pool in (ours, theirs))
    over_tasks = stats.paired(first.mean(0).tolist(), second.mean(0).tolist())
    shares = [[worst(scores, 10, smallest=results.table.smallest).mean for scores in some] for some in (first, second)]
    over_seeds = stats.paired(*shares)
    better = (first.mean(0) - second.mean(0)) * (-1.0 if results.table.smallest else 1.0)
    return [
        _difference(over_tasks, unit),
        f"{over_tasks.p:.2g}" if over_tasks.p >= _TINY_P else f"< {_TINY_P:g}",
        f"{np.mean(better > 1e-9):.0%}",
        f"{np.mean(better < -1e-9):.0%}",
        _difference(over_seeds, unit) if over_seeds.n > 1 else "one seed",
    ]


def _difference(found: stats.Difference, unit: float) -> str:
    digits = 2 if unit != 1.0 else 3
    mean, low, high = (f"{value * unit:+.{digits}f}" for value in (found.mean, found.low, found.high))
    return typeset(f"{mean} [{low}, {high}]")


# --- all scores ---


def _curves(
    results: Results, cells: Sequence[CellResults], pools: Mapping[str, Mapping[str, Pool]], unit: float
) -> Figure:
    panels = [str(_curve(results, cell, pools[cell.cell.name], unit)) for cell in cells]
    return Figure(
        title="All tasks, from worst to best",
        markup='<div class="panels">' + "".join(f"<div>{panel}</div>" for panel in panels if panel) + "</div>",
        caption="Scores of the test tasks in order, mean over seeds of each place: a point at 10 % says that a tenth "
        "of the tasks go worse than this.",
    )


def _curve(results: Results, cell: CellResults, found: Mapping[str, Pool], unit: float) -> Markup:
    labels = [label for label in (plan.BASELINE, results.table.primary) if label in found]
    if not labels:
        return Markup("")
    shares = np.linspace(0.5, 99.5, 100)
    lines = {label: _ordered(found[label], shares, results.table.smallest) * unit for label in labels}
    frame = svg.Frame(
        x_domain=(0.0, 100.0),
        y_domain=svg.padded(
            [v for values in lines.values() for v in values], within=(0.0, 1e9 if unit == 1.0 else 100.0)
        ),
        labels=60,
    )
    roles = {label: looks(results)[label].role for label in labels}
    tick = (lambda v: f"{v:g} %") if unit != 1.0 else "{:g}".format
    return svg.chart(
        frame,
        *(
            svg.line(frame, shares.tolist(), values.tolist(), role=roles[label], tip=label)
            for label, values in lines.items()
        ),
        svg.end_labels(frame, [(float(values[-1]), label, roles[label], None) for label, values in lines.items()]),
        title=f"Scores in order, {cell.cell.name}",
        description="; ".join(f"{label}: worst tenth below {values[9]:.3g}" for label, values in lines.items()),
        x_label=f"{cell.cell.name}: percent of the tasks",
        y_format=tick,
    )


def _ordered(pool: Pool, shares: Floats, smallest: bool) -> Floats:
    """The scores at these percentages, from worst to best, mean over seeds."""
    at = 100.0 - shares if smallest else shares
    return np.percentile(pool.scores, at, axis=1).mean(1)


# --- pictures ---


def _pictures(results: Results, cell: CellResults, found: Mapping[str, Pool]) -> Markup | None:
    row = cell.rows.get(plan.BASELINE)
    if row is None or plan.BASELINE not in found:
        return None
    kept = _kept(row)
    if not kept:
        return None
    mean = found[plan.BASELINE].scores.mean(0)
    chosen = sorted(kept, key=lambda task: (mean[task], task))[:_DRAWN]
    labels = [label for label in (plan.BASELINE, results.table.primary) if label in found]
    drawn = [
        _picture(kept[task], {label: float(found[label].scores[:, task].mean()) for label in labels}) for task in chosen
    ]
    rows = Markup("").join(drawn)
    return Markup('<h4>{}</h4><div class="panels">{}</div>').format(cell.cell.name, rows)


def _kept(row: Row) -> dict[int, tuple[Floats, Floats, Floats]]:
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
    """Two lines of images, and what became of them."""
    support, query, taken = parts
    wrong = [f"{i + 1}→{int(to) + 1}" for i, to in enumerate(taken) if int(to) != i]
    said = ", ".join(f"{label} {100 * score:.0f} %" for label, score in scores.items())
    alt = f"A task of {len(support)} classes, one example and one query of each; wrong: {', '.join(wrong) or 'none'}."
    image = element(
        "img",
        src="data:image/png;base64," + _png(support, query, [int(to) != i for i, to in enumerate(taken)]),
        alt=alt,
        style="width:100%;max-width:320px;image-rendering:pixelated",
    )
    # An image element has no end tag in XML either: written so, the markup is both.
    closed = Markup(str(image).replace("></img>", " />"))
    caption = element("figcaption", f"{said}. Wrong: {', '.join(wrong) or 'none'}.")
    return element("figure", closed, caption)


def _png(support: Floats, query: Floats, wrong: Sequence[bool]) -> str:
    """Images side by side on white, support above queries, wrong ones in a frame; base64."""
    from PIL import Image

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
    picture = Image.fromarray(page).resize((page.shape[1] * _PIXELS, page.shape[0] * _PIXELS), Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.quantize(16 if channels == 1 else 256).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
