"""From a request to everything that answers it: the search, the answer, the page, the hardest rows and the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reweigh.bench.compare import files, folder, request, shared
from reweigh.bench.compare.actions import Decision
from reweigh.bench.compare.answer import Answer, caveats
from reweigh.bench.compare.files import Files
from reweigh.bench.compare.problem import Problem, load
from reweigh.bench.compare.request import Request
from reweigh.bench.compare.search import SearchOutcome, search
from reweigh.bench.lab.executors.local import Display
from reweigh.bench.lab.plan import Question
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.table import Table
from reweigh.bench.train import device as devices


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request whose data are read and whose question is checked."""

    request: Request
    problem: Problem
    question: Question
    root: Path

    @property
    def table(self) -> Table:
        """The table of the question."""
        return self.question.table


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search came to; there is no answer where too little has finished."""

    prepared: Prepared
    outcome: SearchOutcome
    results: Results
    answer: Answer | None

    @property
    def warnings(self) -> list[str]:
        """What a reader should know about the answer."""
        return [] if self.answer is None else caveats(self.answer, self.prepared.table, self.outcome)


def prepare(given: Request, progress: Callable[[float], None] = lambda share: None) -> Prepared:
    """Read the data and check the question; what does not fit is refused before anything runs.

    A frozen network looking at photos or texts for the first time reports its `progress` as a share.
    """
    problem = load(given.question)
    question = request.question(given, problem, progress)
    root = given.folder(question.table.metric)
    root.mkdir(parents=True, exist_ok=True)
    return Prepared(request=given, problem=problem, question=question, root=root)


def run(
    prepared: Prepared,
    display: Display,
    on_answer: Callable[[Answer], None],
    *,
    clock: Callable[[], float] | None = None,
) -> Searched:
    """Search until the budget runs out or the answer is decided; `on_answer` is called with each answer on the way.

    `clock` is what counts the seconds of the budget, the time of day unless given.
    """
    given, root = prepared.request, prepared.root

    def on_stage(outcome: SearchOutcome) -> tuple[Results, Decision | None]:
        results, answer = folder.save(root, prepared.table, outcome, prepared.problem, jobs=given.jobs)
        if answer is None:
            return results, None
        on_answer(answer)
        return results, answer.decision

    outcome = search(
        prepared.question,
        root,
        jobs=given.jobs,
        budget=given.budget,
        display=display,
        on_stage=on_stage,
        device=given.device,
        clock=clock,
    )
    shared.remove(root)
    results, answer = folder.save(root, prepared.table, outcome, prepared.problem, jobs=given.jobs)
    return Searched(prepared=prepared, outcome=outcome, results=results, answer=answer)


def write(searched: Searched, *, progress: Callable[[float], None]) -> Files:
    """Write the page, the hardest rows and the model; training that model reports its `progress` as a share."""
    prepared = searched.prepared
    assert searched.answer is not None
    devices.use(prepared.request.device)  # the model to keep is trained in this process
    return files.write(
        prepared.root,
        prepared.problem,
        prepared.table,
        searched.outcome,
        searched.results,
        searched.answer,
        searched.warnings,
        progress=progress,
    )
