"""Domains one by one: accuracy on each one left out, gaps to the training domains, confusions and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reweigh.bench.lab import plan
from reweigh.bench.lab.results import ColumnResults, Figure, Results, RowResults
from reweigh.bench.recipes._figures.plain_rows import against_plain_rows
from reweigh.bench.report.markup import picture, table

Floats = np.ndarray[Any, Any]
#: Height of the pictures, and how many of a domain are shown.
_HEIGHT, _MOST = 40, 10


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The paper's figures for one data set: its domains, and the accuracy of each row on each, in percent."""

    names: Sequence[str]
    rows: Mapping[str, Sequence[float]]


def figures(
    results: Results,
    paper: Mapping[str, Printed],
    plain_of: Mapping[str, str],
    attribution: Mapping[str, Sequence[str]] | None = None,
) -> list[Figure]:
    """Those that the finished runs allow.

    Parameters
    ----------
    results
        Of a recipe whose last records name the domains left out and the accuracy on each.
    paper
        The paper's figures by column.
    plain_of
        The plain row that each re-weighted one is to be compared with.
    attribution
        By column, who is to be named beside its pictures.
    """
    columns = [column for column in results.columns if _names(column)]
    drawn: list[Figure | None] = [_by_domain(column, paper.get(column.name)) for column in columns]
    drawn += [_against_own(results, columns, plain_of), _gaps(columns)]
    drawn += [_confusions(results, column) for column in columns]
    drawn += [_pictures(column, (attribution or {}).get(column.name, ())) for column in columns]
    return [figure for figure in drawn if figure is not None]


def _names(column: ColumnResults) -> list[str]:
    """The domains that were left out, in order; none where runs did not record them."""
    for row in column.rows.values():
        for outcome in row.outcomes.values():
            return list(outcome.records[outcome.chosen].get("domain_names", ()))
    return []


def _recorded(row: RowResults, name: str) -> Floats:
    """What each seed recorded of each domain, `(seeds, domains)`."""
    return np.array([o.records[o.chosen][name] for _, o in sorted(row.outcomes.items())], float)


def _by_domain(column: ColumnResults, paper: Printed | None) -> Figure:
    """Ours; and the paper's below, in a table of its own, since its domains may be others."""

    def lines() -> Iterator[Sequence[str]]:
        for label, row in column.rows.items():
            accuracy = 100 * _recorded(row, "domain_test")
            yield [label, *(_spread(values) for values in [*accuracy.T, accuracy.mean(1)])]

    def printed(rows: Mapping[str, Sequence[float]]) -> Iterator[Sequence[str]]:
        for label in column.rows:
            if label in rows:
                yield [label, *(f"{value:.1f}" for value in rows[label]), f"{np.mean(rows[label]):.1f}"]

    markup = table(["", *_names(column), "mean"], lines())
    beside = ""
    if paper is not None:
        name = column.column.stand_in or column.name
        markup += table([f"the paper, {name}", *paper.names, "mean"], printed(paper.rows))
        beside = f" Below, the paper's figures for {name}"
        beside += ": other data, another network and a longer training." if column.column.stand_in else "."
    return Figure(
        title=f"{column.name}: every domain left out",
        markup=markup,
        caption="Accuracy in percent on the domain that is left out, mean ± sample standard deviation over seeds, at "
        f"the checkpoint that held-out examples of the training domains choose.{beside}",
    )


def _spread(values: Floats) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if len(values) > 1 else f"{values.mean():.1f}"


def _against_own(results: Results, columns: Sequence[ColumnResults], plain_of: Mapping[str, str]) -> Figure | None:
    heads = ["", "plain row", *(column.name for column in columns)]
    markup = table(heads, against_plain_rows(results, columns, plain_of))
    if not markup:
        return None
    return Figure(
        title="Re-weighted rows against their own plain ones",
        markup=markup,
        caption="Points of accuracy, mean over domains left out, with the 95 % interval of the differences paired by "
        "seed; not corrected for their number.",
    )


def _gaps(columns: Sequence[ColumnResults]) -> Figure | None:
    labels = dict.fromkeys(label for column in columns for label in column.rows)

    def lines() -> Iterator[Sequence[str]]:
        for label in labels:
            texts: list[str] = []
            for column in columns:
                row = column.rows.get(label)
                if row is None:
                    texts.append("")
                    continue
                inside = 100 * _recorded(row, "domain_val").mean()
                outside = 100 * _recorded(row, "domain_test").mean()
                texts.append(f"{inside:.1f} → {outside:.1f} ({outside - inside:+.1f})")
            yield [label, *texts]

    markup = table(["", *(column.name for column in columns)], lines())
    if not markup:
        return None
    return Figure(
        title="In the training domains, and outside",
        markup=markup,
        caption="Accuracy in percent on held-out examples of the training domains → on the domain left out, and the "
        "gap between them; means over domains and seeds. Held-out examples chose the checkpoint.",
    )


def _confusions(results: Results, column: ColumnResults) -> Figure | None:
    """Which class was taken for which, by the baseline and by the primary row, over all domains left out."""
    names = _class_names(column)
    markup = ""
    for label in (plan.BASELINE, results.table.primary):
        row = column.rows.get(label)
        if row is None or not names or not all(o.run.has_array("confusion") for o in row.outcomes.values()):
            return None
        counts = np.stack([o.run.array("confusion").sum(0) for o in row.outcomes.values()]).sum(0)
        with np.errstate(invalid="ignore"):  # a class without examples has no share
            shares = 100 * counts / counts.sum(1, keepdims=True)
        markup += table([label, *names], _confusion_lines(names, shares))
    return Figure(
        title=f"{column.name}: what is taken for what",
        markup=markup,
        caption="Of the examples of each true class (rows), the percentage given each class (columns), over all "
        "domains left out and all seeds; empty below half a percent.",
    )


def _confusion_lines(names: Sequence[str], shares: Floats) -> Iterator[Sequence[str]]:
    for name, line in zip(names, shares, strict=True):
        yield [name, *(f"{share:.0f}" if share >= 0.5 else "" for share in line)]


def _class_names(column: ColumnResults) -> list[str]:
    for row in column.rows.values():
        for outcome in row.outcomes.values():
            return list(outcome.records[outcome.chosen].get("class_names", ()))
    return []


def _pictures(column: ColumnResults, attribution: Sequence[str]) -> Figure | None:
    row = column.rows.get(plan.BASELINE)
    runs = [o.run for o in row.outcomes.values() if o.run.has_array("samples")] if row else []
    if not runs:
        return None
    lines = [
        [
            name,
            picture(
                _side_by_side(pictures[:_MOST]),
                colours=64,
                alt=f"{len(pictures[:_MOST])} examples of the domain {name}.",
                style=f"height:{_HEIGHT}px;max-width:100%",
            ),
        ]
        for name, pictures in zip(_names(column), runs[0].array("samples"), strict=True)
    ]
    by = f" Pictures: {'; '.join(attribution)}." if attribution else ""
    return Figure(
        title=f"{column.name}: what the domains look like",
        markup=table(["domain", "examples"], lines),
        caption=f"Some examples of each domain as they are, before the network scales their numbers.{by}",
    )


def _side_by_side(pictures: Floats) -> Floats:
    """Pictures in a row on white."""
    count, height, width, channels = pictures.shape
    page = np.full((height, count * (width + 2), 3), 255, np.uint8)
    for i, image in enumerate(pictures):
        if channels == 1:  # ink dark on light
            image = 255 - np.repeat(image, 3, -1)
        elif channels == 2:  # two colours, as red and green
            image = np.concatenate([image, np.zeros_like(image[..., :1])], -1)
        page[:, i * (width + 2) : i * (width + 2) + width] = image
    return page
