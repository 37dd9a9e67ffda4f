"""An experiment from question to finished runs: tune, compare, control."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reweigh.bench.errors import UserError, of_user
from reweigh.bench.lab import plan, questions
from reweigh.bench.lab import recipe as recipes
from reweigh.bench.lab.executors.local import Display, Executor, Failure, Workers, execute
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.lab.tuning import optuna as tuning_optuna

#: The settings that say what is trained on what, by the names that recipes have for them.
_SUBJECT = frozenset({"data", "text", "model"})


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much of an experiment to do, and where."""

    preset: Literal["smoke", "cpu", "paper"] = "cpu"
    methods: tuple[str, ...] = ()
    #: Columns of the table: those whose names contain one of these, in upper or lower case; all if empty.
    only: tuple[str, ...] = ()
    seeds: int | None = None
    trials: int | None = None
    changes: tuple[tuple[str, str], ...] = ()
    jobs: int = 2
    runs_dir: Path = Path("runs")
    data_root: Path | None = None
    #: Who proposes tuning trials: a Latin square laid out beforehand, or Optuna, which learns from each.
    tuner: Literal["latin", "optuna"] = "latin"
    #: Where Optuna keeps its studies: a database URL; a journal next to the runs if not given.
    storage: str | None = None
    #: What does the runs: processes of this machine, a Ray cluster (at `address`, or started here), or Slurm.
    executor: Literal["local", "ray", "slurm"] = "local"
    address: str | None = None
    #: What submitit asks Slurm for: key=value, joined by commas.
    slurm: str = ""
    #: Where to train: auto, cpu, a kind of accelerator, or one of them by its number.
    device: str = "cpu"
    #: Whether `torchrun` started this process and others to do every run together.
    launched: bool = False


def question(recipe_name: str, options: Options) -> Question:
    """The recipe's question with the preset, the methods and the changed settings of this call."""
    recipe = recipes.load(recipe_name)
    if options.seeds is not None and options.seeds < 1:
        raise UserError(f"`--seeds` must be at least 1, got {options.seeds}.")
    if options.preset not in recipe.PRESETS:
        raise UserError(f"recipe {recipe_name!r} has no preset {options.preset!r}; it has {', '.join(recipe.PRESETS)}.")
    preset = recipe.PRESETS[options.preset]
    with of_user("`--set`"):
        settings = dataclasses.replace(preset, **_changes(preset, options.changes))
    table = recipe.table(options.preset)
    _check_settings(table, {field.name for field in dataclasses.fields(preset)})
    if options.methods:
        wanted = tuple(dict.fromkeys((plan.BASELINE, *options.methods)))
        primary = table.primary if table.primary in wanted else wanted[-1]
        table = dataclasses.replace(table, methods=wanted, primary=primary)
    changed = {name for name, _ in options.changes}
    columns = tuple(
        dataclasses.replace(
            _renamed(column, dict(options.changes), dataclasses.asdict(preset), dataclasses.asdict(settings)),
            settings={k: v for k, v in column.settings.items() if k not in changed},
            methods=None if options.methods else column.methods,
            seeds=column.seeds if options.seeds is None else options.seeds,
            trials=column.trials if options.trials is None else options.trials,
        )
        for column in _columns(table, options.only)
    )
    if changed:  # columns that only differed in what the user fixed are now one
        columns = tuple({str(sorted(c.settings.items(), key=str)): c for c in columns}.values())
    rows = {
        label: dataclasses.replace(row, settings={k: v for k, v in row.settings.items() if k not in changed})
        for label, row in table.rows.items()
    }
    table = dataclasses.replace(
        table,
        columns=columns,
        rows=rows,
        seeds=table.seeds if options.seeds is None else options.seeds,
        trials=table.trials if options.trials is None else options.trials,
    )
    return Question(recipe=recipe_name, table=table, settings=recipes.plain(settings), preset=options.preset)


def _check_settings(table: Table, known: set[str]) -> None:
    """Columns and rows change settings that the recipe has."""
    changes = {f"column {column.name!r}": column.settings for column in table.columns}
    changes |= {f"row {label!r}": row.settings for label, row in table.rows.items()}
    for what, settings in changes.items():
        if unknown := set(settings) - known:
            raise ValueError(f"{what} sets {sorted(unknown)}, which the recipe does not have.")


def run(question: Question, options: Options, display: Display) -> list[Failure]:
    """Do all runs of an experiment, stage by stage; what is done already is not done again."""
    planned: list[Spec] = []
    with _workers(options) as workers:

        def do(title: str, specs: list[Spec]) -> list[Failure]:
            planned.extend(specs)
            questions.store(options.runs_dir, question, planned)
            return execute(specs, options.runs_dir, workers=workers, display=display, title=title)

        tuning, failures = _tune(question, options, do)
        if any(failure.killed for failure in failures):  # a choice among fewer trials than the others had is not fair
            return failures
        comparison = plan.comparison(question, plan.choose(question, tuning, options.runs_dir))
        failures += do("comparison", comparison)
        broken = {failure.spec.id for failure in failures}
        controls = [s for s in plan.scale_controls(question, comparison) if s.scale_from not in broken]
        return failures + (do("scale control", controls) if controls else [])


def _tune(
    question: Question, options: Options, do: Callable[[str, list[Spec]], list[Failure]]
) -> tuple[list[Spec], list[Failure]]:
    """The tuning runs, done, and those that failed."""
    if options.tuner == "optuna":
        return tuning_optuna.tune(question, options.runs_dir, do, options.storage)
    tuning = plan.tuning(question)
    for spec in tuning:
        Run(spec, options.runs_dir).revive()
    return tuning, do("tuning", tuning) if tuning else []


def _workers(options: Options) -> AbstractContextManager[Executor]:
    if options.launched:
        from reweigh.bench.lab.executors.torchrun import Launched

        return Launched(options.data_root, device=options.device)
    if options.executor == "local":
        return Workers(options.jobs, options.data_root, device=options.device)
    if options.executor == "slurm":
        from reweigh.bench.lab.executors.slurm import SlurmWorkers

        return SlurmWorkers(
            options.jobs, options.runs_dir, options.data_root, options=options.slurm, device=options.device
        )
    from reweigh.bench.lab.executors.ray import RayWorkers

    return RayWorkers(options.jobs, options.data_root, address=options.address, device=options.device)


def _columns(table: Table, only: tuple[str, ...]) -> list[Column]:
    for text in only:
        if not any(text.casefold() in column.name.casefold() for column in table.columns):
            names = "; ".join(column.name for column in table.columns)
            raise UserError(f"no column has {text!r} in its name; there are: {names}.")
    return [c for c in table.columns if not only or any(text.casefold() in c.name.casefold() for text in only)]


def _renamed(column: Column, changes: Mapping[str, str], before: Mapping[str, Any], after: Mapping[str, Any]) -> Column:
    """The column with a name that fits the changed settings; on other data or another model it has no figures.

    `before` and `after` are the preset's settings without and with the changes.
    """
    was = {**before, **column.settings}
    altered = {name: value for name, value in changes.items() if was[name] != after[name]}
    column = dataclasses.replace(column, name=_name(column, changes, altered))
    # What the paper reports, and what the data stands in for, describes what the recipe chose.
    return dataclasses.replace(column, paper={}, stand_in=None) if altered.keys() & _SUBJECT else column


def _name(column: Column, changes: Mapping[str, str], altered: Mapping[str, str]) -> str:
    """The column's name, unless it names a setting that was changed: then what is left of it, and the change.

    A name also includes what the column leaves to the preset: what is trained on what, and anything at all where the
    column sets nothing itself. Other settings are in no name, and a run keeps the one it would be looked for under.
    """
    if set(changes) & set(column.settings):
        left = [f"{name} {value}" for name, value in column.settings.items() if name not in changes]
        return ", ".join(left + [f"{name} {value}" for name, value in changes.items()])
    shown = [f"{name} {value}" for name, value in altered.items() if name in _SUBJECT or not column.settings]
    return ", ".join([column.name, *shown])


def _changes(settings: Any, changes: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """`key=value` texts as values of the settings' own types."""
    fields = {field.name: field for field in dataclasses.fields(settings)}
    values: dict[str, Any] = {}
    for name, text in changes:
        if name not in fields:
            raise UserError(f"there is no setting named {name!r}; there are {', '.join(fields)}.")
        with of_user(f"`--set {name}={text}`"):
            values[name] = _parse(text, getattr(settings, name))
    return values


def _parse(text: str, example: Any) -> Any:
    if isinstance(example, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"expected true or false, got {text!r}.")
        return text.lower() == "true"
    if isinstance(example, (int, float)):
        return type(example)(text)
    if isinstance(example, tuple):
        first: Any = example[0] if example else ""
        return tuple(type(first)(part) for part in text.split(","))
    return text
