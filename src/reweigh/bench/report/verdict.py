"""Verdicts in words: the comparison declared beforehand, its scale controls, and the recommendation of a comparison."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Results, difference
from reweigh.bench.lab.stats import Conclusion, Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.report.numbers import Unit, unit_of

BASELINE_NAME = "plain training"


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """The verdict of one column on the primary row; `paper` is the paper's own difference, if it has one."""

    column: str
    conclusion: Conclusion
    text: str
    paper: float | None
    stand_in: str | None


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
        return Sentence(
            column=name, conclusion="too few pairs", text=f"No verdict: {reason}.", paper=None, stand_in=None
        )
    text = compared(difference, table.primary, BASELINE_NAME, table.metric_name, unit, smallest=table.smallest)
    ours, theirs = column.column.paper.get(table.primary), column.column.paper.get(plan.BASELINE)
    return Sentence(
        column=name,
        conclusion=difference.conclusion(smallest=table.smallest),
        text=text,
        paper=None if ours is None or theirs is None else ours - theirs,
        stand_in=column.column.stand_in,
    )


def compared(difference: Difference, ours: str, theirs: str, metric: str, unit: Unit, *, smallest: bool = False) -> str:
    """The verdict on two rows as a sentence."""
    return difference.verdict(
        ours, theirs, metric, scale=unit.scale, unit=unit.points, digits=unit.digits, smallest=smallest
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


def _control(results: Results, column: ColumnResults) -> Control:
    differences = column.differences
    return Control(
        column=column.name,
        primary=differences.get(results.table.primary),
        normalised=differences.get(plan.NORMALISED),
        scaled=differences.get(plan.SCALED_BASELINE),
        beyond=between(results.table, column, results.table.primary, plan.SCALED_BASELINE),
    )


def between(table: Table, column: ColumnResults, ours: str, theirs: str, *, last: bool = False) -> Difference | None:
    """Two rows of a column on the seeds they share: at the chosen epochs, or at the last ones."""
    if ours not in column.rows or theirs not in column.rows:
        return None

    def values(label: str) -> dict[int, float]:
        outcomes = column.rows[label].outcomes
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


# --- the recommendation of a comparison on the user's data ---


def effect(
    name: str, metric: str, difference: Difference, unit: Unit, *, smallest: bool, details: Sequence[str] = ()
) -> str:
    """A difference to plain training as a clause, in the direction of better; a gain is followed by its details."""
    conclusion = difference.conclusion(smallest=smallest)
    if conclusion == "no evidence":
        amount = _amount(difference, unit, unit.signed(difference.mean), difference.low, difference.high)
        return f"no evidence that {name} changes {metric}: {amount}."
    sign = -1.0 if smallest else 1.0
    mean, (low, high) = sign * difference.mean, sorted((sign * difference.low, sign * difference.high))
    if conclusion == "worse":
        return f"{name} worsens {metric} by {_amount(difference, unit, unit.value(-mean), -high, -low)}."
    gain = f"{name} improves {metric} by {_amount(difference, unit, unit.value(mean), low, high)}"
    return f"{'; '.join(filter(None, (gain, *details)))}."


def _amount(difference: Difference, unit: Unit, mean: str, low: float, high: float) -> str:
    """A difference with its interval; where all splits agree to the digit there is none."""
    if difference.constant:
        return f"{mean}{unit.points}, the same on each of {difference.n} splits"
    return f"{mean}{unit.points} [{unit.value(low)}, {unit.value(high)}], {difference.n} splits"


def largest_gain(what: str, gains: Mapping[str, float], *, percent: bool) -> str:
    """The class or group that gains most; nothing where there are fewer than two, or none gains."""
    best = max(gains, key=lambda name: gains[name]) if len(gains) > 1 else ""
    if len(gains) < 2 or gains[best] <= 0:
        return ""
    return f"largest gain in {what} {best!r} ({f'{100 * gains[best]:+.1f}' if percent else f'{gains[best]:.3g}'})"


def recommendation(table: Table, primary: Difference | None, chosen: str, name: str, *, comparisons: int) -> str:
    """What to train with: the chosen row, which readers know by `name`, or plain training."""
    if primary is None or primary.n < 2:
        return "Too little has finished to say whether re-weighting helps: use a larger --budget."
    if chosen == plan.BASELINE:
        if primary.conclusion(smallest=table.smallest) == "worse":
            return f"{table.primary} makes {table.metric_name} worse here: keep {BASELINE_NAME}."
        return f"No evidence that re-weighting helps here: keep {BASELINE_NAME}."
    if chosen == table.primary:
        return f"Re-weighting helps here: train with {name}."
    return f"Use {name}: it is better than {BASELINE_NAME} here, after correction for {comparisons} comparisons."


def beyond_scale(*, survives: bool) -> str:
    """Whether a gain is more than a larger step."""
    if survives:
        return "The gain survives weights normalised to mean one: it is more than a larger step."
    return (
        "With weights normalised to mean one the gain is no longer seen: it may be just a larger step, which a larger "
        "learning rate gives too."
    )


def resolution(primary: Difference, metric: str, unit: Unit, *, smallest: bool) -> list[str]:
    """Without a gain: which differences could have been detected."""
    if not primary.constant:
        width = (primary.high - primary.low) / 2
        return [
            f"Differences in {metric} below about {unit.value(width)}{unit.points} would not have been detected with "
            f"{primary.n} splits."
        ]
    if primary.mean == 0:
        return [f"Both score the same on every split: {metric} cannot tell them apart here."]
    few = primary.conclusion(smallest=smallest) == "no evidence"
    return ["Equal differences have no interval, and fewer than six of them may be chance."] if few else []


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
