"""What the page on tables shows besides the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from reweigh.bench import plan
from reweigh.bench.report.svg import element
from reweigh.bench.results import CellResults, Figure, Results, difference

if TYPE_CHECKING:
    from reweigh.bench.recipes.tabular import DataSet

#: The paper's three rows of the plain MLP, in the order of `DataSet.mlp_accuracy`.
_MLP = ("MLP", "MLP, rgd", "MLP, revkl")


def figures(results: Results, columns: Sequence[DataSet], plain_of: Mapping[str, str]) -> list[Figure]:
    """Those that the finished runs allow."""
    cells = {cell.cell.name: cell for cell in results.cells}
    known = [(column, cells[column.name]) for column in columns if column.name in cells]
    drawn = (
        _figure(
            "Means over tables",
            ("", "accuracy, 4 tables", "paper", "AUROC, 4 tables", "paper"),
            _means(results, known, columns),
            "Mean of the rows of the table above over the four tables of more than two classes, and over the four of "
            "two, in percent; in the paper's columns the means of its printed figures. Its tables are larger.",
        ),
        _figure(
            "Against its own plain row",
            ("", "plain row", *(column.name for column, _ in known)),
            _against_own(results, known, plain_of),
            "Points, with the 95 % interval of the differences paired by seed; not corrected for their number.",
        ),
        _figure(
            "Plain MLP on two classes: accuracy",
            ("", *(head for column, _ in known if column.mlp_accuracy for head in (column.name, "paper"))),
            _accuracies([(column, cell) for column, cell in known if column.mlp_accuracy]),
            "The same runs and epochs as above, by accuracy in percent: mean ± sample standard deviation.",
        ),
        _figure(
            "Pre-training",
            ("", *(column.name for column, _ in known)),
            _pretraining(known),
            "Plain reconstruction loss of a row in the first and in the last epoch, mean weight, and the share of rows "
            "at or above tau; means over seeds. Where all rows are above tau, re-weighting is a larger step only.",
        ),
    )
    return [figure for figure in drawn if figure is not None]


def _figure(title: str, heads: Sequence[str], lines: Iterator[Sequence[str]], caption: str) -> Figure | None:
    body = [element("tr", element("th", first, scope="row"), *(element("td", text) for text in rest))
            for first, *rest in lines]  # fmt: skip
    if not body:
        return None
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    table = element("table", element("thead", head), element("tbody", *body))
    return Figure(title=title, markup=str(Markup('<div class="scroll">{}</div>').format(table)), caption=caption)


Known = Sequence[tuple[Any, CellResults]]


def _means(results: Results, known: Known, columns: Sequence[DataSet]) -> Iterator[Sequence[str]]:
    labels = dict.fromkeys(label for _, cell in known for label in cell.rows)
    for label in labels:
        line = [label]
        for binary in (False, True):
            wanted = [column.name for column in columns if column.binary is binary]
            rows = [cell.rows[label] for column, cell in known if column.name in wanted and label in cell.rows]
            papers = [row.paper for row in rows if row.paper is not None]
            whole = len(rows) == len(wanted) > 0
            line.append(f"{100 * np.mean([np.mean(row.values) for row in rows]):.2f}" if whole else "")
            line.append(f"{np.mean(papers):.2f}" if whole and len(papers) == len(wanted) else "")
        if any(line[1:]):
            yield line


def _against_own(results: Results, known: Known, plain_of: Mapping[str, str]) -> Iterator[Sequence[str]]:
    for label, plain in plain_of.items():
        texts: list[str] = []
        for _, cell in known:
            ours, theirs = cell.rows.get(label), cell.rows.get(plain)
            seeds = sorted(set(ours.outcomes) & set(theirs.outcomes)) if ours and theirs else []
            if ours is None or theirs is None or len(seeds) < 2:
                texts.append("")
                continue
            pairs = [(ours.outcomes[s].value, theirs.outcomes[s].value) for s in seeds]
            found = difference(results.table, [a for a, _ in pairs], [b for _, b in pairs])
            texts.append(f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]")
        if any(texts):
            yield [label, plain, *texts]


def _accuracies(known: Known) -> Iterator[Sequence[str]]:
    for i, label in enumerate(_MLP):
        if not known or any(label not in cell.rows for _, cell in known):
            continue
        line = [label]
        for column, cell in known:
            outcomes = cell.rows[label].outcomes.values()
            values = [100 * float(o.records[o.chosen]["test/accuracy"]) for o in outcomes]
            line += [f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"]
            line += [f"{column.mlp_accuracy[i]:.2f}"]
        yield line


def _pretraining(known: Known) -> Iterator[Sequence[str]]:
    labels = dict.fromkeys(label for _, cell in known for label in cell.rows)
    for label in labels:
        line = [{plan.BASELINE: "mean (MET-S)"}.get(label, label)]
        for _, cell in known:
            outcomes = cell.rows[label].outcomes.values() if label in cell.rows else ()
            firsts = [outcome.records[0] for outcome in outcomes]
            if not firsts or any("pretrain/loss" not in record for record in firsts):
                line.append("")
                continue
            loss, last, weight, clipped = (
                float(np.mean([record[f"pretrain/{name}"] for record in firsts]))
                for name in ("first_loss", "loss", "mean_weight", "clip_share")
            )
            line.append(f"{loss:.3f} → {last:.3f}; weight {weight:.2f}, {clipped:.0%}")
        if any(line[1:]):
            yield line
