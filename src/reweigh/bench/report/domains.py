"""Domains one by one: accuracy on each one left out, gaps to the training domains, confusions and pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from reweigh.bench import plan
from reweigh.bench.report.svg import element
from reweigh.bench.results import CellResults, Figure, Results, Row, difference

Floats = np.ndarray[Any, Any]
#: Height that pictures are shown with, and pictures of a domain.
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
        The paper's figures by cell.
    plain_of
        The plain row that each re-weighted one is to be compared with.
    attribution
        By cell, who is to be named beside its pictures.
    """
    cells = [cell for cell in results.cells if _names(cell)]
    drawn: list[Figure | None] = [_by_domain(cell, paper.get(cell.cell.name)) for cell in cells]
    drawn += [_against_own(results, cells, plain_of), _gaps(cells)]
    drawn += [_confusions(results, cell) for cell in cells]
    drawn += [_pictures(cell, (attribution or {}).get(cell.cell.name, ())) for cell in cells]
    return [figure for figure in drawn if figure is not None]


def _names(cell: CellResults) -> list[str]:
    """The domains that were left out, in order; none where runs did not say."""
    for row in cell.rows.values():
        for outcome in row.outcomes.values():
            return list(outcome.records[outcome.chosen].get("domain_names", ()))
    return []


def _recorded(row: Row, name: str) -> Floats:
    """What each seed recorded of each domain, `(seeds, domains)`."""
    return np.array([o.records[o.chosen][name] for _, o in sorted(row.outcomes.items())], float)


def _table(heads: Sequence[str], lines: Iterator[Sequence[str]]) -> str:
    body = [
        element("tr", element("th", first, scope="row"), *(element("td", text) for text in rest))
        for first, *rest in lines
    ]
    head = element("tr", *(element("th", words, scope="col") for words in heads))
    table = element("table", element("thead", head), element("tbody", *body))
    return str(Markup('<div class="scroll">{}</div>').format(table)) if body else ""


def _by_domain(cell: CellResults, paper: Printed | None) -> Figure:
    """Ours; and the paper's below, in a table of its own, since its domains may be others."""

    def lines() -> Iterator[Sequence[str]]:
        for label, row in cell.rows.items():
            found = 100 * _recorded(row, "domain_test")
            yield [label, *(_spread(values) for values in [*found.T, found.mean(1)])]

    def printed(rows: Mapping[str, Sequence[float]]) -> Iterator[Sequence[str]]:
        for label in cell.rows:
            if label in rows:
                yield [label, *(f"{value:.1f}" for value in rows[label]), f"{np.mean(rows[label]):.1f}"]

    markup = _table(["", *_names(cell), "mean"], lines())
    beside = ""
    if paper is not None:
        name = cell.cell.stand_in or cell.cell.name
        markup += _table([f"the paper, {name}", *paper.names, "mean"], printed(paper.rows))
        beside = f" Below, the paper's figures for {name}"
        beside += ": other data, another network and a longer training." if cell.cell.stand_in else "."
    return Figure(
        title=f"{cell.cell.name}: every domain left out",
        markup=markup,
        caption="Accuracy in percent on the domain that is left out, mean ± sample standard deviation over seeds, at "
        f"the checkpoint that held-out examples of the training domains choose.{beside}",
    )


def _spread(values: Floats) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if len(values) > 1 else f"{values.mean():.1f}"


def _against_own(results: Results, cells: Sequence[CellResults], plain_of: Mapping[str, str]) -> Figure | None:
    def lines() -> Iterator[Sequence[str]]:
        for label, plain in plain_of.items():
            texts = [_difference(results, cell, label, plain) for cell in cells]
            if any(texts):
                yield [label, plain, *texts]

    markup = _table(["", "plain row", *(cell.cell.name for cell in cells)], lines())
    if not markup:
        return None
    return Figure(
        title="Re-weighted rows against their own plain ones",
        markup=markup,
        caption="Points of accuracy, mean over domains left out, with the 95 % interval of the differences paired by "
        "seed; not corrected for their number.",
    )


def _difference(results: Results, cell: CellResults, label: str, plain: str) -> str:
    ours, theirs = cell.rows.get(label), cell.rows.get(plain)
    seeds = sorted(set(ours.outcomes) & set(theirs.outcomes)) if ours and theirs else []
    if ours is None or theirs is None or len(seeds) < 2:
        return ""
    pairs = [(ours.outcomes[s].value, theirs.outcomes[s].value) for s in seeds]
    found = difference(results.table, [a for a, _ in pairs], [b for _, b in pairs])
    return f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


def _gaps(cells: Sequence[CellResults]) -> Figure | None:
    labels = dict.fromkeys(label for cell in cells for label in cell.rows)

    def lines() -> Iterator[Sequence[str]]:
        for label in labels:
            texts: list[str] = []
            for cell in cells:
                row = cell.rows.get(label)
                if row is None:
                    texts.append("")
                    continue
                inside = 100 * _recorded(row, "domain_val").mean()
                outside = 100 * _recorded(row, "domain_test").mean()
                texts.append(f"{inside:.1f} → {outside:.1f} ({outside - inside:+.1f})")
            yield [label, *texts]

    markup = _table(["", *(cell.cell.name for cell in cells)], lines())
    if not markup:
        return None
    return Figure(
        title="In the training domains, and outside",
        markup=markup,
        caption="Accuracy in percent on held-out examples of the training domains → on the domain left out, and the "
        "gap between them; means over domains and seeds. Held-out examples chose the checkpoint.",
    )


def _confusions(results: Results, cell: CellResults) -> Figure | None:
    """Which class was taken for which, by the baseline and by the primary row, over all domains left out."""
    names = _class_names(cell)
    tables: list[str] = []
    for label in (plan.BASELINE, results.table.primary):
        row = cell.rows.get(label)
        if row is None or not names or not all(o.run.has_array("confusion") for o in row.outcomes.values()):
            return None
        counts = np.stack([o.run.array("confusion").sum(0) for o in row.outcomes.values()]).sum(0)
        shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        tables.append(_table([label, *names], _confusion_lines(names, shares)))
    return Figure(
        title=f"{cell.cell.name}: what is taken for what",
        markup="".join(tables),
        caption="Of the examples of each true class (rows), the percentage given each class (columns), over all "
        "domains left out and all seeds; empty below half a percent.",
    )


def _confusion_lines(names: Sequence[str], shares: Floats) -> Iterator[Sequence[str]]:
    for name, line in zip(names, shares, strict=True):
        yield [name, *(f"{share:.0f}" if share >= 0.5 else "" for share in line)]


def _class_names(cell: CellResults) -> list[str]:
    for row in cell.rows.values():
        for outcome in row.outcomes.values():
            return list(outcome.records[outcome.chosen].get("class_names", ()))
    return []


def _pictures(cell: CellResults, attribution: Sequence[str]) -> Figure | None:
    row = cell.rows.get(plan.BASELINE)
    runs = [o.run for o in row.outcomes.values() if o.run.has_array("samples")] if row else []
    if not runs:
        return None
    lines: list[Markup] = []
    for name, pictures in zip(_names(cell), runs[0].array("samples"), strict=True):
        image = element(
            "img",
            src="data:image/png;base64," + _png(pictures[:_MOST]),
            alt=f"{len(pictures[:_MOST])} examples of the domain {name}.",
            style=f"height:{_HEIGHT}px;max-width:100%",
        )
        # An image element has no end tag in XML either: written so, the markup is both.
        closed = Markup(str(image).replace("></img>", " />"))
        lines.append(element("tr", element("th", name, scope="row"), element("td", closed)))
    by = f" Pictures: {'; '.join(attribution)}." if attribution else ""
    return Figure(
        title=f"{cell.cell.name}: what the domains look like",
        markup=str(element("table", element("tbody", *lines))),
        caption=f"Some examples of each domain as they are, before the network scales their numbers.{by}",
    )


def _png(pictures: Floats) -> str:
    """Pictures side by side on white; base64."""
    from PIL import Image

    count, height, width, channels = pictures.shape
    page = np.full((height, count * (width + 2), 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        if channels == 1:  # ink dark on light
            picture = 255 - np.repeat(picture, 3, -1)
        elif channels == 2:  # two colours, as red and green
            picture = np.concatenate([picture, np.zeros_like(picture[..., :1])], -1)
        page[:, i * (width + 2) : i * (width + 2) + width] = picture
    file = io.BytesIO()
    Image.fromarray(page).quantize(64).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
