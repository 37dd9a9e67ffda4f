"""What finished runs say, as values: a pure function of what is on disk, and never of a training."""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from reweigh.bench.lab import plan, questions, stats
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.environment import environment
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.questions import StoredQuestion
from reweigh.bench.lab.runs import Record, Run, read_run
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

    def score(self, key: str, index: int | None = None) -> float:
        """A recorded number such as `test/accuracy` at the chosen epoch, or an entry of a recorded list.

        NaN where there is none.
        """
        recorded = self.records[self.chosen].get(key, math.nan)
        if index is not None:
            recorded = recorded[index] if isinstance(recorded, list) and index < len(recorded) else math.nan
        return float(recorded)


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


class DifferenceRule(Protocol):
    """Makes the difference of two rows from more than their numbers by seed."""

    def __call__(
        self,
        key: str,
        ours: Mapping[int, Outcome],
        theirs: Mapping[int, Outcome],
        values: Mapping[int, tuple[float, float]],
        *,
        index: int | None,
        primary: bool,
    ) -> stats.Difference:
        """The difference in a recorded number, or in an entry of a recorded list; `values` are both rows' by seed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Results:
    """A whole experiment as far as it is finished.

    `variant` names what differs where one folder answers several questions of a recipe; `superseded` are finished runs
    that a later tuning has replaced; `damaged` names runs that are left out because their files were changed since they
    finished, and says how; `extra` are the recipe's own figures. `compare` makes every difference of two rows, where
    there is more to it than numbers by seed.
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
    #: The first sentence of the report, where the question has an answer of its own; the verdict's words otherwise.
    headline: str = ""
    details: Sequence[str] = ()
    #: Markup of the first screen below the headline, where a page leads with its answer; scale controls then come last.
    opening: str = ""
    compare: DifferenceRule | None = None

    def apart(
        self,
        key: str,
        ours: Mapping[int, Outcome],
        theirs: Mapping[int, Outcome],
        *,
        index: int | None = None,
        primary: bool = False,
    ) -> stats.Difference | None:
        """The difference of two rows in a recorded number, on the seeds where both have it; None without one."""
        return _apart(self.table, self.compare, key, ours, theirs, index=index, primary=primary)

    @property
    def declared(self) -> int:
        """The number of declared comparisons, which are corrected for it."""
        own = (column.differences.get(self.table.primary) for column in self.columns)
        return sum(apart is not None and apart.primary for apart in own)


def collect(root: Path, *, recipe: str | None = None, preset: str | None = None) -> list[Results]:
    """The results of every question that a folder of runs stores.

    Questions of one recipe that differ only in which columns, rows, seeds or trials they asked for share a table.

    Parameters
    ----------
    root
        The folder of runs.
    recipe, preset
        Leave out the questions of other recipes or presets, and do not look at their runs.
    """
    collected = [
        own.results_at(root)
        for name, own in recipes.self_reporting_at(root).items()
        if recipe in (None, name) and preset is None
    ]
    by_recipe: dict[str, list[StoredQuestion]] = collections.defaultdict(list)
    for one in questions.stored(root, recipe=recipe):
        if preset in (None, one.question.preset):
            by_recipe[one.question.recipe].append(one)
    for name in sorted(by_recipe):
        collected += sorted(_of_recipe(root, name, by_recipe[name]), key=lambda results: results.variant)
    return collected


def of_runs(recipe: str, table: Table, runs: Sequence[Run], compare: DifferenceRule | None = None) -> Results:
    """The results of exactly these runs; `compare` makes their differences, if given."""
    return _results(recipe, table, runs, compare)


def _of_recipe(root: Path, name: str, stored: Sequence[StoredQuestion]) -> Iterator[Results]:
    """The results of all questions of a recipe, one for each set that shares a table."""
    recipe = recipes.load(name)
    tables: dict[str, list[StoredQuestion]] = collections.defaultdict(list)
    for one in stored:
        tables[json.dumps(_identity(one.question), sort_keys=True)].append(one)
    facts = [_identity(group[0].question) for group in tables.values()]
    for group, own in zip(tables.values(), facts, strict=True):
        runs, lost = _read_runs(root, name, dict.fromkeys(run for one in group for run in one.runs))
        results = _results(name, _joined([one.question.table for one in group]), runs)
        results = replace(results, variant=_variant(own, facts), damaged=(*results.damaged, *lost))
        headline, *details = recipe.answer(results) or ("",)
        yield replace(results, extra=tuple(recipe.figures(results)), headline=headline, details=tuple(details))


def _identity(question: Question) -> dict[str, Any]:
    """What questions must agree in to share a table."""
    table = question.table
    same = ("metric", "select", "primary", "smallest", "as_written", "overlap", "draws")
    return {"preset": question.preset, **question.settings, **{name: getattr(table, name) for name in same}}


def _variant(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """What tells a question from the others of its recipe, in words: its preset first, then what else differs."""
    named = [f"preset {own['preset']}"] if any(other["preset"] != own["preset"] for other in others) else []
    rivals = [other for other in others if other["preset"] == own["preset"]]
    names = [name for name in own if any(other.get(name) != own[name] for other in rivals)]
    return ", ".join(named + [f"{name}={own[name]}" for name in names])


def _joined(tables: Sequence[Table]) -> Table:
    """One table with the columns and rows of several; what they have in common is as in the first."""
    first, *others = tables
    if not others:
        return first
    columns: dict[str, Column] = {}
    for table in tables:
        for column in table.columns:
            own = replace(
                column,
                methods=table.methods_of(column),
                seeds=table.seeds_of(column),
                trials=table.trials_of(column),
                controls=table.controls_of(column),
            )
            known = columns.setdefault(column.name, own)
            methods = tuple(dict.fromkeys((*(known.methods or ()), *(own.methods or ()))))
            columns[column.name] = replace(known, methods=methods, paper={**own.paper, **known.paper})
    return replace(
        first,
        columns=tuple(columns.values()),
        methods=tuple(dict.fromkeys(label for table in tables for label in table.methods)),
        rows={label: row for table in reversed(tables) for label, row in table.rows.items()},
    )


def _read_runs(root: Path, recipe: str, identities: Iterable[str]) -> tuple[list[Run], list[str]]:
    """The runs that have begun, and a line about each whose `spec.json` is not what it was."""
    folders = {identity: root / recipe / identity for identity in sorted(identities)}
    begun = [one for one, folder in folders.items() if any((folder / name).exists() for name in ("spec.json", "done"))]
    runs = {identity: read_run(root, recipe, identity) for identity in begun}
    lost = [f"run {identity}: its spec.json cannot be read." for identity, run in runs.items() if run is None]
    return [run for run in runs.values() if run is not None], lost


def _results(recipe: str, table: Table, runs: Sequence[Run], compare: DifferenceRule | None = None) -> Results:
    damaged = {run.spec.id: reason for run in runs if (reason := run.damage() or _unusable(table, run)) is not None}
    done = [run for run in runs if run.done and run.spec.id not in damaged and run.summary()["records"]]
    current = _current(done, table.draws)
    finished, used = ({run.spec.id for run in some} for some in (done, current))
    known = {column.name: column for column in table.columns}
    names = [name for name in known if any(run.spec.column == name for run in current)]
    names += sorted({run.spec.column for run in current} - set(known))
    return Results(
        recipe=recipe,
        table=table,
        columns=_corrected(
            table,
            [
                _column(
                    table,
                    known.get(name) or Column(name=name, settings={}),
                    [r for r in current if r.spec.column == name],
                    compare,
                )
                for name in names
            ],
        ),
        unfinished=[run for run in runs if run.spec.id not in finished | damaged.keys() and not run.pruned],
        damaged=[_left_out(run, damaged[run.spec.id]) for run in runs if run.spec.id in damaged],
        superseded=[run for run in done if run.spec.id not in used],
        provenance=_provenance(done),
        compare=compare,
    )


def _unusable(table: Table, run: Run) -> str | None:
    """What a finished run lacks for the table; a run of an earlier version has no hashes that would tell."""
    records = run.records() if run.done else []
    if not records:
        return None
    needed = (records[table.chosen(records)], records[-1])
    complete = all(isinstance(record.get(table.metric), (int, float)) for record in needed)
    return None if complete else f"its records have no {table.metric}"


def _left_out(run: Run, reason: str) -> str:
    spec = run.spec
    return f"run {spec.id} ({spec.column} · {spec.label} · seed {spec.seed}): {reason}."


def _current(runs: Sequence[Run], draws: str = "") -> list[Run]:
    """Without the runs of a row that were tuned otherwise: the tuning with most seeds stays, then the newest."""
    tunings: dict[tuple[str, str], dict[tuple[Any, ...], list[Run]]] = {}
    for run in runs:
        if run.spec.stage == "final" and run.spec.scale_from is None:
            tuning = (run.spec.method, run.spec.settings.get("lr"), run.spec.settings.get(draws))
            row = tunings.setdefault((run.spec.column, run.spec.label), {})
            row.setdefault(tuning, []).append(run)
    kept = {run.spec.id for row in tunings.values() for run in max(row.values(), key=_seeds_then_age)}
    return [run for run in runs if run.spec.stage == "tune" or run.spec.id in kept or run.spec.scale_from in kept]


def _seeds_then_age(runs: Sequence[Run]) -> tuple[int, float]:
    return len(runs), max(float(run.summary().get("finished", 0.0)) for run in runs)


def _column(table: Table, column: Column, runs: Sequence[Run], compare: DifferenceRule | None) -> ColumnResults:
    by_label: dict[str, dict[int, Outcome]] = {}
    tuning: list[Outcome] = []
    for run in runs:
        outcome = _outcome(table, run)
        if run.spec.stage == "tune":
            tuning.append(outcome)
        else:
            by_label.setdefault(run.spec.label, {})[run.spec.seed] = outcome
    order = row_order(table)
    labels = sorted(by_label, key=lambda label: (order.index(label) if label in order else len(order), label))
    rows = {label: RowResults(label=label, outcomes=by_label[label], paper=column.paper.get(label)) for label in labels}
    primary, baseline = rows.get(table.primary), rows.get(plan.BASELINE)
    shows_it = tuning and plan.NORMALISED in rows and not table.overlap and not table.draws
    if shows_it and primary and baseline and primary.lr == baseline.lr:
        # Tuned to plain training's rate, the row is its own control at that rate.
        rows[plan.AT_PLAIN_RATE] = replace(primary, label=plan.AT_PLAIN_RATE, paper=None)
    return ColumnResults(column=column, rows=rows, differences=_differences(table, rows, compare), tuning=tuning)


def row_order(table: Table) -> list[str]:
    """All rows that some column may have, in the order of the table, controls last."""
    rows = (method for column in table.columns for method in table.methods_of(column))
    return list(dict.fromkeys((*table.methods, *rows, *plan.CONTROLS)))


def _outcome(table: Table, run: Run) -> Outcome:
    records = run.records()
    chosen = table.chosen(records)
    return Outcome(
        run=run,
        records=records,
        chosen=chosen,
        value=float(records[chosen][table.metric]),
        last=float(records[-1][table.metric]),
    )


def _differences(
    table: Table, rows: Mapping[str, RowResults], compare: DifferenceRule | None
) -> dict[str, stats.Difference]:
    """Every row against the baseline, on the seeds both have."""
    baseline = rows.get(plan.BASELINE)
    if baseline is None:
        return {}
    differences: dict[str, stats.Difference] = {}
    for label, row in rows.items():
        seeds = sorted(set(row.outcomes) & set(baseline.outcomes))
        if label == plan.BASELINE or not seeds:
            continue
        if not all(math.isfinite(o.outcomes[s].value) for o in (row, baseline) for s in seeds):
            continue  # a diverged row is reported as such
        apart = _apart(table, compare, table.metric, row.outcomes, baseline.outcomes, primary=label == table.primary)
        if apart is not None:
            differences[label] = apart
    return differences


def _apart(
    table: Table,
    compare: DifferenceRule | None,
    key: str,
    ours: Mapping[int, Outcome],
    theirs: Mapping[int, Outcome],
    *,
    index: int | None = None,
    primary: bool = False,
) -> stats.Difference | None:
    pairs = {s: (ours[s].score(key, index), theirs[s].score(key, index)) for s in sorted(set(ours) & set(theirs))}
    values = {seed: pair for seed, pair in pairs.items() if math.isfinite(sum(pair))}
    if not values:
        return None
    if compare is not None:
        return compare(key, ours, theirs, values, index=index, primary=primary)
    first, second = ([pair[k] for pair in values.values()] for k in (0, 1))
    overlap = table.overlap_of(next(iter(ours.values())).run.spec.column)
    return difference(first, second, overlap, primary=primary)


def _corrected(table: Table, columns: Sequence[ColumnResults]) -> list[ColumnResults]:
    """The columns with p-values corrected over the whole report: the declared comparisons, and all other rows."""
    everything = {(column.name, label): d for column in columns for label, d in column.differences.items()}
    declared = {key: d for key, d in everything.items() if key[1] == table.primary}
    # The scale controls are diagnostics of the primary row: nobody chooses them, so they cost no other row its p-value.
    others = {key: d for key, d in everything.items() if key not in declared and key[1] not in plan.CONTROLS}
    adjusted = {**everything, **stats.holm(others), **(stats.holm(declared) if len(declared) > 1 else {})}
    return [
        replace(column, differences={label: adjusted[column.name, label] for label in column.differences})
        for column in columns
    ]


def difference(
    ours: Sequence[float], theirs: Sequence[float], overlap: float = 0.0, *, primary: bool = False
) -> stats.Difference:
    """The difference of two rows: seeds may be independent, or splits that overlap."""
    if overlap:
        return stats.resampled(ours, theirs, test_over_train=overlap, primary=primary)
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
