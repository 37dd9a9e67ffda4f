"""From a question to a list of runs: tuning first, then the paired comparison, then its scale controls.

Every method is tuned over the same learning rates, crossed with the values of its own hyper-parameters, on seeds that
the comparison does not use; the best mean over these seeds on validation data is chosen. Controls run beside
re-weighting: plain training whose loss is multiplied, step by step, by the mean weight that re-weighting recorded;
re-weighting with weights normalised to mean one, at plain training's learning rate; and re-weighting as it is at that
rate. They ask whether a gain is more than a larger step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reweigh.bench.errors import UserError
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column, Table
from reweigh.method import Method, method

BASELINE = "mean"
SCALED_BASELINE = "mean × mean weight of rgd"
NORMALISED = "rgd, mean weight one"
AT_PLAIN_RATE = "rgd, plain training's rate"
#: Rows that explain a gain: nobody would train with them for their own sake.
CONTROLS = (NORMALISED, SCALED_BASELINE, AT_PLAIN_RATE)
#: Seeds of the comparison count from zero; tuning uses some far from them.
TUNING_SEED = 10_000
#: The paper's multipliers of the baseline's learning rate. The first is the baseline's own, and any number of them from
#: three on has smaller and larger ones.
RATE_MULTIPLIERS = (1.0, 1.5, 0.5, 1.25, 0.75)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A recipe with its settings resolved: everything a plan needs to know.

    `preset` is the preset that the settings came from; empty where the recipe has none.
    """

    recipe: str
    table: Table
    settings: Mapping[str, Any]
    preset: str = ""

    def column_settings(self, column: Column) -> dict[str, Any]:
        """The settings of one column."""
        return {**self.settings, **column.settings}

    def row_settings(self, column: Column, label: str) -> dict[str, Any]:
        """The settings of one row of a column."""
        return {**self.column_settings(column), **self.table.row(label).settings}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate of a method's tuning."""

    method: str
    lr: float
    #: Number of the random draw, where the recipe draws its hyper-parameters itself.
    draw: int = 0

    def settings(self, table: Table) -> dict[str, Any]:
        """What the trial changes of a row's settings."""
        return {"lr": self.lr, **({table.draws: self.draw} if table.draws else {})}


def draws(text: str, lr: float, count: int, *, as_written: bool = False) -> list[Trial]:
    """`count` candidates whose settings the recipe draws; here only the method's own search space is gone through."""
    base = method(text)
    axes = {} if as_written else search_axes(base)
    return [
        Trial(
            method=str(with_values(base, {name: values[i % len(values)] for name, values in axes.items()})),
            lr=lr,
            draw=i,
        )
        for i in range(count)
    ]


def trials(text: str, lr: float, count: int, *, as_written: bool = False) -> list[Trial]:
    """The candidates of a method: `count` learning rates, each with up to `count` settings of its hyper-parameters.

    The rates are the same for every method. The first candidate is the method as written at the baseline's rate, and
    without hyper-parameters to search, or with `as_written`, the rates are all there is to try.
    """
    base = method(text)
    settings = _settings({} if as_written else search_axes(base), count)
    return [Trial(method=str(with_values(base, values)), lr=lr * rate) for values in settings for rate in _rates(count)]


def _settings(axes: Mapping[str, tuple[Any, ...]], count: int) -> list[dict[str, Any]]:
    """At most `count` settings of some hyper-parameters, those as written first.

    Each further one moves all of them at once, so that few settings still see many values of each.
    """
    spread = {name: _spread(values) for name, values in axes.items()}
    longest = max((len(values) for values in spread.values()), default=1)
    distinct: dict[tuple[Any, ...], dict[str, Any]] = {}
    for i in range(longest * longest):
        # One axis more is shifted by one more for each full turn, so that combinations repeat late.
        turn = i // longest
        chosen = {name: values[(i + k * turn) % len(values)] for k, (name, values) in enumerate(spread.items())}
        distinct.setdefault(tuple(map(repr, chosen.values())), chosen)
        if len(distinct) == count:
            break
    return list(distinct.values())


def _spread(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same values, the first one first, and then always the one farthest from those before it."""
    if not all(isinstance(value, (int, float)) for value in values):
        return values
    place = {value: i for i, value in enumerate(sorted(values))}
    ordered, left = [values[0]], list(values[1:])
    while left:
        farthest = max(left, key=lambda value: min(abs(place[value] - place[other]) for other in ordered))
        ordered.append(farthest)
        left.remove(farthest)
    return tuple(ordered)


def tuning(question: Question) -> list[Spec]:
    """The tuning runs of every method in every column that tunes."""
    table = question.table
    specs: list[Spec] = []
    for column in table.columns:
        if table.trials_of(column) < 2:
            continue
        for text in table.methods_of(column):
            settings = question.row_settings(column, text)
            written = table.row(text).method
            propose = draws if table.draws else trials
            candidates = propose(written, settings["lr"], table.trials_of(column), as_written=table.as_written)
            specs += [
                Spec(
                    recipe=question.recipe,
                    column=column.name,
                    label=text,
                    settings={**settings, **trial.settings(table)},
                    method=trial.method,
                    seed=TUNING_SEED + i,
                    stage="tune",
                )
                for trial in candidates
                for i in range(table.tuning_seeds_of(column))
            ]
    return specs


def choose(question: Question, specs: Iterable[Spec], root: Path) -> dict[tuple[str, str], Trial]:
    """The best trial of each method in each column, by its mean over tuning seeds on validation data.

    Columns that do not tune take every method as written, at the baseline's learning rate. Where they tune, the primary
    row has a second choice, among its trials at the rate chosen for plain training.
    """
    table = question.table
    scores: dict[tuple[str, str], dict[Trial, list[float]]] = {}
    for spec in specs:
        run = Run(spec, root)
        if (reason := run.damage()) is not None:  # a choice among fewer trials than the others had is not fair
            raise UserError(f"run {spec.id} cannot be trusted: {reason}. The same command does it again.")
        if not run.done:
            continue
        records = run.records()
        trial = Trial(method=spec.method, lr=spec.settings["lr"], draw=spec.settings[table.draws] if table.draws else 0)
        row = scores.setdefault((spec.column, spec.label), {})
        row.setdefault(trial, []).append(table.selecting(records, spec.label)[table.chosen(records)])
    chosen = {key: _best(table, row) for key, row in scores.items()}
    for column in table.columns:
        plain, row = chosen.get((column.name, BASELINE)), scores.get((column.name, table.primary), {})
        at_plain_rate = {trial: values for trial, values in row.items() if plain and trial.lr == plain.lr}
        if at_plain_rate and not table.draws and not table.overlap:
            chosen[column.name, AT_PLAIN_RATE] = _best(table, at_plain_rate)
    untuned = as_written(question)
    return chosen | {key: untuned[key] for key in untuned if not _tunes(question, key[0])}


def _best(table: Table, scores: Mapping[Trial, Sequence[float]]) -> Trial:
    """The trial with the best mean; one that has not finished all its seeds cannot win, unless none has."""
    most = max(len(values) for values in scores.values())
    whole = {trial: sum(values) / most for trial, values in scores.items() if len(values) == most}
    return list(whole)[table.best(list(whole.values()))]


def as_written(question: Question) -> dict[tuple[str, str], Trial]:
    """Every method as written, at the baseline's learning rate."""
    return {
        (column.name, text): Trial(
            method=str(method(question.table.row(text).method)), lr=question.row_settings(column, text)["lr"]
        )
        for column in question.table.columns
        for text in question.table.methods_of(column)
    }


def _tunes(question: Question, name: str) -> bool:
    return any(question.table.trials_of(c) > 1 for c in question.table.columns if c.name == name)


def comparison(question: Question, chosen: Mapping[tuple[str, str], Trial]) -> list[Spec]:
    """The runs that are reported, on the same seeds: each method as tuned, and re-weighting's controls.

    Re-weighting that was tuned to plain training's rate is its own control at that rate, and is not run twice.
    """
    specs: list[Spec] = []
    for column in question.table.columns:
        rows = {m: chosen[column.name, m] for m in question.table.methods_of(column) if (column.name, m) in chosen}
        if _controlled(question, column, rows):
            normalised = with_values(method(rows[question.table.primary].method), {"normalize": "mean"})
            rows[NORMALISED] = replace(rows[BASELINE], method=str(normalised))
            at_plain_rate = chosen.get((column.name, AT_PLAIN_RATE))
            if at_plain_rate is not None and at_plain_rate != rows[question.table.primary]:
                rows[AT_PLAIN_RATE] = at_plain_rate
        for label, trial in rows.items():
            settings = question.row_settings(column, question.table.primary if label in CONTROLS else label)
            specs += [
                Spec(
                    recipe=question.recipe,
                    column=column.name,
                    label=label,
                    settings={**settings, **trial.settings(question.table), **_refit(question.table, trial)},
                    method=trial.method,
                    seed=seed,
                )
                for seed in range(question.table.seeds_of(column))
            ]
    return specs


def _refit(table: Table, trial: Trial) -> Mapping[str, Any]:
    """What the comparison changes; a correction after training keeps the held-out examples that fit it."""
    return table.refit if method(trial.method).post is None else {}


def scale_controls(question: Question, comparison: Iterable[Spec]) -> list[Spec]:
    """Plain training with its loss times the mean weight that re-weighting had at that step, seed by seed.

    The learning rate is the baseline's own and is never multiplied: Adam would make that control unfair.
    """
    by_row = {(s.column, s.label, s.seed): s for s in comparison}
    normalised = {s.column for s in by_row.values() if s.label == NORMALISED}
    controls: list[Spec] = []
    for (column, label, seed), spec in by_row.items():
        if label == question.table.primary and column in normalised:
            controls.append(replace(by_row[column, BASELINE, seed], label=SCALED_BASELINE, scale_from=spec.id))
    return controls


def _controlled(question: Question, column: Column, rows: Mapping[str, Trial]) -> bool:
    """Whether there is a scale to control: other methods' weights have mean one already."""
    primary = rows.get(question.table.primary)
    return (
        question.table.controls_of(column)
        and primary is not None
        and BASELINE in rows
        and hasattr(method(primary.method).objective, "normalize")
    )


def search_axes(base: Method) -> dict[str, tuple[Any, ...]]:
    """The hyper-parameters worth searching of every part of a method, by dotted name."""
    axes: dict[str, tuple[Any, ...]] = {}
    for slot, value in base.parts():
        for name, values in getattr(value, "search", {}).items():
            # The method as written comes first, so that trial one is what the user asked for; and its sign is kept,
            # since a negative tilt is another method and not another value.
            written = getattr(value, name)
            if isinstance(written, float) and written < 0 and all(v > 0 for v in values):
                values = tuple(-v for v in values)
            axes[f"{slot}.{name}"] = (written, *(v for v in values if v != written))
    return axes


def with_values(base: Method, changes: Mapping[str, Any]) -> Method:
    """The method with some hyper-parameters replaced; a bare name belongs to the objective."""
    for name, value in changes.items():
        slot, _, field = name.rpartition(".")
        slot = slot or "objective"
        base = replace(base, **{slot: replace(getattr(base, slot), **{field: value})})
    return base


def _rates(count: int) -> tuple[float, ...]:
    """The learning-rate multipliers: the paper's five, and more between and around them for larger grids."""
    if count <= len(RATE_MULTIPLIERS):
        return RATE_MULTIPLIERS[:count]
    extra = count - len(RATE_MULTIPLIERS)
    # A quarter to twice the rate in equal ratios, at the middles of the steps: none of these is one of the five.
    finer = (round(0.25 * 8.0 ** ((i + 0.5) / extra), 4) for i in range(extra))
    return RATE_MULTIPLIERS + tuple(finer)
