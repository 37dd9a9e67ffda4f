"""Verdicts in words: the comparison declared beforehand, and its scale controls."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Results
from reweigh.bench.lab.stats import Difference, Finding
from reweigh.bench.report.numbers import Unit, unit_of

BASELINE_NAME = "plain training"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """The verdict of one column on the primary row.

    `paper` is the paper's own difference, if it has one, and `remark` says whether the interval
    excludes it and how likely it was to be seen.
    """

    column: str
    conclusion: Finding
    text: str
    paper: float | None = None
    remark: str = ""
    stand_in: str | None = None


@dataclass(frozen=True, kw_only=True)
class Control:
    """One column's answer to "is it more than a larger step?": three differences to plain training, and one more.

    `beyond` is the primary row against plain training at the same mean weight.
    """

    column: str
    primary: Difference | None
    normalised: Difference | None
    scaled: Difference | None
    beyond: Difference | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer of a whole experiment."""

    headline: str
    scale: Sequence[str]
    sentences: Sequence[Sentence]
    controls: Sequence[Control]


def verdict(results: Results) -> Verdict:
    """Everything a reader should know first."""
    controls = [_control(results, column) for column in results.columns]
    return Verdict(
        headline=_headline(results),
        scale=_scale(results, controls),
        sentences=sentences(results),
        controls=[c for c in controls if c.normalised or c.scaled],
    )


def sentences(results: Results) -> list[Sentence]:
    """One sentence per column: the declared comparison, or why there is none."""
    unit = unit_of(results)
    return [_sentence(results, column, unit) for column in results.columns]


def _sentence(results: Results, column: ColumnResults, unit: Unit) -> Sentence:
    table, name = results.table, column.name
    difference = column.differences.get(table.primary)
    if difference is None:
        missing = [label for label in (table.primary, plan.BASELINE) if label not in column.rows]
        reason = f"{' and '.join(missing)} not finished" if missing else "a run diverged or no seed is shared"
        return Sentence(column=name, conclusion="too few pairs", text=f"No verdict: {reason}.")
    ours, theirs = column.column.paper.get(table.primary), column.column.paper.get(plan.BASELINE)
    paper = None if ours is None or theirs is None else ours - theirs
    gain = paper / unit.scale if paper else _smallest_that_matters(column, unit)
    return Sentence(
        column=name,
        conclusion=difference.conclusion(smallest=table.smallest, gain=gain),
        text=compared(
            difference, table.primary, BASELINE_NAME, table.metric_name, unit, smallest=table.smallest, gain=gain
        ),
        paper=paper,
        remark=_remark(difference, gain, unit, of_paper=bool(paper)),
        stand_in=column.column.stand_in,
    )


def compared(
    difference: Difference,
    ours: str,
    theirs: str,
    metric: str,
    unit: Unit,
    *,
    smallest: bool = False,
    gain: float | None = None,
) -> str:
    """The verdict on two rows as a sentence; `gain` is the difference that the design should have been able to see."""
    return difference.verdict(
        ours, theirs, metric, scale=unit.scale, unit=unit.points, digits=unit.digits, smallest=smallest, gain=gain
    )


def _smallest_that_matters(column: ColumnResults, unit: Unit) -> float:
    """Where the paper has no gain to look for: one point, or a hundredth of plain training's number."""
    return 0.01 if unit.sign else 0.01 * abs(float(np.mean(column.rows[plan.BASELINE].values)))


def _remark(difference: Difference, gain: float, unit: Unit, *, of_paper: bool) -> str:
    """Whether the interval excludes the paper's gain, and how likely the design was to see it."""
    if difference.n < 2 or difference.constant:
        return ""
    chance = f"{difference.power(gain):.2f}"
    if not of_paper:
        return f"The chance to see {unit.value(gain)}{unit.points} was {chance}."
    excluded = not difference.low <= gain <= difference.high
    return f"The interval {'excludes' if excluded else 'includes'} it; the chance to see it was {chance}."


def _headline(results: Results) -> str:
    counts = collections.Counter(s.conclusion for s in sentences(results))
    total = sum(counts.values())
    if not total:
        return "No run has finished yet."
    primary = results.table.primary
    if total == 1:
        return sentences(results)[0].text
    if counts["no evidence"] == total:
        return f"In none of {total} settings is there evidence of a difference between {primary} and {BASELINE_NAME}."
    if counts["undecided"] == total:
        return f"All of {total} settings are undecided between {primary} and {BASELINE_NAME}: run more seeds."
    parts = [
        f"improves on {BASELINE_NAME} in {_count(counts['better'], total)}",
        f"shows no evidence of a difference in {_count(counts['no evidence'], total)}",
        f"is worse in {_count(counts['worse'], total)}",
    ]
    if counts["undecided"]:
        parts.append(f"is undecided in {_count(counts['undecided'], total)}")
    if counts["too few pairs"]:
        parts.append(f"cannot be judged in {_count(counts['too few pairs'], total)}")
    return (
        f"Of {total} settings, {primary} {', '.join(parts[:-1])}, and {parts[-1]}; corrected for "
        f"{results.declared} declared comparisons."
    )


def _control(results: Results, column: ColumnResults) -> Control:
    differences, primary = column.differences, results.table.primary
    return Control(
        column=column.name,
        # Against plain training of the same column, which is what the controls are compared with too.
        primary=between(results, column, primary, plan.BASELINE) if primary in differences else None,
        normalised=differences.get(plan.NORMALISED),
        scaled=differences.get(plan.SCALED_BASELINE),
        beyond=between(results, column, results.table.primary, plan.SCALED_BASELINE),
    )


def between(results: Results, column: ColumnResults, ours: str, theirs: str) -> Difference | None:
    """Two rows of a column on the seeds they share."""
    if ours not in column.rows or theirs not in column.rows:
        return None
    return results.apart(results.table.metric, column.rows[ours].outcomes, column.rows[theirs].outcomes)


def _scale(results: Results, controls: Sequence[Control]) -> list[str]:
    """Whether gains survive normalisation, and whether a larger step alone has them too."""
    if not results.table.controls:
        return []
    smallest, primary = results.table.smallest, results.table.primary

    def concludes(difference: Difference | None, conclusion: Finding) -> bool:
        return difference is not None and difference.conclusion(smallest=smallest) == conclusion

    judged = [c for c in controls if c.normalised or c.scaled]
    if not judged:
        return ["The two scale controls have not finished: whether a larger step explains it is open."]
    gains = [c for c in judged if concludes(c.primary, "better")]
    if not gains:
        normalised = sum(concludes(c.normalised, "better") for c in judged)
        scaled = sum(concludes(c.scaled, "better") for c in judged)
        lines = ["There is no gain for the scale controls to explain."]
        if (normalised or scaled) and len(judged) == 1:
            first = f"weights normalised to mean one {'gain' if normalised else 'do not gain'} over {BASELINE_NAME}"
            second = f"{BASELINE_NAME} at {primary}'s mean weight {'gains' if scaled else 'does not gain'}"
            lines.append(f"But {first}, and {second}.")
        elif normalised or scaled:
            lines.append(
                f"But of {len(judged)} settings, weights normalised to mean one gain over {BASELINE_NAME} in "
                f"{_count(normalised, len(judged))}, and {BASELINE_NAME} at {primary}'s mean weight gains in "
                f"{_count(scaled, len(judged))}."
            )
        return lines
    survives = sum(concludes(c.normalised, "better") for c in gains)
    also = sum(concludes(c.scaled, "better") for c in gains)
    beyond = sum(concludes(c.beyond, "better") for c in gains)
    lead = (
        "Is it more than a larger step? With weights normalised to mean one, "
        f"at {BASELINE_NAME}'s learning rate, the gain"
    )
    scaled = f"{BASELINE_NAME.capitalize()} with its loss multiplied by {primary}'s mean weight"
    finished = sum(c.scaled is not None for c in gains)
    unfinished = f"{scaled} has not finished there."
    if len(gains) == 1:
        return [
            f"{lead} {'survives' if survives else 'is no longer seen'} in the one setting that gained.",
            f"{scaled} {'gains there too' if also else 'does not gain there'}, and "
            + (f"{primary} is ahead of it." if beyond else f"there is no evidence that {primary} is ahead of it.")
            if finished
            else unfinished,
        ]
    whole = "" if finished == len(gains) else f" (of {finished} that have finished)"
    return [
        f"{lead} survives in {_count(survives, len(gains))} of the {len(gains)} settings that gained.",
        f"{scaled} gains too in {_count(also, finished)} of them{whole}, and {primary} is ahead of that in "
        f"{_count(beyond, finished)}."
        if finished
        else unfinished,
    ]


def _count(count: int, total: int) -> str:
    return "none" if not count else "all" if count == total > 1 else str(count)


def estimate(values: Sequence[float], digits: int) -> str:
    """The mean of a recorded number over seeds, with its 95 % interval."""
    d = stats.paired(values, [0.0] * len(values))
    return f"{d.mean:.{digits}f} [{d.low:.{digits}f}, {d.high:.{digits}f}]"


def tally(differences: Sequence[Difference]) -> str:
    """In how many settings a row is ahead, behind, and neither."""
    ahead, behind = (sum(d.conclusion() == which for d in differences) for which in ("better", "worse"))
    return (
        f"better in {ahead} of {len(differences)} settings, worse in {behind}, and in "
        f"{len(differences) - ahead - behind} there is no evidence of a difference"
    )
