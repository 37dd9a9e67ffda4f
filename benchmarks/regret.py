"""What does it cost to follow `reweigh compare`? Its advice after some seconds against the best action known.

    nice python benchmarks/regret.py [--quick] [--tables pima,car] [--budgets 30,120,600] [--rounds 4]

Each table is asked about once, and the search resumed with each larger budget, as a user would. Seconds are those of
one processor (`ProcessorClock`): the search trains one process at a time, and every second it or its process computes
counts, so that the numbers do not depend on what else the machine does. Two free cores do the same in little more than
half the time.

Then every action, all methods of all models as written and as any of these searches tuned them, is trained on five
further splits, whose folds none of the searches saw, and those that were advised or are among the best `--best` on more
rounds of five. Regret is the mean balanced accuracy of the best of them less that of the action advised, in points. The
best of several means is flattered by chance: it is chosen on the first half of these splits, and regret is measured on
the second, where it may be negative. What the best of all splits would give, which is too large, is kept beside it.

What is finished is kept in the folder `--work`, and the same command resumes. The tables are those of the catalogue's
`keel`; the rule behind the verdicts was chosen on others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _timing import table, write
from rich.console import Console

from reweigh.bench.catalogue.tables.keel import TABLES
from reweigh.bench.compare import answering
from reweigh.bench.compare.answering import Prepared
from reweigh.bench.compare.request import Request, data_question
from reweigh.bench.compare.splits import FOLDS
from reweigh.bench.files import write_atomically
from reweigh.bench.lab import plan
from reweigh.bench.lab.display import RunDisplay
from reweigh.bench.lab.executors.local import Workers, execute
from reweigh.bench.lab.plan import Question, Trial
from reweigh.bench.lab.runs import Run, Spec
from reweigh.method import method

#: The first seed of the splits that tell the truth: searches use those from 0 on, and tuning others.
FIRST = 50_000 * FOLDS

#: A model, a row, and what it was trained with: the method as text and the learning rate.
Action = tuple[str, str, str, float]


class ProcessorClock:
    """Seconds of processor time of this process and of the processes that it started, ended ones included.

    What a new process imports before its first run is counted as well.
    """

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def __call__(self) -> float:
        for child in multiprocessing.active_children():
            if child.pid is not None:
                self._seen[child.pid] = max(self._seen.get(child.pid, 0.0), _processor_seconds(child.pid))
        return time.process_time() + sum(self._seen.values())


def _processor_seconds(pid: int) -> float:
    """User and system time of a process, all its threads together; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(source: str, budget: float, spent: float, work: Path) -> dict[str, Any]:
    """What `compare` advises after so many seconds, `spent` of which an earlier call has used, and what it trained."""
    kept = work / f"advice-{budget:g}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    request = Request(question=data_question(source), budget=budget - spent, jobs=1, runs_dir=work / "runs")
    clock = ProcessorClock()
    prepared = answering.prepare(request)
    started = clock()
    with RunDisplay(Console(quiet=True), prepared.table.metric) as display:
        searched = answering.run(prepared, display, lambda answer, problem: None, clock=clock)
    # Plain training as written, of the first model, is what is used where there is no answer.
    first = (prepared.table.columns[0].name, plan.BASELINE)
    written = plan.as_written(prepared.question)
    trained: dict[tuple[str, str], Action] = {first: (*first, written[first].method, written[first].lr)}
    for spec in (run.spec for run in searched.outcome.runs):
        if spec.label not in plan.CONTROLS:
            trained[spec.column, spec.label] = (spec.column, spec.label, spec.method, spec.settings["lr"])
    answer = searched.answer
    advice = {
        "strength": "none" if answer is None else answer.strength,
        "use": list(trained[first if answer is None else (answer.model, answer.row)]),
        "headline": "" if answer is None else answer.headline,
        "trained": [list(action) for action in trained.values()],
        "ended": searched.outcome.ended,
        "tuned": searched.outcome.tuned,
        "splits": 0 if answer is None else answer.decision.reference.splits,
        "seconds": spent + clock() - started,
    }
    write_atomically(kept, json.dumps(advice, indent=1))
    return advice


def truth(
    source: str, tuned: Collection[Action], advised: Collection[Action], work: Path, *, rounds: int, best: int
) -> dict[Action, list[float]]:
    """The balanced accuracy of every action on five further splits, and of those advised and the best on more."""
    prepared = answering.prepare(Request(question=data_question(source), jobs=1, runs_dir=work / "runs"))
    written = {(*key, trial.method, trial.lr) for key, trial in plan.as_written(prepared.question).items()}
    scores = _measured(prepared, sorted({*tuned, *written}), range(FOLDS))
    ranked = sorted(scores, key=lambda action: -float(np.mean(scores[action])))
    more = _measured(prepared, sorted({*ranked[:best], *advised}), range(FOLDS, rounds * FOLDS))
    return {action: scores[action] + more[action] for action in more} | {
        action: own for action, own in scores.items() if action not in more
    }


def _measured(prepared: Prepared, actions: Iterable[Action], seeds: range) -> dict[Action, list[float]]:
    """The metric of each action on some of the further splits."""
    question = prepared.question
    wanted = {action: [_spec(question, action, seed) for seed in seeds] for action in actions}
    every = {spec.id: spec for specs in wanted.values() for spec in specs}.values()
    # A correction is computed from the outputs of the training that it corrects, which may not be an action itself.
    corrections = [spec for spec in every if spec.settings.get("base")]
    bases = [_base(spec) for spec in corrections]
    trained = {spec.id: spec for spec in (*every, *bases) if not spec.settings.get("base")}
    with Workers(1) as workers, RunDisplay(Console(quiet=True), question.table.metric) as display:
        for specs in (list(trained.values()), corrections):
            failures = execute(specs, prepared.root, workers=workers, display=display, title="truth")
            if failures:
                raise RuntimeError(f"{failures[0].spec.label} failed: {failures[0].reason}")
    metric = question.table.metric
    return {
        action: [float(Run(spec, prepared.root).records()[-1][metric]) for spec in specs]
        for action, specs in wanted.items()
    }


def _spec(question: Question, action: Action, seed: int) -> Spec:
    """The run of an action on one of the further splits."""
    model, label, text, lr = action
    columns = tuple(dataclasses.replace(column, seeds=1) for column in question.table.columns)
    one = dataclasses.replace(question, table=dataclasses.replace(question.table, columns=columns))
    planned = plan.comparison(one, {(model, label): Trial(method=text, lr=lr)})
    return dataclasses.replace(next(spec for spec in planned if spec.label == label), seed=FIRST + seed)


def _base(spec: Spec) -> Spec:
    """The training whose outputs a run corrects."""
    plain = dataclasses.replace(method(spec.method), post=None)
    return dataclasses.replace(
        spec, label=spec.settings["base"], method=str(plain), settings={**spec.settings, "base": ""}
    )


def measure(name: str, work: Path, budgets: Sequence[int], *, rounds: int, best: int) -> dict[str, Any]:
    """Advice after each budget on one table, and what following it costs."""
    kept = work / f"regret-{'-'.join(map(str, budgets))}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    source = name if name == "digits" else f"keel:table={name}"
    advice: dict[int, dict[str, Any]] = {}
    spent = 0.0
    for budget in budgets:
        advice[budget] = ask(source, budget, min(spent, budget - 1.0), work)
        spent = advice[budget]["seconds"]
    actions: set[Action] = {tuple(action) for found in advice.values() for action in found["trained"]}
    advised: set[Action] = {tuple(found["use"]) for found in advice.values()}
    scores = truth(source, actions, advised, work, rounds=rounds, best=best)
    measured = {"table": name, **regrets(scores, advice)}
    write_atomically(kept, json.dumps(measured, indent=1))
    return measured


def regrets(scores: Mapping[Action, Sequence[float]], advice: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The best action, and for each budget what its advice loses against it, in points of the metric.

    All that was advised has every split, so that it can be compared on the second half.
    """
    most = max(map(len, scores.values()))
    means = {action: float(np.mean(values)) for action, values in scores.items()}
    finalists = {action: np.asarray(values) for action, values in scores.items() if len(values) == most}
    chosen = max(finalists, key=lambda action: finalists[action][: most // 2].mean())
    best = max(finalists, key=lambda action: means[action])
    # Plain training of some models has the first five splits alone: it is compared with the best on those.
    first = {action: float(np.mean(values[:FOLDS])) for action, values in scores.items()}
    plain = max(
        means[action] if len(scores[action]) == most else means[best] - first[best] + first[action]
        for action in scores
        if action[1] == plan.BASELINE
    )
    return {
        "best": list(chosen),
        "best_mean": 100 * means[chosen],
        "plain_mean": 100 * plain,
        "actions": len(means),
        "splits": len(scores[best]),
        "budgets": {
            str(budget): {
                **{key: found[key] for key in ("strength", "use", "ended", "tuned", "splits", "seconds")},
                "regret": 100 * float((finalists[chosen] - finalists[tuple(found["use"])])[most // 2 :].mean()),
                "flattered": 100 * (means[best] - means[tuple(found["use"])]),
                "gain": 100 * (means[tuple(found["use"])] - plain),
            }
            for budget, found in advice.items()
        },
    }


def lines(results: Sequence[Mapping[str, Any]], budgets: Sequence[int]) -> list[list[str]]:
    """A line for each table, and one with means and maxima."""
    shown: list[list[str]] = []
    for found in results:
        cells = [found["table"], f"{found['plain_mean']:.1f}", f"{found['best_mean']:.1f}", " ".join(found["best"][:2])]
        for budget in budgets:
            own = found["budgets"][str(budget)]
            cells += [f"{own['strength']}: {' '.join(own['use'][:2])}", f"{own['regret']:.1f}", f"{own['seconds']:.0f}"]
        shown.append(cells)
    if results:
        summary = [f"mean (max) of {len(results)}", "", "", ""]
        for budget in budgets:
            own = [found["budgets"][str(budget)]["regret"] for found in results]
            summary += ["", f"{np.mean(own):.1f} ({np.max(own):.1f})", ""]
        shown.append(summary)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the embedded digits: checks that it runs")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--budgets", default="30,120")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of five folds that tell the truth")
    parser.add_argument("--best", type=int, default=8, help="actions that all rounds are run for")
    parser.add_argument("--work", type=Path, default=Path("runs") / "regret")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "regret.json")
    options = parser.parse_args()
    names, budgets, rounds = options.tables.split(","), [int(b) for b in options.budgets.split(",")], options.rounds
    if options.quick:
        names, budgets, rounds = ["digits"], [20], 1
    heads = ["table", "plain", "best", "best action"]
    for budget in budgets:
        heads += [f"advice after {budget} s", "regret", "seconds"]
    results: list[dict[str, Any]] = []
    for name in names:
        results.append(measure(name, options.work / name, budgets, rounds=rounds, best=options.best))
        Console(width=200).print(table("Regret, points of balanced accuracy", heads, lines(results, budgets)))
        write(options.out, ["torch", "lightgbm", "scikit-learn"], {"budgets": budgets, "results": results})


if __name__ == "__main__":
    main()
