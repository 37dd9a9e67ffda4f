"""From a request to everything that answers it: the search, the answer, the page, the hardest rows and the model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reweigh.bench.compare import files, folder, recipe, request, sample, shared, tasks
from reweigh.bench.compare.actions import Decision
from reweigh.bench.compare.answer import Answer, caveats
from reweigh.bench.compare.files import Files
from reweigh.bench.compare.problem import Problem
from reweigh.bench.compare.reading import load
from reweigh.bench.compare.request import Request
from reweigh.bench.compare.search import SearchOutcome, search
from reweigh.bench.lab.executors.local import Display, settings_of
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.runs import Spec
from reweigh.bench.lab.table import Table
from reweigh.bench.train import device as devices

#: The largest share of the time left that a first round on a larger sample may be expected to take.
_GROWING_SHARE = 0.6


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request whose data are read and whose question is checked.

    `problem` holds all rows. Of a large table, `sizes` are the samples to compare on one after the other, and
    `question` is that about the first.
    """

    request: Request
    problem: Problem
    question: Question
    root: Path
    sizes: tuple[int, ...] = (0,)

    @property
    def table(self) -> Table:
        """The table of the question."""
        return self.question.table


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search came to, on all rows or a sample; there is no answer where too little has finished."""

    prepared: Prepared
    problem: Problem
    table: Table
    outcome: SearchOutcome
    results: Results
    answer: Answer | None

    @property
    def warnings(self) -> list[str]:
        """What a reader should know about the answer."""
        if self.answer is None:
            return []
        about = [
            f"Compared on {sample.about(self.problem)}, on which the model was trained too. A larger --budget compares "
            "on more rows."
        ]
        return [*(about if self.problem.sampled_from else []), *caveats(self.answer, self.table, self.outcome)]


def prepare(given: Request, progress: Callable[[float], None] = lambda share: None) -> Prepared:
    """Read the data and check the question; what does not fit is refused before anything runs.

    A frozen network looking at photos or texts for the first time reports its `progress` as a share.
    """
    problem = load(given.question)
    sizes = sample.sizes(problem)
    question = request.question(given, sample.sampled(problem, sizes[0]), progress)
    root = given.folder(question.table.metric)
    root.mkdir(parents=True, exist_ok=True)
    return Prepared(request=given, problem=problem, question=question, root=root, sizes=sizes)


def run(
    prepared: Prepared,
    display: Display,
    on_answer: Callable[[Answer, Problem], None],
    *,
    clock: Callable[[], float] | None = None,
) -> Searched:
    """Search until the budget runs out or the answer is decided; `on_answer` is called with each answer on the way.

    `clock` is what counts the seconds of the budget, the time of day unless given. A large table is searched on a
    sample, and on a larger one as soon as a first round on it should fit into the time left. An answer rests on the
    largest sample on which every row had its first round.
    """
    clock = clock or time.monotonic
    started, question = clock(), prepared.question
    best: Searched | None = None
    try:
        for size, larger in zip(prepared.sizes, [*prepared.sizes[1:], None], strict=True):
            problem = sample.sampled(prepared.problem, size)
            if best is not None:
                question = request.question(prepared.request, problem)
            left = prepared.request.budget - (clock() - started)
            more = None if larger is None else (larger or prepared.problem.rows) / problem.rows
            searched = _searched(prepared, problem, question, left, more, display, on_answer, clock)
            if best is None or searched.outcome.first_round:
                best = searched
            else:  # too little of the larger sample has finished
                best.outcome.ended = searched.outcome.ended
            best.outcome.seconds = clock() - started
            if not searched.outcome.grows:
                break
    finally:
        shared.remove(prepared.root)
    assert best is not None
    results, answer = folder.save(prepared.root, best.table, best.outcome, best.problem, jobs=prepared.request.jobs)
    return dataclasses.replace(best, results=results, answer=answer)


def _searched(
    prepared: Prepared,
    problem: Problem,
    question: Question,
    budget: float,
    more: float | None,
    display: Display,
    on_answer: Callable[[Answer, Problem], None],
    clock: Callable[[], float],
) -> Searched:
    """Search on these rows; `more` is how many times as many rows come next, if any do."""
    given, root, table = prepared.request, prepared.root, question.table
    splits = shared.SharedSplits(root / shared.FOLDER)

    def on_stage(outcome: SearchOutcome) -> tuple[Results, Decision | None]:
        results, answer = folder.save(root, table, outcome, problem, jobs=given.jobs)
        if answer is None:
            return results, None
        on_answer(answer, problem)
        return results, answer.decision

    def encode(specs: Sequence[Spec]) -> Iterable[None]:
        wanted = (settings_of(recipe.Settings, spec).split(spec.seed) for spec in specs)
        return tasks.share(wanted, problem, splits)

    outcome = search(
        question,
        root,
        jobs=given.jobs,
        budget=budget,
        display=display,
        on_stage=on_stage,
        device=given.device,
        clock=clock,
        prepare=encode,
        grow=lambda seconds, left: more is not None and more * seconds < _GROWING_SHARE * left,
    )
    results, answer = folder.save(root, table, outcome, problem, jobs=given.jobs)
    return Searched(prepared=prepared, problem=problem, table=table, outcome=outcome, results=results, answer=answer)


def write(searched: Searched, *, progress: Callable[[float], None]) -> Files:
    """Write the page, the hardest rows and the model; training that model reports its `progress` as a share."""
    assert searched.answer is not None
    devices.use(searched.prepared.request.device)  # the model to keep is trained in this process
    return files.write(
        searched.prepared.root,
        searched.problem,
        searched.table,
        searched.outcome,
        searched.results,
        searched.answer,
        searched.warnings,
        progress=progress,
    )
