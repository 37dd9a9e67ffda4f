"""The page: everything above put into one template."""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import jinja2

from reweigh.bench.files import write_atomically
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Results
from reweigh.bench.report.by_setting import by_setting
from reweigh.bench.report.classes import classes
from reweigh.bench.report.curves import curves
from reweigh.bench.report.forest import forest
from reweigh.bench.report.last_epoch import last_epoch
from reweigh.bench.report.numbers import breakable, looks, shown, stand_ins, typeset
from reweigh.bench.report.opening import opening
from reweigh.bench.report.tabulate import grid, mean_text, title
from reweigh.bench.report.tuning import edges, tuning
from reweigh.bench.report.verdict import BASELINE_NAME, verdict
from reweigh.bench.report.weights import weights


def write(results: Sequence[Results], path: Path) -> Path:
    """Write the page of one or several experiments.

    Parameters
    ----------
    results
        The results to show.
    path
        The file to write; it is either whole or as it was before.

    Returns
    -------
    Path
        The same path.
    """
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"typeset": typeset, "breakable": breakable, "without_folders": _without_folders}
    script = (folder / "page.js").read_text()
    page = environment.get_template("page.html").render(
        experiments=[_experiment(one, f"e{i}") for i, one in enumerate(results)],
        style=(folder / "page.css").read_text(),
        script=script,
        policy=_policy(script),
        mean_text=mean_text,
        baseline=plan.BASELINE,
        baseline_name=BASELINE_NAME,
    )
    write_atomically(path, page)
    return path


def _policy(script: str) -> str:
    """What a browser lets the page do: nothing comes from elsewhere, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _without_folders(value: Any) -> Any:
    """A setting for readers elsewhere: a path names its file alone, since folders reveal who made the page."""
    if isinstance(value, str) and (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        return PureWindowsPath(value).name  # splits at slashes of both kinds
    return value


def _experiment(results: Results, key: str) -> dict[str, Any]:
    """All that the template shows of one experiment."""
    forests = forest(results)
    first = None if results.opening else opening(results)
    return {
        "first": first,
        "headline": results.headline or (verdict(results).headline if first is None else first.sentence),
        "key": key,
        "title": title(results),
        "results": results,
        "table": results.table,
        "looks": list(looks(results).values()),
        "verdict": verdict(results),
        "last_epoch": last_epoch(results),
        "grid": grid(results),
        "forests": forests,
        "forest_letters": max((f.letters for f in forests), default=0),
        "curves": curves(results),
        "weights": weights(results),
        "classes": classes(results),
        "tuning": tuning(results),
        "edges": edges(results),
        "tuning_seeds": len({o.run.spec.seed for column in results.columns for o in column.tuning}),
        "by_setting": by_setting(results),
        "has_paper": any(row.paper is not None for column in results.columns for row in column.rows.values()),
        "stand_ins": stand_ins(results),
        "missing": _missing(results),
        "provenance": _provenance(results),
    }


def _missing(results: Results) -> list[str]:
    """What the question asks for and these runs do not have."""
    finished = {column.name: column for column in results.columns}
    lines: list[str] = []
    for column in results.table.columns:
        if column.name not in finished:
            lines.append(f"{column.name}: no finished run.")
            continue
        rows = finished[column.name].rows
        wanted = list(results.table.methods_of(column))
        if results.table.controls_of(column) and {results.table.primary, plan.BASELINE} <= set(wanted):
            wanted += [plan.NORMALISED, plan.SCALED_BASELINE]
        absent = [shown(results.table, label) for label in wanted if label not in rows]
        if absent:
            lines.append(f"{column.name}: {', '.join(absent)}.")
        seeds = {shown(results.table, label): len(row.outcomes) for label, row in rows.items()}
        short = [f"{label} ({n})" for label, n in seeds.items() if n < max(seeds.values())]
        if short:
            lines.append(f"{column.name}: fewer than {max(seeds.values())} seeds for {', '.join(short)}.")
    return lines


def _provenance(results: Results) -> dict[str, Any]:
    known = results.provenance
    finished = known.get("finished")
    unfinished: dict[tuple[str, str, str], list[int]] = {}
    for run in results.unfinished:
        row = (run.spec.column, shown(results.table, run.spec.label), run.spec.stage)
        unfinished.setdefault(row, []).append(run.spec.seed)
    return {
        **known,
        "finished": None if finished is None else " to ".join(dict.fromkeys(map(_moment, finished))),
        "unfinished": [
            f"{column}: {label}, " + ("tuning" if stage == "tune" else f"seeds {', '.join(map(str, sorted(seeds)))}")
            for (column, label, stage), seeds in sorted(unfinished.items())
        ],
    }


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
