"""An answer as good as the time allows: every method as written first, then tuned, then on more and more splits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.local import Display, OutOfTimeError, Workers, execute
from reweigh.bench.lab.plan import Question, Trial
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column

#: Splits on which every method is tried as written; splits that are added at a time; and where more say little.
FIRST, ROUND, MOST = 3, 5, 30
#: Tuning trials of every method, the most that fit into the time; none of them leaves the methods as written.
TRIALS = (5, 3)

Ended = Literal["finished", "time", "interrupted"]


@dataclass(kw_only=True)
class SearchOutcome:
    """What a search has done: the runs it rests on, column by column, whether they were tuned, and how it ended."""

    runs: list[Run] = field(default_factory=list[Run])
    tuning: list[Run] = field(default_factory=list[Run])
    tuned: bool = False
    trials: int = 0
    failed: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    ended: Ended = "finished"


def search(
    question: Question,
    root: Path,
    *,
    jobs: int,
    budget: float,
    display: Display,
    on_stage: Callable[[SearchOutcome], None],
    device: str = "cpu",
) -> SearchOutcome:
    """Run until the budget runs out or the answer would hardly change; what is on disk already costs no time.

    Parameters
    ----------
    question
        The question, whose table has a column for each model.
    root
        The folder of its runs.
    jobs
        Processes at once.
    budget
        Seconds.
    display
        Where progress is shown.
    on_stage
        Called with the outcome so far after every stage.
    device
        Where processes train, by name.

    Returns
    -------
    SearchOutcome
        The runs that an answer may rest on: those of splits which every method of a column has finished, tuned alike.
    """
    searching = _Search(question, root, time.monotonic() + budget, display)
    try:
        with Workers(jobs, device=device) as workers:
            searching.go(workers, on_stage)
    except OutOfTimeError:
        searching.outcome.ended = "time"
    except KeyboardInterrupt:
        searching.outcome.ended = "interrupted"
    searching.gather()
    return searching.outcome


class _Search:
    def __init__(self, question: Question, root: Path, deadline: float, display: Display) -> None:
        self.question, self.root, self.deadline, self.display = question, root, deadline, display
        self.jobs = 1
        self.outcome = SearchOutcome()
        #: Comparison runs in the order in which they were planned: as written, and as tuned.
        self.untuned: list[Spec] = []
        self.tuned: list[Spec] = []
        self.tuning: list[Spec] = []

    def go(self, workers: Workers, on_stage: Callable[[SearchOutcome], None]) -> None:
        """Stage by stage."""
        self.jobs = workers.jobs
        chosen, specs = plan.as_written(self.question), self.untuned
        self._compare(workers, chosen, specs, range(FIRST), f"as written, {FIRST} splits")
        on_stage(self.gather())
        self.outcome.trials = self._affordable_trials()
        if self.outcome.trials:
            question = _with_trials(self.question, self.outcome.trials)
            self.tuning = plan.tuning(question)
            self._execute(workers, self.tuning, f"tuning, {self.outcome.trials} trials of each method")
            chosen, specs = plan.choose(question, self.tuning, self.root), self.tuned
        splits = 0 if self.outcome.trials else FIRST
        while splits < MOST:
            new = range(splits, min(splits + ROUND, MOST))
            what = "tuned" if self.outcome.trials else "as written"
            if splits and self._cost(self._specs(chosen, new)) > max(self._left(), 0.0):
                self.outcome.ended = "time"
                return
            self._compare(workers, chosen, specs, new, f"{what}, splits {new.start + 1} to {new.stop}")
            splits = new.stop
            on_stage(self.gather())

    def gather(self) -> SearchOutcome:
        """Look at what is done, and keep what is complete."""
        outcome = self.outcome
        outcome.runs = []
        complete = {column.name: self._complete(column, self.tuned) for column in self.question.table.columns}
        outcome.tuned = bool(self.tuned) and all(len(seeds) >= 2 for seeds in complete.values())
        for column in self.question.table.columns:
            # Either every column is reported as tuned or none: nobody should have to ask which is which.
            specs = self.tuned if outcome.tuned else self.untuned
            seeds = complete[column.name] if outcome.tuned else self._complete(column, self.untuned)
            rows = [spec for spec in specs if spec.column == column.name and spec.seed in seeds]
            rows += plan.scale_controls(self.question, rows)
            done = [run for run in map(self._run, rows) if run.done]
            controlled = {run.spec.seed for run in done if run.spec.label == plan.SCALED_BASELINE}
            if len(controlled) >= 2 and (column.name, plan.SCALED_BASELINE) not in outcome.failed:
                # Once splits have their scale control only those count: means over other splits would not compare.
                done = [run for run in done if run.spec.seed in controlled]
            outcome.runs += done
        outcome.tuning = [run for run in map(self._run, self.tuning) if run.done]
        return outcome

    def _complete(self, column: Column, specs: Iterable[Spec]) -> set[int]:
        """The splits that every row of a column has finished, but for rows that failed."""
        missing: dict[int, bool] = {}
        for spec in specs:
            if spec.column == column.name and (spec.column, spec.label) not in self.outcome.failed:
                missing[spec.seed] = missing.get(spec.seed, False) or not self._run(spec).done
        return {seed for seed, lacking in missing.items() if not lacking}

    def _specs(self, chosen: dict[tuple[str, str], Trial], seeds: range) -> list[Spec]:
        """The comparison on some splits."""
        table = self.question.table
        columns = tuple(dataclasses.replace(column, seeds=seeds.stop) for column in table.columns)
        question = dataclasses.replace(self.question, table=dataclasses.replace(table, columns=columns))
        failed = self.outcome.failed
        specs = [s for s in plan.comparison(question, chosen) if s.seed in seeds and (s.column, s.label) not in failed]
        return sorted(specs, key=lambda spec: spec.seed)  # whole splits first: only those can be reported

    def _compare(
        self, workers: Workers, chosen: dict[tuple[str, str], Trial], specs: list[Spec], seeds: range, title: str
    ) -> None:
        new = self._specs(chosen, seeds)
        specs += new
        self._execute(workers, new, title)
        done = [spec for spec in new if self._run(spec).done]
        controls = plan.scale_controls(self.question, done)
        if controls:
            self._execute(workers, controls, f"scale control of {title}")

    def _execute(self, workers: Workers, specs: Sequence[Spec], title: str) -> None:
        failures = execute(specs, self.root, workers=workers, display=self.display, title=title, deadline=self.deadline)
        for failure in failures:
            self.outcome.failed[failure.spec.column, failure.spec.label] = failure.reason.strip().splitlines()[-1]

    def _affordable_trials(self) -> int:
        """How many trials of each method fit into the time together with a first round of the comparison."""
        for trials in TRIALS:
            question = _with_trials(self.question, trials)
            tuning = plan.tuning(question)
            if all(self._run(spec).done for spec in tuning):
                cost = self._cost(self._specs(plan.choose(question, tuning, self.root), range(ROUND)))
            else:  # which settings the comparison will have is not known yet; those as written cost as much
                rounds = self._specs(plan.as_written(self.question), range(ROUND))
                cost = self._cost(tuning) + self._cost(rounds, anew=True)
            if cost <= max(self._left(), 0.0):  # what is done already fits into no time at all
                return trials
        return 0

    def _cost(self, specs: Iterable[Spec], *, anew: bool = False) -> float:
        """Seconds that runs would take: as long as those of the same column did, those that are done nothing."""
        seconds: dict[str, list[float]] = {}
        for spec in self.untuned:
            if (run := self._run(spec)).done:
                seconds.setdefault(spec.column, []).append(float(run.summary()["seconds"]))
        typical = {column: sum(values) / len(values) for column, values in seconds.items()}
        todo = [spec for spec in specs if anew or not self._run(spec).done]
        return sum(typical.get(spec.column, 0.0) for spec in todo) / self.jobs

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _run(self, spec: Spec) -> Run:
        return Run(spec, self.root)


def _with_trials(question: Question, trials: int) -> Question:
    return dataclasses.replace(question, table=dataclasses.replace(question.table, trials=trials))
