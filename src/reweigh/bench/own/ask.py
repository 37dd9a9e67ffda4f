"""A comparison of the user's own training: probe, tune every method alike, compare on paired seeds, control scale."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reweigh.bench.errors import UserError
from reweigh.bench.lab import plan
from reweigh.bench.lab.executors.children import Children, InProcess
from reweigh.bench.lab.executors.local import Display, Ended, Executor, Failure, OutOfTimeError, execute
from reweigh.bench.lab.intervals import alpha_of_look
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.lab.table import Column, Table
from reweigh.bench.own import folder
from reweigh.bench.own.recipe import FINDINGS, NAME, Settings, TrainingError
from reweigh.bench.own.result import Comparison
from reweigh.method import method

#: The name of the one column.
_COLUMN = "your training"
#: Words of a score's name that say that less is better.
_LESS_IS_BETTER = ("loss", "error", "perplexity", "nll", "rmse", "mse", "mae", "brier", "regret")
#: Seeds after which a decision is looked for, as a share of all; the last look is at all of them.
_FIRST_LOOK = 0.5


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What is asked about a training, with everything checked; `budget` is in seconds."""

    source: str
    fingerprint: str
    methods: tuple[str, ...]
    metric: str
    select: str
    root: Path
    seeds: int = 10
    tune: int = 3
    budget: float = math.inf
    jobs: int = 1
    smallest: bool | None = None
    base_lr: float = 1.0
    device: str | None = None
    executor: Literal["local", "ray", "slurm"] = "local"
    slurm: str = ""
    title: str = "Your training"
    #: Where seeds are splits of one data set: test rows over training rows.
    overlap: float = 0.0
    column: str = _COLUMN

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise UserError(f"`seeds` must be at least 2, got {self.seeds}: one pair shows nothing.")
        if self.tune < 1:
            raise UserError(f"`tune` must be at least 1, got {self.tune}.")
        if self.jobs < 0:
            raise UserError(f"`jobs` must be at least 0, got {self.jobs}. 0 runs everything in this process.")
        _check_scores(self.metric, self.select)

    def question(self) -> Question:
        """The question for the plan."""
        rows = _rows(self.methods)
        settings = Settings(
            source=self.source,
            fingerprint=self.fingerprint,
            base_lr=self.base_lr,
            metric=self.metric,
            select=self.select,
            device=self.device,
            tuned=self.tune > 1,
        )
        smallest = less_is_better(self.metric) if self.smallest is None else self.smallest
        table = Table(
            title=self.title,
            question="Does re-weighting help in this training?",
            columns=(Column(name=self.column, settings={}),),
            methods=rows,
            metric=self.metric,
            metric_name=self.metric,
            select=self.select,
            epoch="best",  # whether the user's learning rate is annealed is not known
            primary=rows[1],
            seeds=self.seeds,
            trials=self.tune,
            smallest=smallest,
            overlap=self.overlap,
        )
        return Question(recipe=NAME, table=table, settings=dataclasses.asdict(settings))


def compare(request: TrainingRequest, display: Display) -> Comparison:
    """Do all runs that the budget allows, and return the result; finished runs are not repeated."""
    question = request.question()
    stages = _Stages(request, question, display)
    ended: Ended = "finished"
    try:
        with _executor(request) as executor:
            ended = stages.run(executor)
    except OutOfTimeError:
        ended = "time"
    except KeyboardInterrupt:
        ended = "interrupted"
    return stages.comparison(ended)


def less_is_better(metric: str) -> bool:
    """Whether a score's name says that less is better.

    Examples
    --------
    >>> less_is_better("test/loss"), less_is_better("test/accuracy")
    (True, False)
    """
    return any(word in metric.lower().replace("\\", "/").rpartition("/")[2] for word in _LESS_IS_BETTER)


class _Stages:
    def __init__(self, request: TrainingRequest, question: Question, display: Display) -> None:
        self.request, self.question, self.display = request, question, display
        self.deadline = time.monotonic() + request.budget
        self.failures: list[Failure] = []
        self.tuning: list[Spec] = []
        self.final: list[Spec] = []
        #: Seeds after which a decision is looked for.
        self.looks = sorted({max(2, round(request.seeds * _FIRST_LOOK)), request.seeds})

    def run(self, executor: Executor) -> Ended:
        """Stage by stage; returns how it ended."""
        self._probe(executor)
        if self.request.tune > 1:
            self.tuning = plan.tuning(self.question)
            self._execute(executor, self.tuning, f"tuning over {self.request.tune} learning rates")
        chosen = plan.choose(self.question, self.tuning, self.request.root)
        everything = plan.comparison(self.question, chosen)
        for i, seeds in enumerate(self.looks):
            specs = [spec for spec in everything if spec.seed < seeds]
            self.final = specs  # what is done of them counts, also when time runs out in the middle
            self._execute(executor, specs, f"comparison, {seeds} seeds")
            controls = [spec for spec in plan.scale_controls(self.question, specs) if self._has_weights(spec)]
            self.final = specs + controls
            self._execute(executor, controls, f"scale control, {seeds} seeds")
            self._refuse_equal_rows()
            if seeds < self.request.seeds and self._decided(alpha_of_look(i, len(self.looks))):
                return "decided"
        return "finished"

    def comparison(self, ended: Ended) -> Comparison:
        """The verdict on the runs that are done."""
        # Unless it decided, the look that is taken when time runs out is the last one: none before it spent anything.
        alpha = alpha_of_look(0 if ended == "decided" else len(self.looks) - 1, len(self.looks))
        specs = (*self.tuning, *self.final)
        results = folder.write(self.request.root, self.question.table, specs, alpha)
        runs = [Run(spec, self.request.root) for spec in specs]
        return Comparison(
            results=results,
            root=self.request.root,
            ended=ended,
            failures=tuple(self.failures),
            findings=_findings(runs, self.question.table.primary),
        )

    def _probe(self, executor: Executor) -> None:
        """Three short looks before hours are spent: does the training use its seed and its method?"""
        specs = [
            spec
            for spec in plan.comparison(self.question, plan.as_written(self.question))
            if (spec.label, spec.seed) in {(plan.BASELINE, 0), (plan.BASELINE, 1), (self.question.table.primary, 0)}
        ]
        failures = execute(
            specs,
            self.request.root,
            workers=executor,
            display=self.display,
            title="is the training fit to be compared?",
            deadline=self.deadline,
        )
        for failure in failures:
            if refusal := _refusal(failure.reason):
                raise TrainingError(refusal)
        if len(failures) == len(specs):
            raise TrainingError(f"every training failed, the first with:\n{failures[0].reason.strip()}")
        first, second = (self._scores(spec) for spec in specs if spec.label == plan.BASELINE)
        if first and first == second:
            raise TrainingError(
                f"seeds 0 and 1 give the same scores, {first[-1][self.request.metric]!r} in {self.request.metric}: the "
                "training ignores `run.seed`. Seed the data order and the initial parameters with it, as in "
                "torch.manual_seed(run.seed)."
            )

    def _refuse_equal_rows(self) -> None:
        """A method whose scores are those of plain training to the last digit, in all there is, was not used."""
        plain = {spec.seed: spec for spec in self.final if spec.label == plan.BASELINE}
        for label in self.question.table.methods[1:]:
            if method(label) == method(plan.BASELINE):
                continue
            pairs = [
                (self._scores(spec), self._scores(plain[spec.seed]))
                for spec in self.final
                if spec.label == label and spec.seed in plain and spec.settings == plain[spec.seed].settings
            ]
            # Accuracies of a few rows may be equal by chance, on two seeds even.
            if len(pairs) >= 3 and all(ours and ours == theirs for ours, theirs in pairs):
                raise TrainingError(
                    f"{label} scores exactly what plain training scores on {len(pairs)} seeds: the training never "
                    "uses the method it is given. Train with the criterion that `run.criterion(...)` returns."
                )

    def _decided(self, alpha: float) -> bool:
        """Whether the primary comparison is decided by a look that may spend `alpha`."""
        table = self.question.table
        results = folder.at_look(table, [Run(spec, self.request.root) for spec in self.final], alpha)
        difference = results.columns[0].differences.get(table.primary) if results.columns else None
        return difference is not None and difference.conclusion(smallest=table.smallest) in ("better", "worse")

    def _execute(self, executor: Executor, specs: Sequence[Spec], title: str) -> None:
        if not specs:
            return
        failed = {failure.spec.id for failure in self.failures}
        wanted = [spec for spec in specs if spec.id not in failed]
        self.failures += execute(
            wanted, self.request.root, workers=executor, display=self.display, title=title, deadline=self.deadline
        )

    def _has_weights(self, spec: Spec) -> bool:
        source = self.request.root / NAME / str(spec.scale_from)
        return (source / "arrays" / "mean_weight.npy").exists()

    def _scores(self, spec: Spec) -> list[dict[str, Any]]:
        """All scores of a run that is done; those under `run/` are about the weights."""
        run = Run(spec, self.request.root)
        records = run.records() if run.done else []
        return [{key: value for key, value in record.items() if not key.startswith("run/")} for record in records]


def _executor(request: TrainingRequest) -> AbstractContextManager[Executor]:
    if request.executor == "slurm":
        from reweigh.bench.lab.executors.slurm import SlurmWorkers

        return SlurmWorkers(request.jobs, request.root, options=request.slurm)
    if request.executor == "ray":
        from reweigh.bench.lab.executors.ray import RayWorkers

        return RayWorkers(request.jobs)
    return Children(request.jobs) if request.jobs else InProcess()


def _rows(methods: Sequence[str]) -> tuple[str, ...]:
    others = [text for text in dict.fromkeys(methods) if text != plan.BASELINE]
    if not others:
        raise UserError("`methods` must name a method other than mean, which all are compared with.")
    for text in others:
        method(text)  # a misspelt one is refused before anything runs
    return (plan.BASELINE, *others)


def _check_scores(metric: str, select: str) -> None:
    """Refuse a choice by the score that is reported, and a report of the score that chooses."""
    if not metric:
        raise UserError("`metric` must name the score to judge by, such as 'test/accuracy'.")
    if metric == select or not select:
        raise UserError(
            f"`select` must name a validation score that chooses epochs and settings, got {select or metric!r}: chosen "
            "by the score that is reported, every method looks better than it is. Report 'val/...' and 'test/...' "
            "scores."
        )
    if _part(select) == "test":
        raise UserError(f"`select` must be a validation score, got {select!r}, which is named as a test score.")
    if _part(metric) in ("val", "valid", "validation", "dev", "train"):
        raise UserError(f"`metric` must be a test score, got {metric!r}, which chooses epochs and settings elsewhere.")


def _part(score: str) -> str:
    return score.replace("_", "/").replace(".", "/").partition("/")[0].lower()


def _refusal(reason: str) -> str:
    """The message of a `TrainingError` at the end of a traceback; empty for other errors."""
    marker = f"{TrainingError.__name__}: "
    line = reason.strip().rpartition("\n")[2]
    return line.partition(marker)[2] if marker in line else ""


def _findings(runs: Sequence[Run], primary: str) -> tuple[str, ...]:
    """What the weights of the primary row did in most of its runs: saturated, or never active."""
    counts: dict[str, int] = {}
    mine = [run for run in runs if run.spec.label == primary and run.spec.stage == "final" and run.done]
    for run in mine:
        for finding in run.records()[-1].get(FINDINGS, ()):
            kind = finding.partition(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
    texts = {f.partition(":")[0]: f for run in mine for f in run.records()[-1].get(FINDINGS, ())}
    return tuple(texts[kind] for kind, count in counts.items() if 2 * count > len(mine))
