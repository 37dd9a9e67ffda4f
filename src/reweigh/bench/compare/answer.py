"""The answer to a comparison: whether re-weighting helps, for whom, and how sure that is; `report.verdict` words it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Outcome, Results, difference
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.report import verdict
from reweigh.bench.report.numbers import Unit
from reweigh.bench.train.scores import Metric
from reweigh.method import method
from reweigh.objectives.rgd import RGD


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
class SubsetScore:
    """The score of a class or a group under plain training and under a row, and the difference."""

    name: str
    plain: float
    ours: float
    difference: Difference | None


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """The answer with one model.

    `chosen` is the row to use: the one declared beforehand if it is better, else the best of the others that are, else
    plain training. `beyond_scale` says whether a gain survives weights of mean one.
    """

    model: str
    splits: int
    chosen: str
    primary: Difference | None
    beyond_scale: bool | None
    scores: Mapping[str, Sequence[Score]]
    classes: Sequence[SubsetScore]
    groups: Sequence[SubsetScore]
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
    """The answer that the finished runs allow; None while there is no pair to compare."""
    models = [m for column in results.columns if (m := _model(results, column, metrics, classes, groups)) is not None]
    if not models:
        return None
    sign = -1.0 if results.table.smallest else 1.0
    best, sentence = max(models, key=lambda pair: sign * pair[0].validation)
    return Answer(
        headline=_headline(results, best),
        details=[sentence, *(s for m, s in models if m is not best), *_remarks(best, _judged_by(results, metrics))],
        models=[model for model, _ in models],
        model=best.model,
        row=best.chosen,
    )


def caveats(answer: Answer, table: Table, *, ended: str, tuned: bool) -> list[str]:
    """What limits an answer: models without one, an interruption, no tuning, few splits."""
    judged = {model.model for model in answer.models}
    lines = [f"{column.name}: no split has finished yet." for column in table.columns if column.name not in judged]
    if ended == "interrupted":
        lines.append("Interrupted: the answer uses what had finished. Run the same command again to resume.")
    if not tuned:
        lines.append(
            "Not tuned: the budget was too short, so every method ran as written. A larger --budget tunes all alike."
        )
    if any(model.splits < 5 for model in answer.models):
        lines.append("Few splits: run the same command with a larger --budget to add more and narrow the interval.")
    return lines


def row_name(label: str, text: str) -> str:
    """A row for a sentence: RGD with its tau, everything else by its text."""
    if label == plan.BASELINE:
        return verdict.BASELINE_NAME
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
    results: Results, column: ColumnResults, metrics: Sequence[Metric], classes: Sequence[str], groups: Sequence[str]
) -> tuple[ModelAnswer, str] | None:
    """The answer with one model, and the same as a sentence; None before plain training has finished a split."""
    table, rows = results.table, column.rows
    if plan.BASELINE not in rows:
        return None
    chosen = _choose(results, column)
    shown = chosen if chosen != plan.BASELINE else table.primary
    parts = {
        kind: _parts(results, column, shown, key, names)
        for kind, key, names in (("classes", "class_accuracy", classes), ("groups", "group_score", groups))
    }
    normalised = column.differences.get(plan.NORMALISED)
    beyond: bool | None = None
    if chosen == table.primary and normalised is not None:
        beyond = normalised.conclusion(smallest=table.smallest) == "better"
    own = ModelAnswer(
        model=column.name,
        splits=len(rows[plan.BASELINE].outcomes),
        chosen=chosen,
        primary=column.differences.get(table.primary),
        beyond_scale=beyond,
        scores=_scores(results, column, metrics),
        classes=parts["classes"],
        groups=parts["groups"],
        validation=_mean([o.records[o.chosen][table.select] for o in rows[chosen].outcomes.values()]),
    )
    return own, f"{own.model}: {_sentence(results, column, own, metrics)}"


def _choose(results: Results, column: ColumnResults) -> str:
    """The row to use: what was declared beforehand first, then what survives correction, else plain training."""
    smallest = results.table.smallest
    better = {
        label: d
        for label, d in column.differences.items()
        if label != plan.SCALED_BASELINE and d.conclusion(smallest=smallest) == "better"
    }
    if results.table.primary in better:
        return results.table.primary
    return max(better, key=lambda label: abs(better[label].mean), default=plan.BASELINE)


def _scores(results: Results, column: ColumnResults, metrics: Sequence[Metric]) -> dict[str, list[Score]]:
    """Every metric of every row at the epoch that validation chose."""
    scores: dict[str, list[Score]] = {label: [] for label in column.rows}
    for metric in metrics:
        key = f"test/{metric.key}"
        values = {
            label: {seed: _value(o, key) for seed, o in row.outcomes.items()} for label, row in column.rows.items()
        }
        # A split whose test part lacks a class has no AUROC under any row: it does not count for that metric.
        recorded = {seed for row in values.values() for seed, value in row.items() if not math.isnan(value)}
        if not recorded:
            continue
        values = {
            label: {seed: value for seed, value in row.items() if seed in recorded} for label, row in values.items()
        }
        differences = _against_plain(results, values)
        for label, own in values.items():
            scores[label].append(
                Score(metric=metric, mean=_mean(list(own.values())), difference=differences.get(label))
            )
    return scores


def _against_plain(results: Results, values: Mapping[str, Mapping[int, float]]) -> dict[str, Difference]:
    """Differences of one number to plain training, corrected for their number."""
    plain = values[plan.BASELINE]
    differences: dict[str, Difference] = {}
    for label, own in values.items():
        seeds = [s for s in sorted(set(own) & set(plain)) if math.isfinite(own[s] + plain[s])]
        if label != plan.BASELINE and seeds:
            primary = label == results.table.primary
            differences[label] = difference(
                results.table, [own[s] for s in seeds], [plain[s] for s in seeds], primary=primary
            )
    return stats.corrected(differences)


def _parts(results: Results, column: ColumnResults, label: str, key: str, names: Sequence[str]) -> list[SubsetScore]:
    """The score of each class or group under plain training and under a row, over the splits that tested on it."""
    if label not in column.rows:
        return []
    ours, plain = column.rows[label].outcomes, column.rows[plan.BASELINE].outcomes
    scores: list[SubsetScore] = []
    for i, name in enumerate(names):
        pairs = [(_entry(ours[s], key, i), _entry(plain[s], key, i)) for s in sorted(set(ours) & set(plain))]
        pairs = [(a, b) for a, b in pairs if math.isfinite(a + b)]
        if pairs:
            first, second = [a for a, _ in pairs], [b for _, b in pairs]
            apart = difference(results.table, first, second) if len(pairs) > 1 else None
            scores.append(SubsetScore(name=name, plain=_mean(second), ours=_mean(first), difference=apart))
    return scores


def _sentence(results: Results, column: ColumnResults, model: ModelAnswer, metrics: Sequence[Metric]) -> str:
    table = results.table
    label = model.chosen if model.chosen != plan.BASELINE else table.primary
    apart = column.differences.get(label)
    if label not in column.rows or apart is None or apart.n < 2:
        return "too few splits have finished to draw a conclusion."
    metric = _judged_by(results, metrics)
    unchanged = [
        s.metric.name
        for s in model.scores[model.chosen]
        if s.metric.key in ("auroc", "accuracy")
        and s.metric.key != metric.key
        and s.difference is not None
        and s.difference.conclusion(smallest=s.metric.smallest) == "no evidence"
    ]
    errors = table.smallest and not model.classes
    return verdict.effect(
        row_name(label, column.rows[label].method),
        metric.name,
        apart,
        unit_of(metric, _mean(column.rows[label].values)),
        smallest=table.smallest,
        details=[
            verdict.largest_gain("class", _gains(model.classes, 1.0), percent=True),
            verdict.largest_gain("group", _gains(model.groups, -1.0 if errors else 1.0), percent=not errors),
            f"no change seen in {' and '.join(unchanged)}" if unchanged else "",
        ],
    )


def _judged_by(results: Results, metrics: Sequence[Metric]) -> Metric:
    return next(m for m in metrics if results.table.metric == f"test/{m.key}")


def _gains(scores: Sequence[SubsetScore], sign: float) -> dict[str, float]:
    """By how much classes or groups are better, among those that more than one split tested on."""
    return {s.name: sign * (s.ours - s.plain) for s in scores if s.difference is not None}


def _headline(results: Results, best: ModelAnswer) -> str:
    column = next(c for c in results.columns if c.name == best.model)
    name = row_name(best.chosen, column.rows[best.chosen].method)
    return verdict.recommendation(results.table, best.primary, best.chosen, name, comparisons=len(column.differences))


def _remarks(best: ModelAnswer, metric: Metric) -> list[str]:
    """Whether a gain is more than a larger step; or, without one, which differences could have been detected."""
    if best.beyond_scale is not None:
        return [verdict.beyond_scale(survives=best.beyond_scale)]
    if best.chosen != plan.BASELINE or best.primary is None or not math.isfinite(best.primary.low):
        return []
    unit = unit_of(metric, (best.primary.high - best.primary.low) / 2)
    return verdict.resolution(best.primary, metric.name, unit, smallest=metric.smallest)


def _value(outcome: Outcome, key: str) -> float:
    return float(outcome.records[outcome.chosen].get(key, math.nan))


def _entry(outcome: Outcome, key: str, i: int) -> float:
    values = outcome.records[outcome.chosen].get(f"test/{key}") or []
    return float(values[i]) if i < len(values) else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
