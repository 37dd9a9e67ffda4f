"""The advice of a comparison in words: what to use and how sure that is, what it costs, and what is still open."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reweigh.bench.lab.stats import Difference
from reweigh.bench.report.numbers import Unit

#: Classes or groups that are named before the rest is counted.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one number of the recommended action differs from the reference's.

    `margin` is the smallest change that matters, and `smallest` says that less is better.
    """

    name: str
    difference: Difference
    unit: Unit
    margin: float
    smallest: bool = False

    @property
    def conclusion(self) -> str:
        """Better, worse, or, with an interval inside the margin, the same; otherwise open."""
        conclusion = self.difference.conclusion(smallest=self.smallest)
        if conclusion in ("better", "worse"):
            return conclusion
        d = self.difference
        inside = d.n > 1 and -self.margin <= d.low and d.high <= self.margin and (not d.constant or d.mean == 0)
        return "same" if inside else "open"

    @property
    def amount(self) -> str:
        """The difference with its interval."""
        return amount(self.difference, self.unit)


def amount(difference: Difference, unit: Unit) -> str:
    """A difference with its 95 % interval; where all splits agree to the digit there is none."""
    mean = f"{unit.signed(difference.mean)}{unit.points}"
    if difference.n < 2:
        return f"{mean}, one split"
    if difference.constant:
        return f"{mean}, the same on each of {difference.n} splits"
    return f"{mean} {unit.interval(difference)}, {difference.n} splits"


def too_little() -> str:
    """Before two splits have finished."""
    return "Undecided: too little has finished to compare anything. Use a larger --budget."


def use(name: str, plain: str, metric: str, difference: Difference, unit: Unit, *, comparisons: int) -> str:
    """A decided gain over plain training."""
    corrected = "" if difference.primary or comparisons < 2 else f", corrected for {comparisons} comparisons"
    return f"Use {name}: better than {plain} in {metric}, {amount(difference, unit)}{corrected}."


def keep(plain: str, metric: str, margin: str, comparisons: int) -> str:
    """Plain training is shown to be as good as anything."""
    return (
        f"Keep {plain}: none of the {comparisons} alternatives is better by more than {margin} in {metric}."
        if comparisons > 1
        else f"Keep {plain}: the alternative is not better by more than {margin} in {metric}."
    )


def leading(name: str, plain: str, metric: str, difference: Difference, unit: Unit, chance: float) -> str:
    """A lead that is not decided."""
    return (
        f"Leading, not decided: {name}. It is ahead of {plain} in {metric}, {amount(difference, unit)}; the "
        f"probability that it is better is {percent(chance)}, before correction for the number of comparisons."
    )


def undecided(
    name: str,
    plain: str,
    metric: str,
    difference: Difference,
    unit: Unit,
    *,
    ahead: bool,
    meanwhile: str,
    most: float,
) -> str:
    """Nothing is distinguishable yet; `most` is the largest gain that any interval allows, where plain is kept."""
    best = (
        f"the best so far is {name}. It is ahead of {plain} in {metric}, {amount(difference, unit)}"
        if ahead
        else f"nothing is ahead of {plain} in {metric}. The closest is {name}, {amount(difference, unit)}"
    )
    bound = ""
    if math.isfinite(most):
        bound = f" The intervals of all alternatives exclude gains above {unit.value(most)}{unit.points}."
    return f"Undecided: {best}.{bound} Until this is decided, the model that is kept uses {meanwhile}."


def percent(share: float) -> str:
    """A probability that is never rounded to certainty."""
    return f"{min(max(round(100 * share), 1), 99)} %"


def costs(changes: Sequence[Change], margin_words: str) -> list[str]:
    """What the recommended action does to other metrics: losses, gains, what stayed the same, and what is open."""
    groups = {"worse": "It costs", "better": "It also gains"}
    lines = [
        f"{lead}: {'; '.join(f'{c.name} {c.amount}' for c in changes if c.conclusion == kind)}."
        for kind, lead in groups.items()
        if any(c.conclusion == kind for c in changes)
    ]
    same = [c.name for c in changes if c.conclusion == "same"]
    if same:
        lines.append(f"No change seen in {_listed(same)}: the intervals exclude one {margin_words}.")
    unclear = [f"{c.name} {c.amount}" for c in changes if c.conclusion == "open"]
    if unclear:
        lines.append(f"Open: {'; '.join(unclear)}.")
    return lines


def subsets(what: str, plural: str, changes: Sequence[Change]) -> list[str]:
    """Which classes or groups lose and gain; `changes` are corrected for their number."""
    lines: list[str] = []
    for kind, verb in (("worse", "lose"), ("better", "gain")):
        chosen = sorted((c for c in changes if c.conclusion == kind), key=lambda c: -abs(c.difference.mean))
        if not chosen:
            continue
        named = "; ".join(f"{c.name!r} {c.unit.signed(c.difference.mean)} {_span(c)}" for c in chosen[:_NAMED])
        more = f"; and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
        noun = what if len(chosen) == 1 else plural
        lines.append(f"{len(chosen)} {noun} {verb}{'s' if len(chosen) == 1 else ''}: {named}{more}.")
    return lines


def source_of_gain(ranking: Change | None, plain: str = "") -> list[str]:
    """Whether the ranking of rows improved or only the cut between classes moved.

    `plain` names what the ranking is compared with, where that is not what the headline compares with.
    """
    if ranking is None:
        return []
    amount, against = f"{ranking.name} {ranking.amount}", f" against {plain}" if plain else ""
    lines = {
        "better": f"The ranking of rows improved as well{against} ({amount}).",
        "worse": f"Only the cut between classes moved{against}; the ranking got worse ({amount}).",
        "same": f"Only the cut between classes moved{against}: the ranking is the same ({amount}).",
        "open": f"Whether the ranking of rows improved{against} is open ({amount}).",
    }
    return [lines[ranking.conclusion]]


def other_model(plain: str, ranking: Change | None) -> list[str]:
    """How another model than the reference's ranks rows."""
    if ranking is None:
        return []
    words = {
        "better": "ranks rows better than",
        "worse": "ranks rows worse than",
        "same": "ranks rows as well as",
        "open": "is neither shown to rank rows better nor worse than",
    }[ranking.conclusion]
    return [f"As another model, it {words} {plain} ({ranking.name} {ranking.amount})."]


def without_training(name: str, difference: Difference, unit: Unit) -> str:
    """A correction of plain outputs that is nearly as good as what is recommended."""
    return f"Nearly the same without another training: {name}, {amount(difference, unit)}."


def own_line(name: str, model: str, plain: str, metric: str, change: Change, survives: bool | None) -> str:
    """The method declared beforehand against plain training of the same model."""
    words = {
        "better": "is better",
        "worse": "is worse",
        "same": f"makes no difference above {change.unit.value(change.margin)}{change.unit.points}",
        "open": "is neither shown to be better nor worse",
    }[change.conclusion]
    line = f"{name} against {plain} with {model}: {words} in {metric}, {change.amount}."
    if survives is not None and change.conclusion == "better":
        line += (
            " The gain survives weights normalised to mean one: it is more than a larger step."
            if survives
            else " With weights normalised to mean one the gain is no longer seen: it may be just a larger step."
        )
    return line


def would_decide(half: str, effect: str, *, seconds: float | None, rows_factor: float) -> str:
    """What would decide an open question: more time, or, where splits of the same rows cannot, more rows."""
    start = f"The interval reaches {half} to either side, and the effect is {effect}."
    if seconds is not None:
        return f"{start} A budget of about {duration(seconds)} would decide it."
    if not math.isfinite(rows_factor) or rows_factor > 100:
        return f"{start} So small an effect cannot be decided with this data."
    return f"{start} More time cannot decide it: about {rows_factor:.1f} times as many rows could."


def would_keep(plain: str, margin: str, *, seconds: float | None, rows_factor: float) -> str:
    """What would show that plain training is as good as anything: more time, or more rows."""
    shown = f"show that nothing is better than {plain} by more than {margin}"
    if seconds is not None:
        return f"A budget of about {duration(seconds)} would probably {shown}."
    if not math.isfinite(rows_factor) or rows_factor > 100:
        return f"Neither more time nor a hundred times as many rows would {shown}."
    return f"More time cannot decide it: about {rows_factor:.1f} times as many rows would probably {shown}."


def duration(seconds: float) -> str:
    """Seconds as a person writes a budget."""
    if seconds < 120:
        return f"{math.ceil(seconds / 10) * 10}s"
    if seconds < 2 * 3600:
        return f"{math.ceil(seconds / 60)}m"
    return f"{math.ceil(seconds / 3600)}h"


def _span(change: Change) -> str:
    d = change.difference
    return f"(on each of {d.n} splits)" if d.constant else change.unit.interval(d)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
