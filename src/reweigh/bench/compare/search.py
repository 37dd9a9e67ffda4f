"""As many answers as the time allows: every method as written first, then tuned, then on more and more splits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reweigh.bench import plan
from reweigh.bench.executors import Display, OutOfTimeError, Workers, execute
from reweigh.bench.plan import Question, Trial
from reweigh.bench.recipes._table import Cell
from reweigh.bench.runs import Run, Spec

#: Splits on which every method is tried as written; splits that are added at a time; and where more say little.
FIRST, ROUND, MOST = 3, 5, 30
#: Tuning trials of every method, the most that fit into the time; none of them leaves the methods as written.
TRIALS = (5, 3)

Ended = Literal["finished", "time", "interrupted"]


@dataclass(kw_only=True)
class Found:
    """What a search has done: the runs it rests on, cell by cell, whether they were tuned, and how it ended."""

    runs: list[Run] = field(default_factory=list[Run])
    tuning: list[Run] = field(default_factory=list[Run])
    tuned: bool = False
    trials: int = 0
    failed: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    ended: Ended = "finished"


def search(
    asked: Question,
    root: Path,
    *,
    jobs: int,
    budget: float,
    display: Display,
    tell: Callable[[Found], None],
) -> Found:
    """Run until the time is over or the answer would hardly change; what is on disk already costs no time.

    Parameters
    ----------
    asked
        The question, whose table has a cell for each model.
    root
        The folder of its runs.
    jobs
        Processes at once.
    budget
        Seconds.
    display
        Where progress is shown.
    tell
        Is told what was found after every stage.

    Returns
    -------
    Found
        The runs that an answer may rest on: those of splits which every method of a cell has finished, tuned alike.
    """
    searching = _Search(asked, root, time.monotonic() + budget, display)
    try:
        with Workers(jobs) as workers:
            searching.go(workers, tell)
    except OutOfTimeError:
        searching.found.ended = "time"
    except KeyboardInterrupt:
        searching.found.ended = "interrupted"
    searching.gather()
    return searching.found


class _Search:
    def __init__(self, asked: Question, root: Path, deadline: float, display: Display) -> None:
        self.asked, self.root, self.deadline, self.display = asked, root, deadline, display
        self.jobs = 1
        self.found = Found()
        #: Comparison runs in the order in which they were asked for: as written, and as tuned.
        self.untuned: list[Spec] = []
        self.tuned: list[Spec] = []
        self.tuning: list[Spec] = []

    def go(self, workers: Workers, tell: Callable[[Found], None]) -> None:
        """Stage by stage."""
        self.jobs = workers.jobs
        chosen, specs = plan.as_written(self.asked), self.untuned
        self._compare(workers, chosen, specs, range(FIRST), f"as written, {FIRST} splits")
        tell(self.gather())
        self.found.trials = self._affordable_trials()
        if self.found.trials:
            question = _with_trials(self.asked, self.found.trials)
            self.tuning = plan.tuning(question)
            self._execute(workers, self.tuning, f"tuning, {self.found.trials} trials of each method")
            chosen, specs = plan.choose(question, self.tuning, self.root), self.tuned
        splits = 0 if self.found.trials else FIRST
        while splits < MOST:
            new = range(splits, min(splits + ROUND, MOST))
            what = "tuned" if self.found.trials else "as written"
            if splits and self._cost(self._specs(chosen, new)) > max(self._left(), 0.0):
                self.found.ended = "time"
                return
            self._compare(workers, chosen, specs, new, f"{what}, splits {new.start + 1} to {new.stop}")
            splits = new.stop
            tell(self.gather())

    def gather(self) -> Found:
        """Look at what is done, and keep what is complete."""
        found = self.found
        found.runs = []
        complete = {cell.name: self._complete(cell, self.tuned) for cell in self.asked.table.cells}
        found.tuned = bool(self.tuned) and all(len(seeds) >= 2 for seeds in complete.values())
        for cell in self.asked.table.cells:
            # Either every cell is reported as tuned or none: nobody should have to ask which is which.
            specs = self.tuned if found.tuned else self.untuned
            seeds = complete[cell.name] if found.tuned else self._complete(cell, self.untuned)
            rows = [spec for spec in specs if spec.cell == cell.name and spec.seed in seeds]
            rows += plan.scale_controls(self.asked, rows)
            done = [run for run in map(self._run, rows) if run.done]
            controlled = {run.spec.seed for run in done if run.spec.label == plan.SCALED_BASELINE}
            if len(controlled) >= 2 and (cell.name, plan.SCALED_BASELINE) not in found.failed:
                # Once splits have their scale control only those count: means over other splits would not compare.
                done = [run for run in done if run.spec.seed in controlled]
            found.runs += done
        found.tuning = [run for run in map(self._run, self.tuning) if run.done]
        return found

    def _complete(self, cell: Cell, specs: Iterable[Spec]) -> set[int]:
        """The splits that every row of a cell has finished, but for rows that failed."""
        missing: dict[int, bool] = {}
        for spec in specs:
            if spec.cell == cell.name and (spec.cell, spec.label) not in self.found.failed:
                missing[spec.seed] = missing.get(spec.seed, False) or not self._run(spec).done
        return {seed for seed, lacking in missing.items() if not lacking}

    def _specs(self, chosen: dict[tuple[str, str], Trial], seeds: range) -> list[Spec]:
        """The comparison on some splits."""
        table = self.asked.table
        cells = tuple(dataclasses.replace(cell, seeds=seeds.stop) for cell in table.cells)
        question = dataclasses.replace(self.asked, table=dataclasses.replace(table, cells=cells))
        failed = self.found.failed
        specs = [s for s in plan.comparison(question, chosen) if s.seed in seeds and (s.cell, s.label) not in failed]
        return sorted(specs, key=lambda spec: spec.seed)  # whole splits first: only those can be reported

    def _compare(
        self, workers: Workers, chosen: dict[tuple[str, str], Trial], specs: list[Spec], seeds: range, title: str
    ) -> None:
        new = self._specs(chosen, seeds)
        specs += new
        self._execute(workers, new, title)
        done = [spec for spec in new if self._run(spec).done]
        controls = plan.scale_controls(self.asked, done)
        if controls:
            self._execute(workers, controls, f"scale control of {title}")

    def _execute(self, workers: Workers, specs: Sequence[Spec], title: str) -> None:
        failures = execute(specs, self.root, workers=workers, display=self.display, title=title, deadline=self.deadline)
        for failure in failures:
            self.found.failed[failure.spec.cell, failure.spec.label] = failure.reason.strip().splitlines()[-1]

    def _affordable_trials(self) -> int:
        """How many trials of each method fit into the time together with a first round of the comparison."""
        for trials in TRIALS:
            question = _with_trials(self.asked, trials)
            tuning = plan.tuning(question)
            if all(self._run(spec).done for spec in tuning):
                cost = self._cost(self._specs(plan.choose(question, tuning, self.root), range(ROUND)))
            else:  # which settings the comparison will have is not known yet; those as written cost as much
                rounds = self._specs(plan.as_written(self.asked), range(ROUND))
                cost = self._cost(tuning) + self._cost(rounds, anew=True)
            if cost <= max(self._left(), 0.0):  # what is done already fits into no time at all
                return trials
        return 0

    def _cost(self, specs: Iterable[Spec], *, anew: bool = False) -> float:
        """Seconds that runs would take: as long as those of the same cell did, those that are done nothing."""
        seconds: dict[str, list[float]] = {}
        for spec in self.untuned:
            if (run := self._run(spec)).done:
                seconds.setdefault(spec.cell, []).append(float(run.summary()["seconds"]))
        typical = {cell: sum(values) / len(values) for cell, values in seconds.items()}
        todo = [spec for spec in specs if anew or not self._run(spec).done]
        return sum(typical.get(spec.cell, 0.0) for spec in todo) / self.jobs

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _run(self, spec: Spec) -> Run:
        return Run(spec, self.root)


def _with_trials(asked: Question, trials: int) -> Question:
    return dataclasses.replace(asked, table=dataclasses.replace(asked.table, trials=trials))
