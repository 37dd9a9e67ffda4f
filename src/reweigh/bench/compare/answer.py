"""The answer in words and numbers: whether re-weighting helps, for whom, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reweigh.bench import plan, stats
from reweigh.bench.compare.metrics import Metric
from reweigh.bench.report.numbers import Unit
from reweigh.bench.results import CellResults, Outcome, Results, difference
from reweigh.bench.stats import Difference
from reweigh.method import method
from reweigh.objectives.rgd import RGD

PLAIN = "plain training"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one row: the mean over splits, and how it differs from plain training."""

    metric: Metric
    mean: float
    difference: Difference | None

    @property
    def unit(self) -> Unit:
        """How its numbers are written."""
        return unit_of(self.metric, self.mean)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A class or a group: its score under plain training and under the row, and the difference."""

    name: str
    plain: float
    ours: float
    difference: Difference | None


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What was found with one model.

    `chosen` is the row to use: the one declared beforehand if it is better, else the best of the others that are, else
    plain training. `beyond_scale` says whether a gain survives weights of mean one.
    """

    model: str
    splits: int
    chosen: str
    primary: Difference | None
    beyond_scale: bool | None
    scores: Mapping[str, Sequence[Score]]
    classes: Sequence[Part]
    groups: Sequence[Part]
    validation: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The whole answer: the headline, a sentence a model, and which model and method to use."""

    headline: str
    details: Sequence[str]
    models: Sequence[ModelAnswer]
    model: str
    row: str


def answer(results: Results, metrics: Sequence[Metric], classes: Sequence[str], groups: Sequence[str]) -> Answer | None:
    """What the finished runs say; None while there is no pair to compare."""
    found = [m for cell in results.cells if (m := _model(results, cell, metrics, classes, groups)) is not None]
    if not found:
        return None
    sign = -1.0 if results.table.smallest else 1.0
    best, sentence = max(found, key=lambda pair: sign * pair[0].validation)
    others = [said for one, said in found if one is not best]
    return Answer(
        headline=_headline(results, best),
        details=[sentence, *others, *_remarks(results, best, _judged_by(results, metrics))],
        models=[one for one, _ in found],
        model=best.model,
        row=best.chosen,
    )


def row_name(label: str, text: str) -> str:
    """A row for a sentence: RGD with its tau, everything else by its text."""
    if label == plan.BASELINE:
        return PLAIN
    objective = method(text).objective
    if text.startswith("rgd") and isinstance(objective, RGD) and "+" not in text:
        kind = {"kl": "RGD", "revkl": "RGD with reverse KL", "chi2": "RGD with chi-square"}.get(
            str(objective.divergence)
        )
        if kind is not None:
            one = ", mean weight one" if objective.normalize else ""
            return f"{kind} (tau {objective.tau:g}{one})"
    return text


def unit_of(metric: Metric, typical: float) -> Unit:
    """Points of a percentage, or as many digits as the number needs."""
    if metric.percent:
        return Unit(scale=100.0, digits=1, points=" points", sign=" %")
    size = abs(typical) if typical and math.isfinite(typical) else 1.0
    return Unit(scale=1.0, digits=min(max(2 - math.floor(math.log10(size)), 0), 6))


def _model(
    results: Results, cell: CellResults, metrics: Sequence[Metric], classes: Sequence[str], groups: Sequence[str]
) -> tuple[ModelAnswer, str] | None:
    """What one model says, and the same as a sentence; None before plain training has finished a split."""
    table, rows = results.table, cell.rows
    if plan.BASELINE not in rows:
        return None
    chosen = _choose(results, cell)
    shown = chosen if chosen != plan.BASELINE else table.primary
    parts = {
        kind: _parts(results, cell, shown, key, names)
        for kind, key, names in (("classes", "class_accuracy", classes), ("groups", "group_score", groups))
    }
    normalised = cell.differences.get(plan.NORMALISED)
    beyond: bool | None = None
    if chosen == table.primary and normalised is not None:
        beyond = normalised.conclusion(smallest=table.smallest) == "better"
    found = ModelAnswer(
        model=cell.cell.name,
        splits=len(rows[plan.BASELINE].outcomes),
        chosen=chosen,
        primary=cell.differences.get(table.primary),
        beyond_scale=beyond,
        scores=_scores(results, cell, metrics),
        classes=parts["classes"],
        groups=parts["groups"],
        validation=_mean([o.records[o.chosen][table.select] for o in rows[chosen].outcomes.values()]),
    )
    return found, f"{found.model}: {_sentence(results, cell, found, metrics)}"


def _choose(results: Results, cell: CellResults) -> str:
    """The row to use: what was declared beforehand first, then what survives correction, else plain training."""
    smallest = results.table.smallest
    better = {
        label: d
        for label, d in cell.differences.items()
        if label != plan.SCALED_BASELINE and d.conclusion(smallest=smallest) == "better"
    }
    if results.table.primary in better:
        return results.table.primary
    return max(better, key=lambda label: abs(better[label].mean), default=plan.BASELINE)


def _scores(results: Results, cell: CellResults, metrics: Sequence[Metric]) -> dict[str, list[Score]]:
    """Every metric of every row at the epoch that validation chose."""
    found: dict[str, list[Score]] = {label: [] for label in cell.rows}
    for metric in metrics:
        key = f"test/{metric.key}"
        values = {label: {seed: _value(o, key) for seed, o in row.outcomes.items()} for label, row in cell.rows.items()}
        # A split whose test part lacks a class has no AUROC under any row, and says nothing of it.
        told = {seed for row in values.values() for seed, value in row.items() if not math.isnan(value)}
        if not told:
            continue
        values = {label: {seed: value for seed, value in row.items() if seed in told} for label, row in values.items()}
        differences = _against_plain(results, values)
        for label, own in values.items():
            found[label].append(Score(metric=metric, mean=_mean(list(own.values())), difference=differences.get(label)))
    return found


def _against_plain(results: Results, values: Mapping[str, Mapping[int, float]]) -> dict[str, Difference]:
    """Differences of one number to plain training, corrected for their number."""
    plain = values[plan.BASELINE]
    found: dict[str, Difference] = {}
    for label, own in values.items():
        seeds = [s for s in sorted(set(own) & set(plain)) if math.isfinite(own[s] + plain[s])]
        if label != plan.BASELINE and seeds:
            primary = label == results.table.primary
            found[label] = difference(
                results.table, [own[s] for s in seeds], [plain[s] for s in seeds], primary=primary
            )
    return stats.corrected(found)


def _parts(results: Results, cell: CellResults, label: str, key: str, names: Sequence[str]) -> list[Part]:
    """The score of each class or group under plain training and under a row, over the splits that tested on it."""
    if label not in cell.rows:
        return []
    ours, plain = cell.rows[label].outcomes, cell.rows[plan.BASELINE].outcomes
    found: list[Part] = []
    for i, name in enumerate(names):
        pairs = [(_entry(ours[s], key, i), _entry(plain[s], key, i)) for s in sorted(set(ours) & set(plain))]
        pairs = [(a, b) for a, b in pairs if math.isfinite(a + b)]
        if pairs:
            first, second = [a for a, _ in pairs], [b for _, b in pairs]
            apart = difference(results.table, first, second) if len(pairs) > 1 else None
            found.append(Part(name=name, plain=_mean(second), ours=_mean(first), difference=apart))
    return found


def _sentence(results: Results, cell: CellResults, found: ModelAnswer, metrics: Sequence[Metric]) -> str:
    table = results.table
    label = found.chosen if found.chosen != plan.BASELINE else table.primary
    apart = cell.differences.get(label)
    if label not in cell.rows or apart is None or apart.n < 2:
        return "too few splits have finished to say anything."
    metric = _judged_by(results, metrics)
    name, unit = row_name(label, cell.rows[label].method), unit_of(metric, _mean(cell.rows[label].values))
    conclusion = apart.conclusion(smallest=table.smallest)
    if conclusion == "no evidence":
        amount = _amount(apart, unit, unit.signed(apart.mean), apart.low, apart.high)
        return f"no evidence that {name} changes {metric.name}: {amount}."
    # In the direction of better, whichever that is.
    sign = -1.0 if table.smallest else 1.0
    mean, (low, high) = sign * apart.mean, sorted((sign * apart.low, sign * apart.high))
    if conclusion == "worse":
        return f"{name} worsens {metric.name} by {_amount(apart, unit, unit.value(-mean), -high, -low)}."
    unchanged = [
        s.metric.name
        for s in found.scores[found.chosen]
        if s.metric.key in ("auroc", "accuracy")
        and s.metric.key != metric.key
        and s.difference is not None
        and s.difference.conclusion(smallest=s.metric.smallest) == "no evidence"
    ]
    said = [
        f"{name} improves {metric.name} by {_amount(apart, unit, unit.value(mean), low, high)}",
        _largest(found.classes, "class", smallest=False),
        _largest(found.groups, "group", smallest=table.smallest and not found.classes),
        f"no change seen in {' and '.join(unchanged)}" if unchanged else "",
    ]
    return f"{'; '.join(filter(None, said))}."


def _amount(apart: Difference, unit: Unit, mean: str, low: float, high: float) -> str:
    """A difference with its interval; where all splits agree to the digit there is none, and that is said instead."""
    if apart.constant:
        return f"{mean}{unit.points}, the same on each of {apart.n} splits"
    return f"{mean}{unit.points} [{unit.value(low)}, {unit.value(high)}], {apart.n} splits"


def _judged_by(results: Results, metrics: Sequence[Metric]) -> Metric:
    return next(m for m in metrics if results.table.metric == f"test/{m.key}")


def _largest(parts: Sequence[Part], what: str, *, smallest: bool) -> str:
    """Where the gain is largest, among those that more than one split tested on."""
    parts = [part for part in parts if part.difference is not None]
    if len(parts) < 2:
        return ""
    sign = -1.0 if smallest else 1.0
    best = max(parts, key=lambda p: sign * (p.ours - p.plain))
    gain = sign * (best.ours - best.plain)
    if gain <= 0:
        return ""
    amount = f"{gain:.3g}" if smallest else f"{100 * gain:+.1f}"
    return f"largest gain in {what} {best.name!r} ({amount})"


def _headline(results: Results, best: ModelAnswer) -> str:
    if best.primary is None or best.primary.n < 2:
        return "Too little has finished to say whether re-weighting helps: give more time with --budget."
    if best.chosen == plan.BASELINE:
        if best.primary.conclusion(smallest=results.table.smallest) == "worse":
            return f"{results.table.primary} makes {results.table.metric_name} worse here: keep plain training."
        return "No evidence that re-weighting helps here: keep plain training."
    cell = next(c for c in results.cells if c.cell.name == best.model)
    name = row_name(best.chosen, cell.rows[best.chosen].method)
    if best.chosen == results.table.primary:
        return f"Re-weighting helps here: train with {name}."
    return (
        f"Use {name}: it is better than plain training here, after correction for {len(cell.differences)} comparisons."
    )


def _remarks(results: Results, best: ModelAnswer, metric: Metric) -> list[str]:
    """Whether a gain is more than a larger step; or, without one, what could have been seen."""
    if best.beyond_scale:
        return ["The gain survives weights normalised to mean one: it is more than a larger step."]
    if best.beyond_scale is not None:
        return [
            "With weights normalised to mean one the gain is not seen any more: it may be no more than a larger step, "
            "which a larger learning rate gives too."
        ]
    if best.chosen != plan.BASELINE or best.primary is None or not math.isfinite(best.primary.low):
        return []
    if best.primary.constant:
        if best.primary.mean == 0:
            return [f"Both score the same on every split: {metric.name} cannot tell them apart here."]
        few = best.primary.conclusion(smallest=metric.smallest) == "no evidence"
        return ["Equal differences have no interval, and fewer than six of them may be chance."] if few else []
    width = (best.primary.high - best.primary.low) / 2
    unit = unit_of(metric, width)
    return [
        f"Differences in {metric.name} below about {unit.value(width)}{unit.points} would not have been seen with "
        f"{best.splits} splits."
    ]


def _value(outcome: Outcome, key: str) -> float:
    return float(outcome.records[outcome.chosen].get(key, math.nan))


def _entry(outcome: Outcome, key: str, i: int) -> float:
    values = outcome.records[outcome.chosen].get(f"test/{key}") or []
    return float(values[i]) if i < len(values) else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
