"""The first screen and the figures of a comparison's page: the recommended action against the best plain training."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from reweigh.bench.compare.actions import Action
from reweigh.bench.compare.answer import Answer, Score, SubsetScore, unit_of
from reweigh.bench.compare.row_scores import RowScores
from reweigh.bench.lab import plan
from reweigh.bench.lab.results import Figure, Outcome, Results
from reweigh.bench.report.charts import Panel, panels
from reweigh.bench.report.confusion import confusion
from reweigh.bench.report.cuts import Classifier, cuts, reliability
from reweigh.bench.report.dumbbells import Pair, dumbbells
from reweigh.bench.report.forest import ranking
from reweigh.bench.report.markup import element
from reweigh.bench.report.numbers import MarkStyle, typeset
from reweigh.bench.report.plane import PlanePoint, plane
from reweigh.bench.train.scores import Metric

#: What stands for the average, and what for the worst, the first pair that a comparison has both of.
_AVERAGE_AND_WORST = (
    ("accuracy", "worst_group"),
    ("rmse", "worst_group"),
    ("balanced_accuracy", "worst_class"),
    ("rmse", "worst_tenth_loss"),
)


def opening(answer: Answer, *, source: str, model: Path | None) -> Markup:
    """What to use as a line to copy, what it costs, and every action with its interval.

    `source` stands for new rows in the line, and `model` is the folder of the kept model, if there is one.
    """
    decision, name = answer.decision, element("b", answer.names[answer.decision.use.key])
    if model is None:
        use = [element("p", "No model has been kept yet; it would use ", name, ".")]
    else:
        line = f"reweigh predict {shlex.quote(str(model))} {source} -o predictions.csv"
        use = [
            element("p", "The model that is kept uses ", name, ":"),
            element("code", line, class_="use", tabindex=0),
        ]
    if decision.use.method != plan.BASELINE:
        use.append(element("p", "In your own code: ", element("code", f'reweigh.method("{decision.use.method}")'), "."))
    roles = {decision.use.key: "primary"}
    rows = [
        (MarkStyle(label=answer.names[a.key], role=roles.get(a.key, "other"), key=f"a{i}"), a.difference)
        for i, a in enumerate(decision.ranked)
        if a.difference is not None
    ]
    plot = ranking("", rows, answer.unit)
    costs = [element("li", typeset(line)) for line in answer.costs]
    better = "left" if decision.smallest else "right"
    return element(
        "div",
        *use,
        element("ul", *costs) if costs else "",
        element(
            "div",
            element(
                "h2",
                f"{answer.metric.name} against {answer.names[decision.reference.key]}; {better} is better",
                class_="of-panel",
            ),
            plot.markup,
            class_="forest",
            style=f"--letters: {plot.letters}ch; --names: {plot.name_letters}ch",
        ),
        class_="opening",
    )


def figures_of(answer: Answer, results: Results, tested: RowScores | None) -> list[Figure]:
    """The trade-off, classes and groups, confusions, cuts and reliability, as far as there are numbers for them."""
    decision = answer.decision
    shown = decision.best if decision.keeps_plain and decision.best is not None else decision.use
    figures = [*_trade_off(answer, shown), *_subsets(answer, shown)]
    if tested is not None and answer.classes and shown.key != decision.reference.key:
        figures += _of_outputs(answer, results, tested, shown)
    return figures


def _trade_off(answer: Answer, shown: Action) -> list[Figure]:
    scores = {
        (m.model, label): {s.metric.key: s for s in own} for m in answer.models for label, own in m.scores.items()
    }
    reference = answer.decision.reference.key
    pair = next((p for p in _AVERAGE_AND_WORST if all(key in scores[reference] for key in p)), None)
    if pair is None:
        return []
    plain = [scores[reference][key] for key in pair]
    roles = {reference: "baseline", shown.key: "primary"}
    points = []
    for key, own in scores.items():
        if all(name in own for name in pair):
            first, second = (own[name] for name in pair)
            points.append(
                PlanePoint(
                    name=answer.names.get(key, key[1]),
                    role=roles.get(key, "other"),
                    at=(first.mean, second.mean),
                    x_span=_span(first, plain[0]),
                    y_span=_span(second, plain[1]),
                    named=key in roles,
                )
            )
    names = (plain[0].metric.name, plain[1].metric.name)
    return [
        Figure(
            title=f"{names[0].capitalize()} against {names[1]}",
            markup=plane(points, names=names, units=(plain[0].unit, plain[1].unit)),
            caption="Every method of every model: on average, and where it is worst. Crosses are the 95 % intervals of "
            "the difference to the best plain training, around its number; they are cut where the axes end.",
        )
    ]


def _span(score: Score, plain: Score) -> tuple[float, float] | None:
    d = score.difference
    return None if d is None or not np.isfinite(d.low + d.high) else (plain.mean + d.low, plain.mean + d.high)


def _subsets(answer: Answer, shown: Action) -> list[Figure]:
    """Every class and every group before and after, with the interval of what changed."""
    names = (answer.names[answer.decision.reference.key], answer.names[shown.key])
    errors = not answer.classes
    figures: list[Figure] = []
    for what, scored in (("Class by class", answer.classes), ("Group by group", answer.groups)):
        if scored:
            unit = unit_of(Metric(key="part", name=what, percent=not errors), scored[0].plain)
            marks = dumbbells([_pair(score) for score in scored], unit, names=names, smallest=errors)
            measure = "Root mean squared error" if errors else "Accuracy"
            figures.append(
                Figure(
                    title=what,
                    markup=element("div", _legend(*names), marks, class_="class-panel"),
                    caption=f"{measure}, mean over the splits that tested on it. The bar is the 95 % interval of the "
                    "difference, not corrected for the number of lines; the link is dashed where it loses.",
                )
            )
    return figures


def _pair(score: SubsetScore) -> Pair:
    d = score.difference
    known = d is not None and np.isfinite(d.low + d.high)
    span = (score.plain + d.low, score.plain + d.high) if d is not None and known else None
    return Pair(name=score.name, before=score.plain, after=score.ours, span=span)


def _of_outputs(answer: Answer, results: Results, tested: RowScores, shown: Action) -> list[Figure]:
    reference = answer.decision.reference
    both: Sequence[tuple[Action, str]] = ((reference, "baseline"), (shown, "primary"))
    outcomes = {action.key: _outcomes(results, action) for action, _ in both}
    # As everywhere, on the splits that both have finished: on more splits of one the numbers would be of other rows.
    shared = set.intersection(*(set(own) for own in outcomes.values()))
    classifiers = [
        Classifier(
            name=answer.names[action.key],
            role=role,
            tested=tested.tested({seed: o for seed, o in outcomes[action.key].items() if seed in shared}),
        )
        for action, role in both
    ]
    if not all(classifier.tested for classifier in classifiers):
        return []
    names = [score.name for score in answer.classes]
    width = classifiers[0].tested[0][0].shape[1]
    legend = _legend(classifiers[0].name, classifiers[1].name)
    figures: list[Figure] = []
    if len(names) == width:
        squares = [
            Panel(title=c.name, markup=confusion(_counts(c, width), names, title=f"Confusions of {c.name}"))
            for c in classifiers
        ]
        figures.append(
            Figure(
                title="What is taken for what",
                markup=panels(squares),
                caption="Of the rows of each class (lines), the percentage that was taken for each class (columns, in "
                "the same order), over all splits. Darker is more.",
            )
        )
        worst = tested.judging.positive if width == 2 else int(np.argmin([score.plain for score in answer.classes]))
        figures.append(
            Figure(
                title=f"Where it cuts: {names[worst]!r} against the rest",
                markup=legend + panels(cuts(classifiers, worst)),
                caption="Lines are what a model's scores allow, averaged over splits; dots are where it cuts. Dots on "
                "one line differ in the cut alone."
                + ("" if width == 2 else " The class is the one that plain training recognises worst."),
            )
        )
    figures.append(
        Figure(
            title="Can probabilities be trusted?",
            markup=legend + panels([Panel(title="reliability", markup=reliability(classifiers))]),
            caption="On the diagonal a probability means what it says; below it, the model is too sure of itself.",
        )
    )
    return figures


def _counts(classifier: Classifier, width: int) -> np.ndarray:
    pairs = np.concatenate([own * width + outputs.argmax(1) for outputs, own in classifier.tested])
    return np.bincount(pairs, minlength=width**2).reshape(width, width)


def _outcomes(results: Results, action: Action) -> dict[int, Outcome]:
    column = next(column for column in results.columns if column.name == action.model)
    return dict(column.rows[action.label].outcomes)


def _legend(plain: str, ours: str) -> Markup:
    return element(
        "p",
        element("i", class_="swatch hollow baseline"),
        plain,
        " ",
        element("i", class_="swatch primary"),
        ours,
        class_="note",
    )
