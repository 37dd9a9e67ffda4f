"""What a user can do, ranked: every method of every model against the best plain training, and how sure the best is.

An *action* is a model trained with a method, with or without a correction of its outputs afterwards. All are compared
on the splits they share with one reference, the model whose plain training is best, and corrected for their number
(Holm), except for the comparison declared beforehand. The tables and the headline read the same differences, so they
cannot contradict each other. Scale controls are diagnostics, not actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Outcome, Results
from reweigh.bench.lab.stats import Difference
from reweigh.method import method

Strength = Literal["decided", "leading", "undecided"]

#: A lead is worth naming from this probability of being better on.
_LEADING = 0.9


@dataclass(frozen=True, kw_only=True)
class Action:
    """A method with a model: its mean over splits, and how it differs from the reference, whose own is None."""

    model: str
    label: str
    method: str
    mean: float
    splits: int
    difference: Difference | None

    @property
    def key(self) -> tuple[str, str]:
        """The model and the row it is."""
        return self.model, self.label

    @property
    def retrained(self) -> bool:
        """Whether it takes another training than the plain one."""
        return not is_plain(self.method)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The best action and how sure that is.

    `use` is the action to take. It is the reference where plain training is shown to be within `margin` of everything
    else (`strength` is then "decided"), or where nothing else looks better by more than the margin. `best` is the
    action with the largest gain over the reference; `use` is the same unless a smaller gain is the one that is decided,
    or plain training is kept. `ranked` are all actions, the best first; those with a single split come last.
    """

    use: Action
    best: Action | None
    reference: Action
    strength: Strength
    margin: float
    ranked: Sequence[Action]
    smallest: bool

    @property
    def keeps_plain(self) -> bool:
        """Whether plain training is used."""
        return self.use.key == self.reference.key

    @property
    def comparisons(self) -> int:
        """How many actions were compared with the reference."""
        return sum(action.difference is not None for action in self.ranked)

    def gain(self, action: Action) -> float:
        """By how much an action is better than the reference; 0 for the reference itself."""
        return 0.0 if action.difference is None else self.sign * action.difference.mean

    @property
    def most(self) -> float:
        """The largest gain over the reference that the interval of any action allows; infinite where one has none."""
        return max(
            (largest_gain(a.difference, self.sign) for a in self.ranked if a.difference is not None), default=0.0
        )

    @property
    def sign(self) -> float:
        """What turns a difference into a gain."""
        return -1.0 if self.smallest else 1.0


def decide(results: Results, margin: float) -> Decision | None:
    """The best action that finished runs allow; None before plain training has finished a split.

    Parameters
    ----------
    results
        The results; every column is a model.
    margin
        The smallest difference that matters, in the metric's recorded unit. Multiplied with the reference's mean by
        the caller where it is relative.
    """
    reference = _reference(results)
    if reference is None:
        return None
    smallest = results.table.smallest
    sign = -1.0 if smallest else 1.0
    actions = _actions(results, reference)
    plain = next(action for action in actions if action.key == reference)
    # One split says nothing: what has no more comes last, and cannot be the best as long as something else has.
    ranked = sorted(
        actions, key=lambda a: (False, 0.0) if a.difference is None else (a.difference.n < 2, -sign * a.difference.mean)
    )
    others = [action for action in ranked if action.difference is not None]
    best = others[0] if others else None

    def decision(use: Action, strength: Strength) -> Decision:
        return Decision(
            use=use,
            best=best,
            reference=plain,
            strength=strength,
            margin=margin,
            ranked=ranked,
            smallest=smallest,
        )

    if best is None or best.difference is None:
        return decision(plain, "undecided")
    better = [a for a in others if a.difference and a.difference.conclusion(smallest=smallest) == "better"]
    if better:
        return decision(better[0], "decided")
    if all(a.difference is not None and largest_gain(a.difference, sign) <= margin for a in others):
        return decision(plain, "decided")
    gain = sign * best.difference.mean
    if gain > 0 and probability(best.difference, smallest=smallest) >= _LEADING:
        return decision(best, "leading")
    return decision(best if gain > margin else plain, "undecided")


def probability(difference: Difference, *, smallest: bool) -> float:
    """The probability that a row is better than the reference, read off its own t statistic; 0.5 means no idea."""
    if difference.n < 2 or math.isnan(difference.p):
        return 0.5
    ahead = (difference.mean > 0) != smallest
    return 1 - difference.p / 2 if ahead and difference.mean != 0 else difference.p / 2


def is_plain(text: str) -> bool:
    """Whether a method trains plainly; what is done to outputs afterwards does not count."""
    return {slot for slot, _ in method(text).parts()} <= {"post"}


def against(results: Results, ours: tuple[str, str], theirs: tuple[str, str]) -> Difference | None:
    """Two actions on the splits that both have finished, uncorrected; None where they share none."""
    columns = {column.name: column for column in results.columns}
    first, second = (
        columns[m].rows[label] if m in columns and label in columns[m].rows else None for m, label in (ours, theirs)
    )
    if first is None or second is None:
        return None
    return results.apart(results.table.metric, first.outcomes, second.outcomes)


def with_reference(results: Results, decision: Decision) -> Results:
    """The results with every difference taken to the decision's reference, as the headline has them.

    Scale controls keep their difference to the plain training of their own model, which is what they control.
    """
    own = {action.key: action.difference for action in decision.ranked}
    columns: list[ColumnResults] = []
    for column in results.columns:
        shared = {label: d for label in column.rows if (d := own.get((column.name, label))) is not None}
        controls = {label: column.differences[label] for label in plan.CONTROLS if label in column.differences}
        columns.append(replace(column, differences={**shared, **controls}))
    return replace(results, columns=columns)


def _reference(results: Results) -> tuple[str, str] | None:
    """The model whose plain training is best, over the splits that all models have finished if there are any."""
    plain = {c.name: _values(c.rows[plan.BASELINE].outcomes) for c in results.columns if plan.BASELINE in c.rows}
    plain = {name: values for name, values in plain.items() if values}
    if not plain:
        return None
    common = set.intersection(*(set(values) for values in plain.values()))
    sign = -1.0 if results.table.smallest else 1.0
    means = {name: sum(values[s] for s in common or values) / len(common or values) for name, values in plain.items()}
    return max(means, key=lambda name: sign * means[name]), plan.BASELINE


def _actions(results: Results, reference: tuple[str, str]) -> list[Action]:
    model, label = reference
    plain = next(c for c in results.columns if c.name == model).rows[label].outcomes
    differences: dict[str, Difference] = {}
    rows: dict[str, tuple[str, str, str, list[float]]] = {}
    for column in results.columns:
        for name, row in column.rows.items():
            values = list(_values(row.outcomes).values())
            if name in plan.CONTROLS or not values:  # nothing is left of a row that diverged on every split
                continue
            key = f"{column.name}\0{name}"
            rows[key] = column.name, name, row.method, values
            declared = column.name == model and name == results.table.primary
            if (column.name, name) != reference:
                apart = results.apart(results.table.metric, row.outcomes, plain, primary=declared)
                if apart is not None:
                    differences[key] = apart
    corrected = stats.corrected(differences)
    return [
        Action(
            model=own,
            label=name,
            method=text,
            mean=sum(values) / len(values),
            splits=len(values),
            difference=corrected.get(key),
        )
        for key, (own, name, text, values) in rows.items()
        if key in corrected or (own, name) == reference
    ]


def _values(outcomes: Mapping[int, Outcome]) -> dict[int, float]:
    """The finite values of a row by split."""
    return {seed: outcome.value for seed, outcome in outcomes.items() if math.isfinite(outcome.value)}


def largest_gain(difference: Difference, sign: float) -> float:
    """The largest gain that the interval allows; infinite where there is no interval."""
    if difference.n < 2:
        return math.inf
    if difference.constant:  # an interval of no width; below six pairs it is not worth more than its p-value
        return sign * difference.mean if difference.p < 0.05 or difference.mean == 0 else math.inf
    return max(sign * difference.low, sign * difference.high)
