"""What finished runs say, as values: a pure function of what is on disk, and never of a training."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.environment import environment
from reweigh.bench.lab.runs import Record, Run, load_runs, unreadable
from reweigh.bench.lab.table import Column, Table


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One finished run: its number at the chosen epoch and at the last one, and all its records."""

    run: Run
    records: Sequence[Record]
    chosen: int
    value: float
    last: float

    @property
    def lr(self) -> float | None:
        """The learning rate of the run: what it recorded, where the recipe draws it, or else its setting."""
        return self.records[self.chosen].get("lr", self.run.spec.settings.get("lr"))


@dataclass(frozen=True, kw_only=True)
class RowResults:
    """One method in one column, over its seeds, all with the same tuned hyper-parameters."""

    label: str
    outcomes: Mapping[int, Outcome]
    paper: float | None = None

    @property
    def values(self) -> list[float]:
        """The reported number of each seed, in the order of seeds."""
        return [self.outcomes[seed].value for seed in sorted(self.outcomes)]

    @property
    def last_values(self) -> list[float]:
        """The same at the last epoch."""
        return [self.outcomes[seed].last for seed in sorted(self.outcomes)]

    @property
    def method(self) -> str:
        """The method's text as it was run."""
        return next(iter(self.outcomes.values())).run.spec.method

    @property
    def lr(self) -> float | None:
        """The learning rate it was run with."""
        return next(iter(self.outcomes.values())).lr


@dataclass(frozen=True, kw_only=True)
class ColumnResults:
    """One column: its rows, how each differs from the baseline, and the tuning trials behind them."""

    column: Column
    rows: Mapping[str, RowResults]
    differences: Mapping[str, stats.Difference]
    tuning: Sequence[Outcome] = ()

    @property
    def name(self) -> str:
        """The column's head."""
        return self.column.name


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure that a recipe adds to its report: a title, markup that is placed as it is, and what it shows."""

    title: str
    markup: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Results:
    """A whole experiment as far as it is finished.

    `variant` says which settings differ where one folder holds the recipe with several; `superseded` are finished runs
    that a later tuning has replaced; `damaged` names finished runs that are left out because their files were changed
    since, and says how; `extra` are the recipe's own figures.
    """

    recipe: str
    table: Table
    columns: Sequence[ColumnResults]
    unfinished: Sequence[Run]
    variant: str = ""
    superseded: Sequence[Run] = ()
    damaged: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra: Sequence[Figure] = ()
    #: What is said first, where the question has an answer of its own; the verdict's words otherwise.
    headline: str = ""
    details: Sequence[str] = ()


def collect(root: Path, *, preset: str = "cpu") -> list[Results]:
    """The results of every recipe that has runs under a folder.

    Parameters
    ----------
    root
        The folder of runs.
    preset
        Which of the recipe's tables gives order, names and the paper's figures.
    """
    by_recipe: dict[str, list[Run]] = collections.defaultdict(list)
    for run in load_runs(root):
        by_recipe[run.spec.recipe].append(run)
    found: list[Results] = []
    for name, runs in sorted(by_recipe.items()):
        if (own := recipes.self_reporting(name)) is not None:
            found.append(own.results_at(root, runs))
            continue
        recipe = recipes.load(name)
        table = recipe.table(preset)
        for variant, members in _variants(table, runs).items():
            results = _results(name, table, variant, members)
            lost = tuple(f"run {path.name}: its spec.json cannot be read." for path in unreadable(root, name))
            results = replace(results, damaged=(*results.damaged, *lost))
            headline, *details = recipe.answer(results) or ("",)
            found.append(
                replace(results, extra=tuple(recipe.figures(results)), headline=headline, details=tuple(details))
            )
    return found


def of_runs(recipe: str, table: Table, runs: Sequence[Run]) -> Results:
    """The results of exactly these runs, all of one variant."""
    return _results(recipe, table, "", runs)


def _variants(table: Table, runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that may stand in one table: those that agree in all settings that their columns leave open."""
    groups: dict[str, list[Run]] = collections.defaultdict(list)
    for run in runs:
        groups[json.dumps(_open_settings(table, run, _column_named(table, run.spec.column)), sort_keys=True)].append(
            run
        )
    variants: list[tuple[dict[str, Any], list[Run]]] = []
    # Cells that leave most open say most about which variant they are of: they come first, then the larger groups.
    for text, members in sorted(groups.items(), key=lambda item: (-len(json.loads(item[0])), -len(item[1]))):
        settings: dict[str, Any] = json.loads(text)
        fitting = [v for v in variants if all(v[0].get(name, value) == value for name, value in settings.items())]
        if fitting:
            largest = max(fitting, key=lambda variant: len(variant[1]))
            largest[0].update(settings)
            largest[1].extend(members)
        else:
            variants.append((settings, list(members)))
    names = sorted({name for settings, _ in variants for name in settings})
    differing = [name for name in names if len({json.dumps(settings.get(name)) for settings, _ in variants}) > 1]
    named = {", ".join(f"{n}={settings.get(n)}" for n in differing): members for settings, members in variants}
    return dict(sorted(named.items()))


def _column_named(table: Table, name: str) -> Column | None:
    """The column of this name, or the one whose name it goes on from with what `--set` changed."""
    found = [column for column in table.columns if f"{name}, ".startswith(f"{column.name}, ")]
    return max(found, key=lambda column: len(column.name), default=None)


def _open_settings(table: Table, run: Run, column: Column | None) -> dict[str, Any]:
    """A run's settings without what was tuned and without what its column or row sets, unless it was run otherwise."""
    copied = {plan.NORMALISED: table.primary, plan.SCALED_BASELINE: plan.BASELINE}
    row = table.row(copied.get(run.spec.label, run.spec.label))
    fixed = {name: json.dumps(v) for name, v in {**(column.settings if column else {}), **row.settings}.items()}
    settings = run.spec.settings.items()
    tuned = ("lr", table.draws)
    return {name: value for name, value in settings if name not in tuned and fixed.get(name) != json.dumps(value)}


def _results(recipe: str, table: Table, variant: str, runs: Sequence[Run]) -> Results:
    damaged = {run.directory: reason for run in runs if (reason := run.damage() or _unusable(table, run)) is not None}
    done = [run for run in runs if run.done and run.directory not in damaged and run.summary()["records"]]
    table = replace(table, primary=_primary(table, done))
    current = _current(done, table.draws)
    finished, used = ({run.directory for run in some} for some in (done, current))
    known = {column.name: column for column in table.columns}
    names = [name for name in known if any(run.spec.column == name for run in current)]
    names += sorted({run.spec.column for run in current} - set(known))
    return Results(
        recipe=recipe,
        table=table,
        variant=variant,
        columns=[
            _column(
                table, known.get(name) or Column(name=name, settings={}), [r for r in current if r.spec.column == name]
            )
            for name in names
        ],
        unfinished=[run for run in runs if run.directory not in finished | damaged.keys() and not run.pruned],
        damaged=[_left_out(run, damaged[run.directory]) for run in runs if run.directory in damaged],
        superseded=[run for run in done if run.directory not in used],
        provenance=_provenance(done),
    )


def _unusable(table: Table, run: Run) -> str | None:
    """What a finished run lacks for the table; a run of an earlier version has no hashes that would tell."""
    records = run.records() if run.done else []
    if not records:
        return None
    needed = (records[table.best(table.selecting(records))], records[-1])
    complete = all(isinstance(record.get(table.metric), (int, float)) for record in needed)
    return None if complete else f"its records have no {table.metric}"


def _left_out(run: Run, reason: str) -> str:
    spec = run.spec
    return f"run {spec.id} ({spec.column} · {spec.label} · seed {spec.seed}): {reason}."


def _primary(table: Table, runs: Sequence[Run]) -> str:
    """The row declared beforehand: the table's, or, where other methods were asked for, the one with controls."""
    labels = {run.spec.id: run.spec.label for run in runs if run.spec.stage == "final"}
    if table.primary in labels.values():
        return table.primary
    sources = [labels[run.spec.scale_from] for run in runs if run.spec.scale_from in labels]
    return sources[0] if sources else table.primary


def _current(runs: Sequence[Run], draws: str = "") -> list[Run]:
    """Without the runs of a row that were tuned otherwise: the tuning with most seeds stays, then the newest."""
    tunings: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        if run.spec.stage == "final" and run.spec.scale_from is None:
            tuning = f"{run.spec.method} {run.spec.settings.get('lr')} {run.spec.settings.get(draws)}"
            row = tunings.setdefault((run.spec.column, run.spec.label), {})
            row.setdefault(tuning, []).append(run)
    kept = {run.spec.id for row in tunings.values() for run in max(row.values(), key=_seeds_then_age)}
    return [run for run in runs if run.spec.stage == "tune" or run.spec.id in kept or run.spec.scale_from in kept]


def _seeds_then_age(runs: Sequence[Run]) -> tuple[int, float]:
    return len(runs), max(float(run.summary().get("finished", 0.0)) for run in runs)


def _column(table: Table, column: Column, runs: Sequence[Run]) -> ColumnResults:
    found: dict[str, dict[int, Outcome]] = {}
    tuning: list[Outcome] = []
    for run in runs:
        outcome = _outcome(table, run)
        if run.spec.stage == "tune":
            tuning.append(outcome)
        else:
            found.setdefault(run.spec.label, {})[run.spec.seed] = outcome
    order = row_order(table)
    labels = sorted(found, key=lambda label: (order.index(label) if label in order else len(order), label))
    rows = {label: RowResults(label=label, outcomes=found[label], paper=column.paper.get(label)) for label in labels}
    return ColumnResults(column=column, rows=rows, differences=_differences(table, rows), tuning=tuning)


def row_order(table: Table) -> list[str]:
    """All rows that some column may have, in the order of the table, controls last."""
    rows = (method for column in table.columns for method in table.methods_of(column))
    return list(dict.fromkeys((*table.methods, *rows, plan.NORMALISED, plan.SCALED_BASELINE)))


def _outcome(table: Table, run: Run) -> Outcome:
    records = run.records()
    chosen = table.best(table.selecting(records))
    return Outcome(
        run=run,
        records=records,
        chosen=chosen,
        value=float(records[chosen][table.metric]),
        last=float(records[-1][table.metric]),
    )


def _differences(table: Table, rows: Mapping[str, RowResults]) -> dict[str, stats.Difference]:
    """Every row against the baseline, on the seeds both have."""
    baseline = rows.get(plan.BASELINE)
    if baseline is None:
        return {}
    found: dict[str, stats.Difference] = {}
    for label, row in rows.items():
        seeds = sorted(set(row.outcomes) & set(baseline.outcomes))
        if label == plan.BASELINE or not seeds:
            continue
        ours = [row.outcomes[s].value for s in seeds]
        theirs = [baseline.outcomes[s].value for s in seeds]
        if all(math.isfinite(v) for v in ours + theirs):  # a diverged row is reported as such
            found[label] = difference(table, ours, theirs, primary=label == table.primary)
    # The scale controls are diagnostics of the primary row: nobody chooses them, so they cost no other row its p-value.
    family = stats.corrected({label: d for label, d in found.items() if label not in plan.CONTROLS})
    return {label: family.get(label, d) for label, d in found.items()}


def difference(
    table: Table, ours: Sequence[float], theirs: Sequence[float], *, primary: bool = False
) -> stats.Difference:
    """The difference of two rows by the table's own statistics: seeds may be independent, or splits that overlap."""
    if table.overlap:
        return stats.resampled(ours, theirs, test_over_train=table.overlap, primary=primary)
    return stats.paired(ours, theirs, primary=primary)


def _provenance(runs: Sequence[Run]) -> dict[str, Any]:
    """Where the numbers come from: the environments the runs recorded, their time, and their common settings."""
    summaries = [run.summary() for run in runs]
    recorded = {json.dumps(s["environment"], sort_keys=True) for s in summaries if "environment" in s}
    finished = [float(s["finished"]) for s in summaries if "finished" in s]
    settings = [dict(run.spec.settings) for run in runs]
    common = settings[0] if settings else {}
    return {
        "recorded": bool(recorded),
        "environments": [json.loads(text) for text in sorted(recorded)] or [environment()],
        "runs": len(runs),
        "tuning_runs": sum(run.spec.stage == "tune" for run in runs),
        "compute_hours": sum(float(s.get("seconds", 0.0)) for s in summaries) / 3600,
        "finished": (min(finished), max(finished)) if finished else None,
        "settings": {k: v for k, v in common.items() if all(k in other and other[k] == v for other in settings)},
    }
