"""A page in numbers, for programs: what the overview of all pages, and its tests, are made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reweigh.bench.files import write_atomically
from reweigh.bench.lab.conclusions import Conclusion, conclusions
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.report.numbers import shown, unit_of
from reweigh.bench.report.opening import opening
from reweigh.bench.report.verdict import verdict
from reweigh.method import method

#: Raised by one whenever a reader would have to know that something changed.
FORMAT = 1


def write_summary(results: Sequence[Results], path: Path) -> Path:
    """Write the experiments of a page as JSON; the file is either whole or as it was before."""
    values = {"format": FORMAT, "experiments": [summary(one) for one in results]}
    write_atomically(path, json.dumps(_finite(values), indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return path


def read_summary(path: Path) -> list[dict[str, Any]]:
    """The experiments of a page, as `write_summary` wrote them."""
    values = json.loads(path.read_text())
    if values.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {values.get('format')!r}, not {FORMAT}. Make it again with `reweigh report`."
        )
    return values["experiments"]


def summary(results: Results) -> dict[str, Any]:
    """One experiment: its endpoint and conclusions, and every row of every setting."""
    table, unit = results.table, unit_of(results)
    first = opening(results)
    return {
        "recipe": results.recipe,
        "variant": results.variant,
        "title": table.title,
        "question": table.question,
        "metric": table.metric_name,
        "smallest": table.smallest,
        "unit": {"scale": unit.scale, "digits": unit.digits, "points": unit.points},
        "primary": table.primary,
        "endpoint": None if table.endpoint is None else asdict(table.endpoint),
        "headline": results.headline or (verdict(results).headline if first is None else first.sentence),
        "conclusions": [_conclusion(one) for one in conclusions(results)],
        "settings": [_setting(results, column) for column in results.columns],
        "finished": results.provenance.get("finished"),
        "unfinished": len(results.unfinished),
    }


def _conclusion(one: Conclusion) -> dict[str, Any]:
    return {
        "setting": one.setting,
        "word": one.word,
        "gain": one.gain,
        "needed": one.needed,
        "stand_in": one.stand_in,
        **_difference(one.difference),
    }


def _setting(results: Results, column: ColumnResults) -> dict[str, Any]:
    return {
        "name": column.name,
        "trouble": column.column.trouble,
        "model": column.column.model,
        "stand_in": column.column.stand_in,
        "rows": {
            label: {
                "name": shown(results.table, label),
                "n": len(row.values),
                "mean": sum(row.values) / len(row.values),
                "paper": row.paper,
                "knows_more": knows_more(results.table, label),
                "difference": _difference(d) if (d := column.differences.get(label)) is not None else None,
            }
            for label, row in column.rows.items()
        },
    }


def knows_more(table: Table, label: str) -> bool:
    """Whether a row sees what the others do not, group labels or clean data: it is then a bound and not a rival."""
    if table.select_of(label) != table.select:
        return True
    try:
        own = method(table.row(label).method)
    except ValueError:  # a control, which is named for what it explains
        return False
    return "meta_loader" in getattr(own.step, "needs", ())


def _difference(d: Difference) -> dict[str, Any]:
    return {"n": d.n, "mean": d.mean, "low": d.low, "high": d.high, "p": d.p, "p_holm": d.p_holm}


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not math.isfinite(value) else value
