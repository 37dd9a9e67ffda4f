"""What a classifier's scores allow, where it cuts, and how far its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy import special

from reweigh.bench.report import svg
from reweigh.bench.report.charts import Line, Panel, lines

Array = np.ndarray[Any, Any]
#: The outputs of a classifier (logits) on the rows it was tested on, and their classes, split by split.
Tested = Sequence[tuple[Array, Array]]

#: Places at which the curves of splits are averaged, and bins of confidence.
_GRID, _BINS = np.linspace(0.0, 1.0, 51), 10


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier as it is drawn: its name, its role, and its outputs for the rows it was tested on."""

    name: str
    role: str
    tested: Tested


def cuts(classifiers: Sequence[Classifier], positive: int) -> list[Panel]:
    """ROC, and precision by recall, of one class against the others, with the point at which each classifier cuts."""
    roc = {c.name: _averaged(c.tested, positive, _roc) for c in classifiers}
    recall = {c.name: _averaged(c.tested, positive, _precision_recall) for c in classifiers}
    return [
        _panel("ROC", classifiers, roc, "share of other rows taken for it", "share of its rows found"),
        _panel("precision and recall", classifiers, recall, "recall", "precision"),
    ]


def reliability(classifiers: Sequence[Classifier]) -> Markup:
    """The share of right answers by confidence; on the diagonal a probability means what it says."""
    drawn = [Line(name="", role="rule", xs=[0.0, 1.0], ys=[0.0, 1.0], named=False)]
    for classifier in classifiers:
        confidence, right = _confidence(classifier.tested)
        bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
        counts = np.bincount(bins, minlength=_BINS)
        used = np.flatnonzero(counts >= 5)  # a share of fewer rows is noise
        if not len(used):
            continue
        xs, ys = ((np.bincount(bins, weights=w, minlength=_BINS)[used] / counts[used]) for w in (confidence, right))
        tips = [
            f"{classifier.name}: confidence {100 * x:.0f} %, right {100 * y:.0f} % of {counts[k]} rows"
            for x, y, k in zip(xs, ys, used, strict=True)
        ]
        drawn.append(
            Line(
                name=classifier.name,
                role=classifier.role,
                xs=xs.tolist(),
                ys=ys.tolist(),
                tips=tips,
                tip=classifier.name,
                named=False,
            )
        )
    return lines(
        drawn,
        title="Reliability",
        description="Share of right answers by confidence, in ten bins.",
        x_label="confidence",
        y_label="share of right answers",
        x_domain=(min(x for line in drawn[1:] or drawn for x in line.xs) - 0.02, 1.0),
        y_domain=(0.0, 1.0),
        tick=_percent,
    )


def _panel(
    title: str, classifiers: Sequence[Classifier], curves: Mapping[str, tuple[Array, Array]], x_label: str, y_label: str
) -> Panel:
    drawn = [
        Line(name=c.name, role=c.role, xs=_GRID.tolist(), ys=curves[c.name][0].tolist(), tip=c.name, named=False)
        for c in classifiers
    ]

    def points(frame: svg.Frame) -> Markup:
        return Markup("").join(
            svg.dots(
                frame,
                [curves[c.name][1][0]],
                [curves[c.name][1][1]],
                role=c.role,
                tips=[f"{c.name} cuts at {_percent(curves[c.name][1][0])}, {_percent(curves[c.name][1][1])}"],
                radius=5.5,
            )
            for c in classifiers
        )

    cuts = "; ".join(
        f"{c.name} {_percent(curves[c.name][1][0])}, {_percent(curves[c.name][1][1])}" for c in classifiers
    )
    return Panel(
        title=title,
        markup=lines(
            drawn,
            title=title,
            description=f"Mean over splits. Cuts at: {cuts}.",
            x_label=x_label,
            y_label=y_label,
            y_domain=(0.0, 1.0),
            tick=_percent,
            over=points,
        ),
    )


def _averaged(tested: Tested, positive: int, curve: Any) -> tuple[Array, Array]:
    """The mean of a curve over the splits that have both kinds of rows, and the mean place of the cut."""
    curves: list[Array] = []
    places: list[tuple[float, float]] = []
    for outputs, targets in tested:
        own = targets == positive
        if own.any() and not own.all():
            named = outputs.argmax(1) == positive
            ys, place = curve(own, special.log_softmax(outputs, axis=1)[:, positive], named)
            curves.append(ys)
            places.append(place)
    if not curves:
        return np.full(len(_GRID), np.nan), np.full(2, np.nan)
    return np.mean(curves, axis=0), np.mean(places, axis=0)


def _roc(own: Array, scores: Array, named: Array) -> tuple[Array, tuple[float, float]]:
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(own, scores)
    return np.interp(_GRID, false, true), (float(named[~own].mean()), float(named[own].mean()))


def _precision_recall(own: Array, scores: Array, named: Array) -> tuple[Array, tuple[float, float]]:
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(own, scores)
    hits = float((named & own).sum())
    # A classifier that never names the class makes no mistake about it either.
    place = (hits / own.sum(), hits / named.sum() if named.any() else 1.0)
    return np.interp(_GRID, recall[::-1], precision[::-1]), place


def _confidence(tested: Tested) -> tuple[Array, Array]:
    probabilities = np.concatenate([special.softmax(outputs, axis=1) for outputs, _ in tested])
    targets = np.concatenate([own for _, own in tested])
    return probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
