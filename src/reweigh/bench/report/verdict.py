"""What the numbers say, in words: the comparison declared beforehand, and what its two scale controls add."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from dataclasses import dataclass

from reweigh.bench import plan
from reweigh.bench.recipes._table import Table
from reweigh.bench.report.numbers import Unit, unit_of
from reweigh.bench.results import CellResults, Results, difference
from reweigh.bench.stats import Conclusion, Difference

BASELINE_NAME = "plain training"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """What one cell says about the primary row; `paper` is the paper's own difference, if it has one."""

    cell: str
    conclusion: Conclusion
    text: str
    paper: float | None
    stand_in: str | None


@dataclass(frozen=True, kw_only=True)
class Control:
    """One cell's answer to "is it more than a larger step?": three differences to plain training, and one more.

    `beyond` is the primary row against plain training at the same mean weight.
    """

    cell: str
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
    controls = [_control(results, cell) for cell in results.cells]
    return Verdict(
        headline=_headline(results),
        scale=_scale(results, controls),
        sentences=sentences(results),
        controls=[c for c in controls if c.normalised or c.scaled],
    )


def sentences(results: Results) -> list[Sentence]:
    """One sentence for each cell that has the declared comparison, and why where it has none."""
    unit = unit_of(results)
    return [_sentence(results, cell, unit) for cell in results.cells]


def _sentence(results: Results, cell: CellResults, unit: Unit) -> Sentence:
    table, name = results.table, cell.cell.name
    difference = cell.differences.get(table.primary)
    if difference is None:
        missing = [label for label in (table.primary, plan.BASELINE) if label not in cell.rows]
        reason = f"{' and '.join(missing)} not finished" if missing else "a run diverged or no seed is shared"
        return Sentence(
            cell=name, conclusion="too few pairs", text=f"Nothing can be said: {reason}.", paper=None, stand_in=None
        )
    text = difference.verdict(
        table.primary,
        BASELINE_NAME,
        table.metric_name,
        scale=unit.scale,
        unit=unit.points,
        digits=unit.digits,
        smallest=table.smallest,
    )
    ours, theirs = cell.cell.paper.get(table.primary), cell.cell.paper.get(plan.BASELINE)
    return Sentence(
        cell=name,
        conclusion=difference.conclusion(smallest=table.smallest),
        text=text,
        paper=None if ours is None or theirs is None else ours - theirs,
        stand_in=cell.cell.stand_in,
    )


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
    parts = [
        f"improves on {BASELINE_NAME} in {_count(counts['better'], total)}",
        f"shows no evidence of a difference in {_count(counts['no evidence'], total)}",
        f"is worse in {_count(counts['worse'], total)}",
    ]
    if counts["too few pairs"]:
        parts.append(f"cannot be judged in {_count(counts['too few pairs'], total)}")
    return f"Of {total} settings, {primary} {', '.join(parts[:-1])}, and {parts[-1]}."


def _control(results: Results, cell: CellResults) -> Control:
    differences = cell.differences
    return Control(
        cell=cell.cell.name,
        primary=differences.get(results.table.primary),
        normalised=differences.get(plan.NORMALISED),
        scaled=differences.get(plan.SCALED_BASELINE),
        beyond=between(results.table, cell, results.table.primary, plan.SCALED_BASELINE),
    )


def between(table: Table, cell: CellResults, ours: str, theirs: str, *, last: bool = False) -> Difference | None:
    """Two rows of a cell on the seeds they share: at the chosen epochs, or at the last ones."""
    if ours not in cell.rows or theirs not in cell.rows:
        return None

    def values(label: str) -> dict[int, float]:
        outcomes = cell.rows[label].outcomes
        return {seed: outcome.last if last else outcome.value for seed, outcome in outcomes.items()}

    first, second = values(ours), values(theirs)
    seeds = [s for s in sorted(set(first) & set(second)) if math.isfinite(first[s] + second[s])]
    return difference(table, [first[s] for s in seeds], [second[s] for s in seeds]) if seeds else None


def _scale(results: Results, controls: Sequence[Control]) -> list[str]:
    """Whether gains survive normalisation, and whether a larger step alone has them too."""
    if not results.table.controls:
        return []
    smallest, primary = results.table.smallest, results.table.primary

    def concludes(difference: Difference | None, conclusion: Conclusion) -> bool:
        return difference is not None and difference.conclusion(smallest=smallest) == conclusion

    judged = [c for c in controls if c.normalised or c.scaled]
    if not judged:
        return ["The two scale controls have not finished: nothing is said about a larger step."]
    gains = [c for c in judged if concludes(c.primary, "better")]
    if not gains:
        normalised = sum(concludes(c.normalised, "better") for c in judged)
        scaled = sum(concludes(c.scaled, "better") for c in judged)
        said = ["There is no gain for the scale controls to explain."]
        if (normalised or scaled) and len(judged) == 1:
            first = f"weights normalised to mean one {'gain' if normalised else 'do not gain'} over {BASELINE_NAME}"
            second = f"{BASELINE_NAME} at {primary}'s mean weight {'gains' if scaled else 'does not gain'}"
            said.append(f"But {first}, and {second}.")
        elif normalised or scaled:
            said.append(
                f"But of {len(judged)} settings, weights normalised to mean one gain over {BASELINE_NAME} in "
                f"{_count(normalised, len(judged))}, and {BASELINE_NAME} at {primary}'s mean weight gains in "
                f"{_count(scaled, len(judged))}."
            )
        return said
    survives = sum(concludes(c.normalised, "better") for c in gains)
    also = sum(concludes(c.scaled, "better") for c in gains)
    beyond = sum(concludes(c.beyond, "better") for c in gains)
    lead = (
        "Is it more than a larger step? With weights normalised to mean one, "
        f"at {BASELINE_NAME}'s learning rate, the gain"
    )
    scaled = f"{BASELINE_NAME.capitalize()} with its loss multiplied by {primary}'s mean weight"
    finished = sum(c.scaled is not None for c in gains)
    unfinished = f"{scaled} has not finished there: nothing is said about it."
    if len(gains) == 1:
        return [
            f"{lead} {'survives' if survives else 'is not seen any more'} in the one setting that gained.",
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
