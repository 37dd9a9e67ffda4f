"""An answer as good as the time allows: every method as written, then tuned, on more and more splits until decided.

Plain training comes first, with the corrections that need no training of their own, then what is likely to be best. A
round is five splits, which test every row once. Small networks train many splits at once for little more than the price
of one, so their stages are two rounds; everything else starts one split at a time. After each stage the actions are
judged: what can no longer win is dropped, and the search ends when the best is decided beyond doubt. Every finished
pair of runs counts.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reweigh.bench.compare import shared
from reweigh.bench.compare.actions import Decision, against
from reweigh.bench.compare.row_scores import stops_below
from reweigh.bench.compare.splits import FOLDS
from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.local import Display, Ended, OutOfTimeError, Workers, execute
from reweigh.bench.lab.plan import Question, Trial
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.recipes.kinds.supervised import BATCHED_MODELS
from reweigh.method import method

#: Splits of a round, and where more say little.
ROUND, MOST = FOLDS, 6 * FOLDS
#: Splits that small networks train at once.
_TOGETHER = 2 * ROUND
#: Learning rates that every method is tuned over, crossed with as many settings of its own; none leaves the methods as
#: written.
RATES = 3
#: The largest share of the time left that tuning may take.
_TUNING_SHARE = 0.35
#: Rounds after which a search may end early; `row_scores.stops_below` is what a look may spend.
_LOOKS = (2, 4)
#: Shares of the training rows that the recommended action is tried on at the end, and what that may take of the budget.
SHARES, _SHARES_BUDGET = (0.25, 0.5), 0.1
#: What is worse than the best with a smaller p-value than this is dropped.
_HOPELESS = 0.01

Key = tuple[str, str]


@dataclass(kw_only=True)
class SearchOutcome:
    """What a search has done: the runs it rests on, whether they were tuned, what was dropped, and how it ended."""

    runs: list[Run] = field(default_factory=list[Run])
    tuning: list[Run] = field(default_factory=list[Run])
    #: The recommended action and plain training on shares of the training rows.
    smaller: list[Run] = field(default_factory=list[Run])
    tuned: bool = False
    rates: int = 0
    failed: dict[Key, str] = field(default_factory=dict[Key, str])
    #: Rows that could no longer win, and after how many splits that was seen.
    dropped: dict[Key, int] = field(default_factory=dict[Key, int])
    ended: Ended = "finished"
    seconds: float = 0.0
    #: Whether every row has had its first round, and whether the search ended there since there is time for more rows.
    first_round: bool = False
    grows: bool = False


#: The results of an outcome, and the decision they allow, if any.
Judge = Callable[[SearchOutcome], tuple[Results, Decision | None]]
#: Makes ready what runs need before processes start on them; yields between pieces of work.
Prepare = Callable[[Sequence[Spec]], Iterable[None]]
#: Whether to continue with more rows, from the seconds that a first round takes on these and the seconds left.
Grow = Callable[[float, float], bool]


def _nothing_to_prepare(specs: Sequence[Spec]) -> Iterable[None]:
    del specs
    return ()


def _as_large_as_it_gets(round_seconds: float, left: float) -> bool:
    del round_seconds, left
    return False


def search(
    question: Question,
    root: Path,
    *,
    jobs: int,
    budget: float,
    display: Display,
    on_stage: Judge,
    device: str = "cpu",
    clock: Callable[[], float] | None = None,
    prepare: Prepare = _nothing_to_prepare,
    grow: Grow = _as_large_as_it_gets,
) -> SearchOutcome:
    """Run until the budget runs out or the best action is decided; what is on disk already costs no time.

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
        Called with the outcome so far after every stage; returns what it says.
    device
        Where processes train, by name.
    clock
        What counts the seconds; the time of day unless given. A benchmark on a busy machine counts processor time.
    prepare
        Called with runs before processes start on them.
    grow
        Asked after the first round whether to end there, and to continue with more rows.

    Returns
    -------
    SearchOutcome
        The runs that an answer may rest on, all tuned or none, save rows that were dropped before tuning.
    """
    clock = clock or time.monotonic
    started = clock()
    searching = _Search(question, root, started + budget, display, clock, prepare)
    try:
        with Workers(jobs, device=device, environment={shared.VARIABLE: str(root / shared.FOLDER)}) as workers:
            searching.go(workers, on_stage, grow)
    except OutOfTimeError:
        searching.outcome.ended = "time"
    except KeyboardInterrupt:
        searching.outcome.ended = "interrupted"
    searching.gather()
    searching.outcome.seconds = clock() - started
    return searching.outcome


class _Search:
    def __init__(
        self,
        question: Question,
        root: Path,
        deadline: float,
        display: Display,
        clock: Callable[[], float],
        prepare: Prepare,
    ) -> None:
        self.question, self.root, self.deadline, self.display = question, root, deadline, display
        self.clock, self.prepare, self.jobs = clock, prepare, 1
        together = question.settings.get("large") is False and any(
            question.column_settings(column).get("model") in BATCHED_MODELS for column in question.table.columns
        )
        #: Splits of a stage, the most first; everything that does not train many at once begins with single splits.
        self.stages = (_TOGETHER, ROUND) if together else (ROUND, 1)
        self.outcome = SearchOutcome()
        #: Comparison runs in the order in which they were planned: as written, and as tuned.
        self.untuned: list[Spec] = []
        self.tuned: list[Spec] = []
        self.tuning: list[Spec] = []
        self.smaller: list[Spec] = []
        #: Rows that are a correction of another row's outputs, and that row.
        table = question.table
        self.derived: dict[Key, str] = {
            (column.name, label): base
            for column in table.columns
            for label in table.methods_of(column)
            if (base := table.row(label).settings.get("base"))
        }

    def go(self, workers: Workers, on_stage: Judge, grow: Grow) -> None:
        """Round by round."""
        self.jobs = workers.jobs
        chosen, specs, splits = plan.as_written(self.question), self.untuned, 0
        decided = False
        while splits < ROUND:
            splits = self._stage(workers, chosen, specs, splits, self._first)
            decided = self._judge(on_stage)
        self.outcome.first_round = True
        if grow(self._taken(self.untuned), self._left()):
            self.outcome.grows = True
            return
        if self._tuning_fits():  # what is decided as written may still be improved
            self.outcome.rates, decided = RATES, False
            self.tuning = self._tuning_specs()
            self._execute(workers, self.tuning, f"tuning over {RATES} learning rates")
            chosen, specs, splits = self._choose(chosen), self.tuned, 0
        while splits < MOST and not decided:
            count = self._affordable(chosen, splits)
            if not count:
                self.outcome.ended = "time"
                break
            splits = self._stage(workers, chosen, specs, splits, count)
            decided = self._judge(on_stage)
        if decided:
            self.outcome.ended = "decided"
        self._control(workers, chosen, specs, on_stage)
        self._shrink(workers, on_stage)

    def _stage(self, workers: Workers, chosen: Mapping[Key, Trial], specs: list[Spec], splits: int, count: int) -> int:
        """Run some more splits; returns how many there are then."""
        new = range(splits, min(splits + count, MOST))
        what = "tuned" if self.tuning else "as written"
        places = f"split {new.stop}" if len(new) == 1 else f"splits {new.start + 1} to {new.stop}"
        self._compare(workers, chosen, specs, new, f"{what}, {places}")
        return new.stop

    @property
    def _first(self) -> int:
        """Splits of a stage in the first round."""
        return _TOGETHER if _TOGETHER in self.stages else 1

    def _affordable(self, chosen: Mapping[Key, Trial], splits: int) -> int:
        """How many splits to run next: a stage, or fewer if time is short; none if not half of the fewest would fit."""
        if not splits:
            return self._first
        left = max(self._left(), 0.0)
        smaller = self._smaller_cost()
        left -= smaller if smaller < _SHARES_BUDGET * left else 0.0
        for count in self.stages if splits >= ROUND else (self._first,):
            cost = self._cost(self._specs(chosen, range(splits, min(splits + count, MOST))))
            if cost <= (2 * left if count == self.stages[-1] else left):
                return count
        return 0

    def gather(self) -> SearchOutcome:
        """Look at what is done; every finished run counts, tuned ones as soon as most rows have two splits."""
        outcome = self.outcome
        outcome.tuned = self._mostly_tuned()
        # Either every row is reported as tuned or none; only what was dropped before tuning stays as it was then.
        specs = [*self.tuned, *self._dropped_as_written()] if outcome.tuned else self.untuned
        controls = plan.scale_controls(self.question, specs)
        outcome.runs = [run for run in map(self._run, [*specs, *controls]) if run.done]
        outcome.tuning = [run for run in map(self._run, self.tuning) if run.done]
        outcome.smaller = [run for run in map(self._run, self.smaller) if run.done]
        return outcome

    def _dropped_as_written(self) -> list[Spec]:
        """The runs of rows that were dropped before they could be tuned."""
        tuned = {(spec.column, spec.label) for spec in self.tuned}
        return [
            spec
            for spec in self.untuned
            if (key := (spec.column, spec.label)) in self.outcome.dropped and key not in tuned
        ]

    def _mostly_tuned(self) -> bool:
        """Whether plain training of every model, and half of the rows still in play, have two tuned splits."""
        tuned, untuned = (
            Counter((s.column, s.label) for s in specs if self._run(s).done) for specs in (self.tuned, self.untuned)
        )
        in_play = {key for key in untuned if key not in self.outcome.dropped and key not in self.outcome.failed}
        plain = [(column, plan.BASELINE) for column in {spec.column for spec in self.tuned}]
        judged = [key for key in in_play if tuned[key] >= 2]
        return bool(plain) and all(tuned[key] >= 2 for key in plain) and 2 * len(judged) >= len(in_play)

    def _judge(self, on_stage: Judge) -> bool:
        """Drop what cannot win; returns whether the best is decided beyond doubt."""
        results, decision = on_stage(self.gather())
        if decision is None:
            return False
        self._drop(results, decision)
        if decision.strength != "decided":
            return False
        rounds = decision.reference.splits // ROUND
        if decision.keeps_plain:
            return rounds in _LOOKS[1:]
        apart = decision.use.difference
        return rounds in _LOOKS and apart is not None and apart.decisive_p < stops_below(_LOOKS.index(rounds))

    def _drop(self, results: Results, decision: Decision) -> None:
        """Drop what is clearly worse than the best; models in play keep plain training and the declared row."""
        leader = decision.use if decision.strength == "decided" else (decision.best or decision.use)
        if decision.gain(leader) < 0:
            leader = decision.reference
        hopeless: dict[Key, int] = {}
        for action in decision.ranked:
            apart = None if action.key == leader.key else against(results, action.key, leader.key)
            worse = apart is not None and apart.conclusion(smallest=decision.smallest) == "worse"
            if worse and apart is not None and apart.n >= ROUND and apart.p < _HOPELESS:
                hopeless[action.key] = apart.n
        for column in self.question.table.columns:
            own = {action.key for action in decision.ranked if action.model == column.name}
            in_play = column.name in (leader.model, decision.reference.model) or not own <= set(hopeless)
            kept = {plan.BASELINE, self.question.table.primary, *self.derived.values()} if in_play else set[str]()
            for key in own & set(hopeless):
                if key[1] not in kept:
                    self.outcome.dropped.setdefault(key, hopeless[key])

    def _specs(self, chosen: Mapping[Key, Trial], seeds: range) -> list[Spec]:
        """The comparison on some splits, without controls and without rows that failed or were dropped."""
        table = self.question.table
        columns = tuple(dataclasses.replace(column, seeds=seeds.stop) for column in table.columns)
        question = dataclasses.replace(self.question, table=dataclasses.replace(table, columns=columns))
        left_out = {*self.outcome.failed, *self.outcome.dropped}
        specs = [s for s in plan.comparison(question, chosen) if s.seed in seeds and s.label not in plan.CONTROLS]
        specs = [s for s in specs if (s.column, s.label) not in left_out]
        order = {label: i for i, label in enumerate(table.methods)}
        # Plain training of every model first, then row by row: what the budget cuts off is what matters least.
        return sorted(specs, key=lambda s: (order.get(s.label, len(order)), s.seed))

    def _compare(
        self, workers: Workers, chosen: Mapping[Key, Trial], specs: list[Spec], seeds: range, title: str
    ) -> None:
        """Run some splits: plain training and what corrects its outputs, then everything else.

        Corrections cost next to nothing and often gain most where classes are rare: a short budget must not end before.
        """
        new = self._specs(chosen, seeds)
        specs += new
        trained = [s for s in new if (s.column, s.label) not in self.derived]
        plain = [s for s in trained if s.label == plan.BASELINE]
        others = [s for s in trained if s.label != plan.BASELINE]
        for part, what in ((plain, f"{title}, plain training"), (others, title)):
            if part:
                self._execute(workers, part, what)
                self._correct(workers, new, part, f"{title}, corrections")

    def _correct(self, workers: Workers, new: Sequence[Spec], trained: Sequence[Spec], title: str) -> None:
        """The corrections of those trainings that have finished."""
        done = {(s.column, s.label, s.seed) for s in trained if self._run(s).done}
        corrected = [s for s in new if (s.column, self.derived.get((s.column, s.label), ""), s.seed) in done]
        if corrected:
            self._execute(workers, corrected, title)

    def _control(self, workers: Workers, chosen: Mapping[Key, Trial], specs: Sequence[Spec], on_stage: Judge) -> None:
        """The scale controls of models that the declared row is better with: is it more than a larger step?"""
        table = self.question.table
        results, _ = on_stage(self.gather())
        gained = {
            column.name
            for column in results.columns
            if (column.name, table.primary) not in self.outcome.dropped
            and (d := against(results, (column.name, table.primary), (column.name, plan.BASELINE))) is not None
            and d.conclusion(smallest=table.smallest) == "better"
        }
        seeds = sorted({s.seed for s in specs if s.label == table.primary and self._run(s).done})
        if not gained or not seeds:
            return
        columns = tuple(dataclasses.replace(c, seeds=seeds[-1] + 1) for c in table.columns if c.name in gained)
        question = dataclasses.replace(self.question, table=dataclasses.replace(table, columns=columns))
        normalised = [s for s in plan.comparison(question, chosen) if s.label == plan.NORMALISED and s.seed in seeds]
        if self._cost(normalised) * 2 > self._left():
            return
        self.tuned += normalised if self.outcome.tuned else []
        self.untuned += [] if self.outcome.tuned else normalised
        pairs = [s for s in specs if s.column in gained and s.label in (plan.BASELINE, table.primary)]
        controls = plan.scale_controls(self.question, [*pairs, *normalised])
        self._execute(workers, normalised, "scale control: weights of mean one")
        self._execute(workers, controls, "scale control: plain training with larger steps")
        on_stage(self.gather())

    def _shrink(self, workers: Workers, on_stage: Judge) -> None:
        """The recommended action and plain training on shares of the training rows: would more rows change it?"""
        _, decision = on_stage(self.gather())
        shown = None if decision is None else decision.best if decision.keeps_plain else decision.use
        if decision is None or shown is None:
            return
        wanted = {shown.key, decision.reference.key}
        wanted |= {(model, self.derived[model, label]) for model, label in wanted if (model, label) in self.derived}
        runs = [run for run in self.outcome.runs if (run.spec.column, run.spec.label) in wanted]
        specs = [
            dataclasses.replace(run.spec, settings={**run.spec.settings, "train_share": share})
            for share in SHARES
            for run in runs
            if run.spec.seed < ROUND
        ]
        if self._cost(specs) > self._left():
            return
        self.smaller = specs
        trained = [s for s in specs if (s.column, s.label) not in self.derived]
        self._execute(workers, trained, "fewer training rows")
        self._execute(workers, [s for s in specs if s not in trained], "fewer training rows, corrections")
        on_stage(self.gather())

    def _smaller_cost(self) -> float:
        """Seconds that the trainings on fewer rows would take at most."""
        typical = self._typical()
        return 2 * ROUND * len(SHARES) * max(typical.values(), default=0.0) / self.jobs

    def _execute(self, workers: Workers, specs: Sequence[Spec], title: str) -> None:
        # Runs that are trained together are so again although some of them are done.
        for _ in self.prepare([] if all(self._run(spec).done for spec in specs) else specs):
            if self._left() < 0:
                raise OutOfTimeError(f"the time was over before: {title}")
        failures = execute(
            specs,
            self.root,
            workers=workers,
            display=self.display,
            title=title,
            deadline=self.deadline,
            clock=self.clock,
        )
        for failure in failures:
            self.outcome.failed[failure.spec.column, failure.spec.label] = failure.reason.strip().splitlines()[-1]

    def _tuning_specs(self) -> list[Spec]:
        """Every row's trials on some splits of their own; corrections follow the row they correct."""
        question = dataclasses.replace(self.question, table=dataclasses.replace(self.question.table, trials=RATES))
        left_out = {*self.outcome.failed, *self.outcome.dropped, *self.derived}
        specs = [s for s in plan.tuning(question) if (s.column, s.label) not in left_out]
        # The first split of other rounds than the comparison's: tuning never tests.
        first = plan.TUNING_SEED
        return [dataclasses.replace(s, seed=first + FOLDS * (s.seed - first)) for s in specs]

    def _choose(self, written: Mapping[Key, Trial]) -> dict[Key, Trial]:
        """The best trial of each row on validation rows, on average over its splits; ties go to the lower log-loss."""
        table = self.question.table
        trials: dict[Key, dict[Trial, list[tuple[float, float]]]] = {}
        for spec in self.tuning:
            run = self._run(spec)
            if run.done:
                record = run.records()[-1]
                trial = Trial(method=spec.method, lr=spec.settings["lr"])
                score = float(record.get(table.select, float("nan")))
                own = trials.setdefault((spec.column, spec.label), {}).setdefault(trial, [])
                own.append((-score if table.smallest else score, -float(record.get("val/loss", 0.0))))
        chosen = dict(written)
        splits = len({spec.seed for spec in self.tuning})
        for key, tried in trials.items():
            means = {t: np.mean(values, axis=0).tolist() for t, values in tried.items() if len(values) == splits}
            finite = {trial: mean for trial, mean in means.items() if np.isfinite(mean).all()}
            if finite:
                chosen[key] = max(finite, key=lambda trial: (round(finite[trial][0], 9), finite[trial][1]))
        for key, base in self.derived.items():
            source = chosen[key[0], base]
            post = method(self.question.table.row(key[1]).method).post
            chosen[key] = dataclasses.replace(source, method=str(dataclasses.replace(method(source.method), post=post)))
        return chosen

    def _tuning_fits(self) -> bool:
        """Whether tuning takes little enough of the time left; what is done already takes no time."""
        specs = self._tuning_specs()
        if all(self._run(spec).done for spec in specs):
            return True
        return self._cost(specs) <= _TUNING_SHARE * self._left()

    def _cost(self, specs: Iterable[Spec]) -> float:
        """Seconds that runs would take: as long as those of the same column did, those that are done nothing."""
        typical = self._typical()
        todo = [s for s in specs if (s.column, s.label) not in self.derived and not self._run(s).done]
        return sum(typical.get(spec.column, 0.0) for spec in todo) / self.jobs

    def _typical(self) -> dict[str, float]:
        """Seconds of a training by column."""
        seconds: dict[str, list[float]] = {}
        for spec in (*self.untuned, *self.tuned):
            if (spec.column, spec.label) not in self.derived and (run := self._run(spec)).done:
                seconds.setdefault(spec.column, []).append(float(run.summary()["seconds"]))
        return {column: sum(values) / len(values) for column, values in seconds.items()}

    def _taken(self, specs: Iterable[Spec]) -> float:
        """Seconds that finished runs took, when they were done."""
        runs = (self._run(s) for s in specs if (s.column, s.label) not in self.derived)
        return sum(float(run.summary()["seconds"]) for run in runs if run.done) / self.jobs

    def _left(self) -> float:
        return self.deadline - self.clock()

    def _run(self, spec: Spec) -> Run:
        return Run(spec, self.root)
