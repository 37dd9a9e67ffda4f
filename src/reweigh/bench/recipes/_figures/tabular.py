"""What the page on tables shows besides the table itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Figure, Results
from reweigh.bench.recipes._figures.plain_rows import against_plain_rows
from reweigh.bench.report.markup import table

if TYPE_CHECKING:
    from reweigh.bench.recipes.tabular import PaperColumn

#: The paper's three rows of the plain MLP, in the order of `PaperColumn.mlp_accuracy`.
_MLP = ("MLP", "MLP, rgd", "MLP, revkl")


def figures(results: Results, datasets: Sequence[PaperColumn], plain_of: Mapping[str, str]) -> list[Figure]:
    """Those that the finished runs allow."""
    columns = {column.name: column for column in results.columns}
    known = [(dataset, columns[dataset.name]) for dataset in datasets if dataset.name in columns]
    drawn = (
        _figure(
            "Means over tables",
            ("", "accuracy, 4 tables", "paper", "AUROC, 4 tables", "paper"),
            _means(known, datasets),
            "Mean of the rows of the table above over the four tables of more than two classes, and over the four of "
            "two, in percent; in the paper's columns the means of its printed figures. Its tables are larger.",
        ),
        _figure(
            "Against its own plain row",
            ("", "plain row", *(dataset.name for dataset, _ in known)),
            against_plain_rows(results, [column for _, column in known], plain_of),
            "Points, with the 95 % interval of the differences paired by seed; not corrected for their number.",
        ),
        _figure(
            "Plain MLP on two classes: accuracy",
            ("", *(head for dataset, _ in known if dataset.mlp_accuracy for head in (dataset.name, "paper"))),
            _accuracies([(dataset, column) for dataset, column in known if dataset.mlp_accuracy]),
            "The same runs and epochs as above, by accuracy in percent: mean ± sample standard deviation.",
        ),
        _figure(
            "Pre-training",
            ("", *(dataset.name for dataset, _ in known)),
            _pretraining(known),
            "Plain reconstruction loss of a row in the first and in the last epoch, mean weight, and the share of rows "
            "at or above tau; means over seeds. Where all rows are above tau, re-weighting is a larger step only.",
        ),
    )
    return [figure for figure in drawn if figure is not None]


def _figure(title: str, heads: Sequence[str], lines: Iterator[Sequence[str]], caption: str) -> Figure | None:
    markup = table(heads, lines)
    return Figure(title=title, markup=markup, caption=caption) if markup else None


Known = Sequence[tuple[Any, ColumnResults]]


def _means(known: Known, datasets: Sequence[PaperColumn]) -> Iterator[Sequence[str]]:
    labels = dict.fromkeys(label for _, column in known for label in column.rows)
    for label in labels:
        line = [label]
        for binary in (False, True):
            wanted = [dataset.name for dataset in datasets if dataset.binary is binary]
            rows = [column.rows[label] for dataset, column in known if dataset.name in wanted and label in column.rows]
            papers = [row.paper for row in rows if row.paper is not None]
            whole = len(rows) == len(wanted) > 0
            line.append(f"{100 * np.mean([np.mean(row.values) for row in rows]):.2f}" if whole else "")
            line.append(f"{np.mean(papers):.2f}" if whole and len(papers) == len(wanted) else "")
        if any(line[1:]):
            yield line


def _accuracies(known: Known) -> Iterator[Sequence[str]]:
    for i, label in enumerate(_MLP):
        if not known or any(label not in column.rows for _, column in known):
            continue
        line = [label]
        for dataset, column in known:
            outcomes = column.rows[label].outcomes.values()
            values = [100 * float(o.records[o.chosen]["test/accuracy"]) for o in outcomes]
            line += [f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"]
            line += [f"{dataset.mlp_accuracy[i]:.2f}"]
        yield line


def _pretraining(known: Known) -> Iterator[Sequence[str]]:
    labels = dict.fromkeys(label for _, column in known for label in column.rows)
    for label in labels:
        line = [{plan.BASELINE: "mean (MET-S)"}.get(label, label)]
        for _, column in known:
            outcomes = column.rows[label].outcomes.values() if label in column.rows else ()
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
