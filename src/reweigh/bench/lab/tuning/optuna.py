"""Tuning with Optuna: every row of every column has a study of its own, with the same number of trials.

The first trial of a study is the method as written at the baseline's learning rate, as it is everywhere. Further ones
are asked of Optuna one after the other within a study, so that each knows all that came before it; the studies of an
experiment advance side by side. A trial is a run like any other, with a directory of its own, and is stopped when its
best validation score so far is below that of three quarters of the finished trials before it at the same epoch. A
pruned trial counts against the budget; so does one that broke down.

What is asked next depends on what the study holds and on nothing else, so that a killed command resumes as if nothing
had happened. The study is kept in a journal next to the runs, or in any database that Optuna can use.

References: Akiba et al., Optuna: A Next-generation Hyperparameter Optimization Framework, KDD 2019.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.bench.errors import MissingPackageError, UserError
from reweigh.bench.files import locked, write_atomically
from reweigh.bench.lab import plan
from reweigh.bench.lab.plan import Question, Trial
from reweigh.bench.lab.runs import Record, Run, Spec
from reweigh.method import method

#: Learning rates are searched between these multiples of the baseline's.
RATES = (0.25, 2.0)
#: The share of a training before which no trial is stopped, and the trials that a study finishes before it stops any.
_GRACE, _FINISHED_FIRST = 0.25, 2
#: Trials drawn at random before a study's own results guide it.
_RANDOM_FIRST = 4
#: Values whose largest is less than this many times the smallest are names of settings rather than a range.
_LEAST_RATIO = 2.0

Execute = Callable[[str, list[Spec]], list[Any]]


@dataclass(frozen=True, kw_only=True)
class RowStudy:
    """One method in one column: what is searched, and the study that searches it."""

    question: Question
    column: str
    label: str
    settings: Mapping[str, Any]
    trials: int

    @property
    def name(self) -> str:
        """The study's name: readable, and different for different questions."""
        select = self.question.table.select_of(self.label)
        identity = json.dumps([self.settings, select, self.trials], sort_keys=True, default=list)
        short = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return f"{self.question.recipe} / {self.column} / {self.label} / {short}"

    def space(self) -> dict[str, Any]:
        """What Optuna may choose from: the ranges of the method's cards, and the learning rate."""
        from optuna.distributions import FloatDistribution

        axes = {} if self.question.table.as_written else plan.search_axes(method(self._written))
        ranges = {name: _distribution(values) for name, values in axes.items()}
        return {**ranges, "lr": FloatDistribution(*RATES, log=True)}

    def first(self) -> dict[str, Any]:
        """The method as written, as a choice from the space."""
        axes = {} if self.question.table.as_written else plan.search_axes(method(self._written))
        return {**{name: abs(v[0]) if _is_range(v) else v[0] for name, v in axes.items()}, "lr": 1.0}

    def spec(self, chosen: Mapping[str, Any]) -> Spec:
        """The run of a choice."""
        signs = {name: _sign(values) for name, values in plan.search_axes(method(self._written)).items()}
        values = {name: _rounded(value, signs[name]) for name, value in chosen.items() if name != "lr"}
        trial = Trial(
            method=str(plan.with_values(method(self._written), values)),
            lr=self.settings["lr"] * _rounded(chosen["lr"], 1.0),
        )
        return Spec(
            recipe=self.question.recipe,
            column=self.column,
            label=self.label,
            settings={**self.settings, "lr": trial.lr},
            method=trial.method,
            seed=plan.TUNING_SEED,
            stage="tune",
        )

    @property
    def _written(self) -> str:
        return self.question.table.row(self.label).method


def rows(question: Question) -> list[RowStudy]:
    """Every row of every column that tunes."""
    table = question.table
    return [
        RowStudy(
            question=question,
            column=column.name,
            label=label,
            settings=question.row_settings(column, label),
            trials=table.trials_of(column),
        )
        for column in table.columns
        if table.trials_of(column) > 1
        for label in table.methods_of(column)
    ]


def tune(question: Question, root: Path, execute: Execute, storage: str | None = None) -> tuple[list[Spec], list[Any]]:
    """Do every trial of every study that is not done yet; returns all trials as runs, and the failures.

    Parameters
    ----------
    question
        The experiment.
    root
        The folder of runs.
    execute
        Does runs, given a title and what is to do; returns what failed.
    storage
        A database URL; a journal in the recipe's folder if not given.
    """
    searched = rows(question)
    if not searched:
        return [], []
    if question.table.draws:
        raise UserError(
            f"recipe {question.recipe!r} draws its own hyper-parameters, so there is nothing for Optuna to propose. "
            "Use `--tune NUMBER`."
        )
    most = max(row.trials for row in searched)
    folder = root / question.recipe
    folder.mkdir(parents=True, exist_ok=True)
    storage = storage or str((folder / "optuna.journal").resolve())
    failures: list[Any] = []
    with locked(folder / "optuna.lock"):  # one command at a time asks; others wait, and find the trials done
        studies = [(row, _study(row.name, storage, smallest=question.table.smallest)) for row in searched]
        for number in range(most):
            turn = [(row, study, _ask(row, study, number)) for row, study in studies if number < row.trials]
            specs = {row.name: row.spec(trial.params) for row, _, trial in turn}
            for row, study, trial in turn:
                select = question.table.select_of(row.label)
                _mark(Run(specs[row.name], root), storage, study.study_name, trial.number, select)
            failures += execute(
                f"tuning, trial {number + 1} of {max(r.trials for r in searched)}", list(specs.values())
            )
            for row, study, trial in turn:
                _tell(question, study, trial, Run(specs[row.name], root))
        proposed = [row.spec(_ask(row, study, k).params) for row, study in studies for k in range(row.trials)]
    return list({spec.id: spec for spec in proposed}.values()), failures


def watch(run: Run) -> Callable[[int, Record], bool] | None:
    """Looks at each record of a run that is a trial, and says whether to stop; None for other runs."""
    path = run.directory / "trial.json"
    if not path.exists():
        return None
    import optuna

    marked = json.loads(path.read_text())
    study = _study(marked["study"], marked["storage"], smallest=None)
    frozen = study.trials[marked["number"]]
    trial = optuna.trial.Trial(study, frozen._trial_id)  # pyright: ignore[reportPrivateUsage]
    known = set(frozen.intermediate_values)  # reported before the run was interrupted

    def hopeless(step: int, record: Record) -> bool:
        value = float(record.get(marked["select"], math.nan))
        if math.isnan(value):  # nothing to compare; what broke down for good is reported at its end
            return False
        if step not in known:
            trial.report(value, step)
            known.add(step)
        return _GRACE <= float(record.get("progress", 0.0)) < 1.0 and trial.should_prune()

    return hopeless


def _mark(run: Run, storage: str, study: str, number: int, select: str) -> None:
    """Pass the number of the trial to the process that does the run."""
    if run.over:
        return
    run.directory.mkdir(parents=True, exist_ok=True)
    marked = {"storage": storage, "study": study, "number": number, "select": select}
    write_atomically(run.directory / "trial.json", json.dumps(marked))


def _study(name: str, storage: str, *, smallest: bool | None) -> Any:
    """The study of this name; `smallest` says what is better, None that it must be there already."""
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise MissingPackageError(
            '`--tune optuna` needs Optuna. Install it with: pip install "reweigh[optuna]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kept: Any = storage if "://" in storage else JournalStorage(JournalFileBackend(storage))
    pruner = optuna.pruners.PercentilePruner(75.0, n_startup_trials=_FINISHED_FIRST)
    if smallest is None:
        return optuna.load_study(study_name=name, storage=kept, pruner=pruner)
    direction = "minimize" if smallest else "maximize"
    return optuna.create_study(study_name=name, storage=kept, direction=direction, pruner=pruner, load_if_exists=True)


def _ask(row: RowStudy, study: Any, number: int) -> Any:
    """The study's trial of this number among those whose choice is whole: an old one, or the next."""
    import optuna

    space = row.space()
    chosen = [trial for trial in study.trials if trial.params.keys() == space.keys()]
    if number < len(chosen):
        return chosen[number]
    for trial in study.trials:  # killed in the middle of a choice: such a trial was never run
        if trial.state == optuna.trial.TrialState.RUNNING and trial.params.keys() != space.keys():
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    if number == 0:
        study.enqueue_trial(row.first(), skip_if_exists=False)
    # A generator of its own for each trial: what is asked does not depend on how many were asked in this process.
    seed = zlib.crc32(f"{row.name} {number}".encode())
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_FIRST, constant_liar=False)
    return study.ask(space)


def _tell(question: Question, study: Any, trial: Any, run: Run) -> None:
    """Tell the study how a trial ended; one that failed stays open, and the same command tries it again."""
    import optuna

    if study.trials[trial.number].state.is_finished() or not run.over:
        return
    records, table = run.records(), question.table
    value = table.selecting(records, run.spec.label)[table.chosen(records)] if records else math.nan
    if math.isnan(value):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    elif run.done:
        study.tell(trial.number, value)
    else:
        study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)


def _distribution(values: Iterable[Any]) -> Any:
    """A range for numbers of one sign that span one, otherwise the values themselves."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    listed = list(values)
    if not _is_range(listed):
        return CategoricalDistribution(listed)
    sizes = [abs(v) for v in listed]
    return FloatDistribution(min(sizes), max(sizes), log=True)


def _is_range(values: Iterable[Any]) -> bool:
    listed = list(values)
    if not all(isinstance(v, float) for v in listed):
        return False
    sizes = [abs(v) for v in listed]
    one_sign = all(v > 0 for v in listed) or all(v < 0 for v in listed)
    return one_sign and max(sizes) >= _LEAST_RATIO * min(sizes)


def _sign(values: tuple[Any, ...]) -> float:
    """What a chosen size is multiplied with; ranges are searched by size, the sign is the method's own."""
    return -1.0 if _is_range(values) and values[0] < 0 else 1.0


def _rounded(value: Any, sign: float) -> Any:
    """Four digits are enough to tell trials apart and few enough to read."""
    return sign * float(f"{value:.4g}") if isinstance(value, float) else value
