"""What the scores of a problem depend on: classes that can be judged, the positive class, and costs."""

from __future__ import annotations

import dataclasses

import numpy as np

from reweigh.bench import tables
from reweigh.bench.compare.problem import Problem
from reweigh.bench.errors import UserError
from reweigh.bench.train.scores import ScoringRules

#: A class with fewer rows than this to test on cannot be judged.
_LEAST_TESTED = 10


def with_scoring_rules(problem: Problem, cost: str, positive_class: str) -> Problem:
    """The problem with what its scores depend on, and notes about it."""
    costs = costs_of(cost)
    for name, value in (("cost", cost), ("positive", positive_class)):
        if value and len(problem.classes) != 2:
            raise UserError(f"`--{name}` is for two classes, and the target is {problem.kind}. Leave it out.")
    labels = problem.labels
    if labels is None:
        return problem
    notes: list[str] = []
    counts = np.bincount(
        labels if problem.test_rows is None else labels[problem.test_rows], minlength=len(problem.classes)
    )
    counted = counts >= _LEAST_TESTED
    if not counted.all():
        rare = tables.listed([problem.classes[k] for k in np.flatnonzero(~counted)])
        noun, verb = ("The class", "has") if int((~counted).sum()) == 1 else ("The classes", "have")
        few = f"{noun} {rare} {verb} fewer than {_LEAST_TESTED} rows to test on"
        if counted.sum() >= 2:
            notes.append(f"{few} and cannot be judged: left out of balanced accuracy and of the worst class.")
        else:
            notes.append(f"{few}: every score rests on these few rows.")
            counted[:] = True
    positive = 1
    if len(problem.classes) == 2:
        positive, note = _positive(problem, positive_class)
        notes.append(note)
    if costs is not None:
        name = tables.quoted(problem.classes[positive])
        notes.append(f"A false {name} costs {costs[0]:g}, a missed one {costs[1]:g} (`--cost`).")
    judging = ScoringRules(counted=None if counted.all() else tuple(counted.tolist()), positive=positive, costs=costs)
    return dataclasses.replace(problem, judging=judging, notes=(*problem.notes, *notes))


def costs_of(text: str) -> tuple[float, float] | None:
    """What a false positive and a false negative cost, from a text such as `fp=1,fn=20`.

    Examples
    --------
    >>> costs_of("fp=1, fn=20")
    (1.0, 20.0)
    """
    if not text:
        return None
    pairs = [part.partition("=") for part in text.replace(" ", "").lower().split(",")]
    try:
        given = {name: float(value) for name, _, value in pairs}
    except ValueError:
        given = {}
    if set(given) != {"fp", "fn"} or not all(0 < value < float("inf") for value in given.values()):
        raise UserError(
            f'`--cost` must give what a false positive and a false negative cost, such as "fp=1,fn=20", got {text!r}.'
        )
    return given["fp"], given["fn"]


def _positive(problem: Problem, given: str) -> tuple[int, str]:
    """Which of two classes is the positive one, and why: as given, or the rarer one, or the second of two as rare."""
    if given and given not in problem.classes:
        names = " or ".join(map(tables.quoted, problem.classes))
        raise UserError(f"`--positive` must be one of the two classes, {names}, got {given!r}.")
    first, second = problem.class_counts
    positive = problem.classes.index(given) if given else int(first >= second)
    why = "as given" if given else "the rarer class" if first != second else "the second of two as frequent"
    name = tables.quoted(problem.classes[positive])
    return positive, f"Precision, recall, F1 and cost are about {name}, {why} (`--positive`)."
