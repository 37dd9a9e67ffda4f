"""The answer to a comparison: what to use, what that costs, what RGD itself does, and what is open.

`actions` decides, this module gathers the numbers around the decision, and `report.advice` words them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy import stats as distributions

from reweigh.bench.compare import actions
from reweigh.bench.compare.actions import Action, Decision, Strength, against, decide, largest_gain
from reweigh.bench.compare.search import MOST, SearchOutcome
from reweigh.bench.lab import plan, stats
from reweigh.bench.lab.results import ColumnResults, Outcome, Results
from reweigh.bench.lab.stats import Difference
from reweigh.bench.lab.table import Table
from reweigh.bench.report import advice
from reweigh.bench.report.advice import Change
from reweigh.bench.report.numbers import Unit
from reweigh.bench.report.verdict import BASELINE_NAME
from reweigh.bench.train.scores import Metric
from reweigh.method import method
from reweigh.objectives.rgd import RGD

#: Metrics that a recommendation may cost, and those that only the ranking of rows changes.
_COSTS = ("accuracy", "balanced_accuracy", "loss", "calibration_error", "mae")
_RANKINGS = ("average_precision", "auroc")
#: Metrics that the ranking alone decides: moving the cut cannot change them.
_WITHOUT_A_CUT = (*_RANKINGS, "loss", "worst_tenth_loss", "calibration_error")
#: By how much rows may be too few for more splits to make up for it: what seeds and splits add to a width.
_IN_REACH = 1.5
#: More splits than this narrow no interval.
_MOST_SPLITS = 200


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one row: the mean over splits, and how it differs from the reference."""

    metric: Metric
    mean: float
    difference: Difference | None

    @property
    def unit(self) -> Unit:
        """How its numbers are written."""
        return unit_of(self.metric, self.mean)


@dataclass(frozen=True, kw_only=True)
class SubsetScore:
    """The score of a class or a group under the reference and under the action to use, and the difference."""

    name: str
    plain: float
    ours: float
    difference: Difference | None


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """The numbers of one model: every metric of every row, and the declared row against its plain training."""

    model: str
    splits: int
    primary: Difference | None
    scores: Mapping[str, Sequence[Score]]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The whole answer: the headline and its strength, what it costs, the declared row's own line, and what is open."""

    headline: str
    decision: Decision
    costs: Sequence[str]
    declared: Sequence[str]
    unanswered: Sequence[str]
    models: Sequence[ModelAnswer]
    classes: Sequence[SubsetScore]
    groups: Sequence[SubsetScore]
    unit: Unit
    metric: Metric
    names: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    #: Processes that share the work.
    jobs: int = 1

    @property
    def strength(self) -> Strength:
        """How sure the headline is."""
        return self.decision.strength

    @property
    def model(self) -> str:
        """The model to use."""
        return self.decision.use.model

    @property
    def row(self) -> str:
        """The row to use."""
        return self.decision.use.label

    @property
    def details(self) -> list[str]:
        """Every sentence below the headline."""
        return [*self.costs, *self.declared, *self.unanswered]


def answer(
    results: Results,
    metrics: Sequence[Metric],
    classes: Sequence[str],
    groups: Sequence[str],
    *,
    jobs: int = 1,
) -> Answer | None:
    """The answer that the finished runs allow; None before plain training has finished a split.

    `jobs` is how many processes share the work, for the budget that would decide what is open.
    """
    metric = _judged_by(results, metrics)
    typical = _typical(results)
    decision = decide(results, metric.margin(typical))
    if decision is None:
        return None
    unit = unit_of(metric, typical)
    several = len([c for c in results.columns if plan.BASELINE in c.rows]) > 1
    names = {a.key: _action_name(a, several=several) for a in decision.ranked}
    scores = _scores(results, decision, metrics)
    kinds = {
        kind: _parts(results, decision, key, subset_names)
        for kind, key, subset_names in (("class", "class_accuracy", classes), ("group", "group_score", groups))
    }
    return Answer(
        headline=_headline(decision, names, metric, unit),
        decision=decision,
        costs=_costs(results, decision, names, metrics, metric, kinds, regression=not classes),
        declared=_declared(results, metric, unit),
        unanswered=_unanswered(results, decision, names, unit, metric, jobs),
        models=[
            ModelAnswer(
                model=column.name,
                splits=len(column.rows[plan.BASELINE].outcomes),
                primary=against(results, (column.name, results.table.primary), (column.name, plan.BASELINE)),
                scores=scores[column.name],
            )
            for column in results.columns
            if plan.BASELINE in column.rows
        ],
        classes=kinds["class"],
        groups=kinds["group"],
        unit=unit,
        metric=metric,
        names=names,
        jobs=jobs,
    )


def caveats(answer: Answer, table: Table, outcome: SearchOutcome) -> list[str]:
    """How the search ended, and what limits the answer: models without one, dropped rows, no tuning, few splits."""
    judged = {model.model for model in answer.models}
    lines = [f"{column.name}: no split has finished yet." for column in table.columns if column.name not in judged]
    if outcome.ended == "decided":
        lines.append(f"Decided after {outcome.seconds:.0f} s; the rest of the budget was not needed.")
    if outcome.ended == "interrupted":
        lines.append("Interrupted: the answer uses what had finished. Run the same command again to resume.")
    if outcome.dropped:
        after = sorted(set(outcome.dropped.values()))
        when = f"{after[0]} splits" if len(after) == 1 else f"{after[0]} to {after[-1]} splits"
        lines.append(
            f"{len(outcome.dropped)} of {answer.decision.comparisons} alternatives were dropped after {when}, since "
            "they could no longer win"
            f"{'; what was dropped before tuning is shown as written' if outcome.tuned else ''}."
        )
    if not outcome.tuned:
        lines.append(
            "Not tuned: the budget was too short, so every method ran as written. A larger --budget tunes all alike."
        )
    if any(model.splits < 5 for model in answer.models):
        lines.append("Few splits: run the same command with a larger --budget to add more and narrow the interval.")
    return lines


def row_name(label: str, text: str) -> str:
    """A row for a sentence: RGD with its tau, everything else by its text."""
    if label == plan.BASELINE:
        return BASELINE_NAME
    if label.startswith(f"{plan.BASELINE}+") and actions.is_plain(text):
        return f"{BASELINE_NAME} with {label.removeprefix(f'{plan.BASELINE}+')}"
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


def margin_words(metric: Metric, margin: float, unit: Unit) -> str:
    """The smallest change that matters, in words."""
    if metric.percent:
        return f"{unit.scale * margin:g} point" + ("" if unit.scale * margin == 1 else "s")
    return f"{margin:.2g}" + (" (1 %)" if metric.relative else "")


def _headline(decision: Decision, names: Mapping[tuple[str, str], str], metric: Metric, unit: Unit) -> str:
    plain = names[decision.reference.key]
    best = decision.best
    if best is None or best.difference is None or best.difference.n < 2:
        return advice.too_little()
    if decision.strength == "decided":
        if decision.keeps_plain:
            return advice.keep(plain, metric.name, margin_words(metric, decision.margin, unit), decision.comparisons)
        apart = decision.use.difference
        assert apart is not None
        return advice.use(names[decision.use.key], plain, metric.name, apart, unit, comparisons=decision.comparisons)
    name, apart = names[best.key], best.difference
    if decision.strength == "leading":
        chance = actions.probability(apart, smallest=decision.smallest)
        return advice.leading(name, plain, metric.name, apart, unit, chance)
    return advice.undecided(
        name,
        plain,
        metric.name,
        apart,
        unit,
        ahead=decision.gain(best) > 0,
        meanwhile=names[decision.use.key],
        most=decision.most if decision.keeps_plain else math.inf,
    )


def _costs(
    results: Results,
    decision: Decision,
    names: Mapping[tuple[str, str], str],
    metrics: Sequence[Metric],
    metric: Metric,
    kinds: Mapping[str, Sequence[SubsetScore]],
    *,
    regression: bool,
) -> list[str]:
    """What the action to use changes besides the metric it was chosen by; nothing before it is at least leading."""
    if decision.keeps_plain or decision.strength == "undecided":
        return []
    changes = {m.key: c for m in metrics if m is not metric and (c := _change(results, decision, m)) is not None}
    lines = advice.costs([changes[key] for key in _COSTS if key in changes], "of 1 point or 1 %")
    if metric.key not in _WITHOUT_A_CUT and not regression:
        lines += _source_of_gain(results, decision, names, metrics)
        lines += _without_training(decision, names, unit_of(metric, decision.reference.mean))
    errors = regression
    for what, scored in kinds.items():
        family = stats.corrected({s.name: s.difference for s in scored if s.difference is not None})
        lines += advice.subsets(
            what,
            "classes" if what == "class" else "groups",
            [
                Change(
                    name=name,
                    difference=d,
                    unit=unit_of(Metric(key=what, name=what, percent=not errors), decision.reference.mean),
                    margin=0.01,
                    smallest=errors,
                )
                for name, d in family.items()
            ],
        )
    return lines


def _source_of_gain(
    results: Results, decision: Decision, names: Mapping[tuple[str, str], str], metrics: Sequence[Metric]
) -> list[str]:
    """What the method does to the ranking of rows, and what another model than the reference's does.

    Plain training of the same model has the same ranking wherever only the cut moved; another model ranks differently
    whatever its method.
    """
    ranking = next((m for key in _RANKINGS for m in metrics if m.key == key and _change(results, decision, m)), None)
    if ranking is None:
        return []
    if decision.use.model == decision.reference.model:
        return advice.source_of_gain(_change(results, decision, ranking))
    own = next((a for a in decision.ranked if a.key == (decision.use.model, plan.BASELINE)), None)
    lines: list[str] = []
    if own is not None and own.key != decision.use.key:
        lines = advice.source_of_gain(_change(results, decision, ranking, to=own), names[own.key])
    return [*lines, *advice.other_model(names[decision.reference.key], _change(results, decision, ranking))]


def _without_training(decision: Decision, names: Mapping[tuple[str, str], str], unit: Unit) -> list[str]:
    """The best correction of plain outputs, where it is within the margin of a recommendation that trains otherwise."""
    free = [a for a in decision.ranked if not a.retrained and a.difference is not None and a.label != plan.BASELINE]
    if not decision.use.retrained or not free or free[0].difference is None:
        return []
    if decision.gain(free[0]) < max(decision.gain(decision.use) - decision.margin, 0.0):
        return []
    return [advice.without_training(names[free[0].key], free[0].difference, unit)]


def _change(results: Results, decision: Decision, metric: Metric, to: Action | None = None) -> Change | None:
    """How a metric of the action to use differs from another's, the reference's unless given."""
    ours, plain = (_outcomes(results, a.key) for a in (decision.use, to or decision.reference))
    apart = results.apart(f"test/{metric.key}", ours, plain)
    if apart is None:
        return None
    typical = _mean([v for o in plain.values() if math.isfinite(v := o.score(f"test/{metric.key}"))])
    return Change(
        name=metric.name,
        difference=apart,
        unit=unit_of(metric, typical),
        margin=metric.margin(typical),
        smallest=metric.smallest,
    )


def _declared(results: Results, metric: Metric, unit: Unit) -> list[str]:
    """The row declared beforehand against plain training, model by model."""
    lines: list[str] = []
    primary = results.table.primary
    for column in results.columns:
        apart = against(results, (column.name, primary), (column.name, plan.BASELINE))
        if apart is None:
            continue
        plain = column.rows[plan.BASELINE]
        change = Change(
            name=metric.name,
            difference=apart,
            unit=unit,
            margin=metric.margin(_mean(plain.values)),
            smallest=metric.smallest,
        )
        name = row_name(primary, column.rows[primary].method)
        lines.append(advice.own_line(name, column.name, BASELINE_NAME, metric.name, change, _survives(results, column)))
    return lines


def _survives(results: Results, column: ColumnResults) -> bool | None:
    """Whether the declared row's gain survives weights of mean one; None without that control."""
    normalised = column.differences.get(plan.NORMALISED)
    return None if normalised is None else normalised.conclusion(smallest=results.table.smallest) == "better"


def _unanswered(
    results: Results,
    decision: Decision,
    names: Mapping[tuple[str, str], str],
    unit: Unit,
    metric: Metric,
    jobs: int,
) -> list[str]:
    """What would decide an undecided headline, and what looks better than the decided one."""
    best = decision.best
    if best is None or best.difference is None or best.difference.n < 2:
        return []
    apart = best.difference
    if decision.strength == "decided":
        if decision.keeps_plain or best.key == decision.use.key:
            return []
        return [f"{names[best.key]} may be better still, {advice.amount(apart, unit)}; that is not decided."]
    if decision.keeps_plain and (kept := _would_keep(results, decision, names, unit, metric, jobs)):
        return [kept]
    if apart.constant:
        return [] if apart.mean else [f"Both score the same on every split: {metric.name} does not separate them here."]
    comparisons = 1 if apart.primary else decision.comparisons
    splits, factor = _needed_for(results, apart, comparisons)
    seconds = None if splits is None else splits * seconds_per_split(results) / max(jobs, 1)
    half = f"{unit.value((apart.high - apart.low) / 2)}{unit.points}"
    effect = f"{unit.value(abs(apart.mean))}{unit.points}"
    return [advice.would_decide(half, effect, seconds=seconds, rows_factor=factor)]


def _would_keep(
    results: Results,
    decision: Decision,
    names: Mapping[tuple[str, str], str],
    unit: Unit,
    metric: Metric,
    jobs: int,
) -> str:
    """What would show that nothing gains more than the margin; empty where that takes more than deciding the best."""
    best = decision.best
    splits, factor = 0, 1.0
    for action in decision.ranked:
        apart = action.difference
        if apart is None or largest_gain(apart, decision.sign) <= decision.margin:
            continue
        room = decision.margin - decision.gain(action)
        if apart.n < 2 or apart.constant or room <= 0:
            return ""
        # An interval of 95 % is enough: the claim is about all of them at once, so none is corrected.
        more, rows = _needed_for(results, apart, 1, room)
        splits = None if splits is None or more is None else max(splits, more)
        factor = max(factor, rows)
    if best is not None and best.difference is not None and splits is None and best.difference.mean:
        decided, rows = _needed_for(results, best.difference, 1 if best.difference.primary else decision.comparisons)
        if decided is not None or rows < factor:
            return ""
    seconds = None if splits is None else splits * seconds_per_split(results) / max(jobs, 1)
    margin = margin_words(metric, decision.margin, unit)
    return advice.would_keep(names[decision.reference.key], margin, seconds=seconds, rows_factor=factor)


def _needed_for(
    results: Results, apart: Difference, comparisons: int, effect: float | None = None
) -> tuple[int | None, float]:
    if results.compare is None:
        return needed(apart, results.table.overlap, comparisons, effect)
    return needed_of_rows(apart, comparisons, effect)


def needed(
    apart: Difference, overlap: float, comparisons: int, effect: float | None = None
) -> tuple[int | None, float]:
    """How many splits would decide a difference if it stayed as it is; None and a factor of rows where none would.

    The interval has to be narrower than `effect` to either side, which is the difference itself unless given.

    The deviation of a split's difference falls with the square root of the rows, so the factor is the square of how
    much too wide the interval of infinitely many splits is.
    """
    level, effect = 1 - 0.025 / max(comparisons, 1), abs(apart.mean) if effect is None else effect
    for n in range(apart.n, _MOST_SPLITS + 1):
        if float(distributions.t.ppf(level, n - 1)) * apart.sd * math.sqrt(1 / n + overlap) < effect:
            return n, 1.0
    narrowest = float(distributions.norm.ppf(level)) * apart.sd * math.sqrt(overlap)
    return None, (narrowest / effect) ** 2 if effect else math.inf


def needed_of_rows(apart: Difference, comparisons: int, effect: float | None = None) -> tuple[int | None, float]:
    """The same for intervals over rows, which more splits narrow little: none helps an effect much below the width."""
    half, effect = (apart.high - apart.low) / 2, abs(apart.mean) if effect is None else effect
    level = 1 - 0.025 / max(comparisons, 1)
    corrected = half * float(distributions.norm.ppf(level) / distributions.norm.ppf(0.975))
    factor = (corrected / effect) ** 2 if effect else math.inf
    return (2 * apart.n, factor) if factor < _IN_REACH and 2 * apart.n <= MOST else (None, factor)


def seconds_per_split(results: Results) -> float:
    """Computing time of a split of all models and rows."""
    outcomes = [o for column in results.columns for row in column.rows.values() for o in row.outcomes.values()]
    splits = len({o.run.spec.seed for o in outcomes})
    return sum(float(o.run.summary().get("seconds", 0.0)) for o in outcomes) / max(splits, 1)


def _scores(results: Results, decision: Decision, metrics: Sequence[Metric]) -> dict[str, dict[str, list[Score]]]:
    """Every metric of every row but the controls, by model; differences are to the decision's reference."""
    keys = [(c.name, label) for c in results.columns for label in c.rows if label not in plan.CONTROLS]
    judged = _judged_by(results, metrics)
    decided = {action.key: action.difference for action in decision.ranked}
    scores: dict[str, dict[str, list[Score]]] = {c.name: {} for c in results.columns}
    for model, label in keys:
        scores[model][label] = []
    for metric in metrics:
        values = {key: _metric_values(results, key, metric) for key in keys}
        # A split whose test part lacks a class has no AUROC under any row: it does not count for that metric.
        recorded = {seed for row in values.values() for seed, value in row.items() if not math.isnan(value)}
        if not recorded:
            continue
        values = {key: {s: v for s, v in row.items() if s in recorded} for key, row in values.items()}
        differences = decided if metric is judged else _to_reference(results, keys, metric, decision.reference)
        for model, label in keys:
            own = values[model, label]
            scores[model][label].append(
                Score(metric=metric, mean=_mean(list(own.values())), difference=differences.get((model, label)))
            )
    return scores


def _to_reference(
    results: Results, keys: Sequence[tuple[str, str]], metric: Metric, reference: Action
) -> dict[tuple[str, str], Difference | None]:
    """Differences of one metric to the reference, corrected for their number."""
    plain = _outcomes(results, reference.key)
    differences: dict[str, Difference] = {}
    for model, label in keys:
        declared = model == reference.model and label == results.table.primary
        if (model, label) != reference.key:
            apart = results.apart(f"test/{metric.key}", _outcomes(results, (model, label)), plain, primary=declared)
            if apart is not None:
                differences[f"{model}\0{label}"] = apart
    corrected = stats.corrected(differences)
    return {(model, label): corrected.get(f"{model}\0{label}") for model, label in keys}


def _parts(results: Results, decision: Decision, key: str, names: Sequence[str]) -> list[SubsetScore]:
    """The score of each class or group under the reference and the action to use, over the splits that tested on it.

    Where plain training is used, the best other action is shown next to it.
    """
    shown = decision.best if decision.keeps_plain else decision.use
    if shown is None:
        return []
    ours, plain = (_outcomes(results, action.key) for action in (shown, decision.reference))
    scores: list[SubsetScore] = []
    for i, name in enumerate(names):
        shared = sorted(set(ours) & set(plain))
        pairs = [(ours[seed].score(f"test/{key}", i), plain[seed].score(f"test/{key}", i)) for seed in shared]
        pairs = [(first, second) for first, second in pairs if math.isfinite(first + second)]
        if pairs:
            first, second = zip(*pairs, strict=True)
            apart = results.apart(f"test/{key}", ours, plain, index=i) if len(pairs) > 1 else None
            scores.append(SubsetScore(name=name, plain=_mean(second), ours=_mean(first), difference=apart))
    return scores


def _action_name(action: Action, *, several: bool) -> str:
    """An action for a sentence; the model is named where there is more than one."""
    name = row_name(action.label, action.method)
    if not several:
        return name
    if name.startswith(BASELINE_NAME):
        return f"plain {action.model}{name.removeprefix(BASELINE_NAME)}"
    return f"{action.model} with {name}"


def _typical(results: Results) -> float:
    """The metric's mean under plain training over all models, for its unit and margin."""
    values = [v for c in results.columns if plan.BASELINE in c.rows for v in c.rows[plan.BASELINE].values]
    return _mean([v for v in values if math.isfinite(v)])


def _judged_by(results: Results, metrics: Sequence[Metric]) -> Metric:
    return next(m for m in metrics if results.table.metric == f"test/{m.key}")


def _outcomes(results: Results, key: tuple[str, str]) -> Mapping[int, Outcome]:
    column = next(c for c in results.columns if c.name == key[0])
    return column.rows[key[1]].outcomes


def _metric_values(results: Results, key: tuple[str, str], metric: Metric) -> dict[int, float]:
    return {seed: o.score(f"test/{metric.key}") for seed, o in _outcomes(results, key).items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
