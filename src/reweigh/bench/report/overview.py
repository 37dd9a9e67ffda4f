"""All pages at once: for each trouble and kind of model, how methods rank, what they gain, and what to try first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from reweigh.bench.lab import plan
from reweigh.bench.lab.ranks import Ranks, ranks

#: In the order in which they are shown.
TROUBLES = ("rare classes", "hidden groups", "wrong labels", "none")
#: Rows that explain a difference and that nobody would train with.
_DIAGNOSTIC = (plan.SCALED_BASELINE, plan.AT_PLAIN_RATE)

Experiment = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MeanGain:
    """A mean difference to plain training over settings, more being better, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def seen(self) -> bool:
        """Whether the interval is above zero."""
        return self.low > 0


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One method over the settings of a part.

    `better` and `worse` count the settings with evidence, corrected as their pages correct it; `cost` is the time of a
    step over that of plain training, where it was measured.
    """

    label: str
    name: str
    rank: float
    gain: MeanGain
    better: int
    worse: int
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class OverviewPart:
    """The settings of one trouble and kind of model, with the methods that all of them have, best rank first."""

    trouble: str
    model: str
    settings: Sequence[str]
    rows: Sequence[Ranked]
    points: str
    critical: float | None
    p: float | None

    @property
    def first(self) -> Ranked | None:
        """What to try first: the largest mean gain among the methods that no other outranks; None for plain training.

        Unless its gain is `certain`, plain training is what to try.
        """
        best = min(row.rank for row in self.rows)
        near = [row for row in self.rows if self.critical is None or row.rank <= best + self.critical]
        top = max((row for row in near if row.label != plan.BASELINE), key=lambda row: row.gain.mean, default=None)
        return top if top is not None and self.certain(top) else None

    def certain(self, row: Ranked) -> bool:
        """Whether a gain is evident: on average over the settings, or in every one of them.

        Gains of very different size in a few settings have a wide interval over these, even if all are beyond doubt.
        """
        return row.gain.seen or row.better == len(self.settings)

    @property
    def promising(self) -> list[Ranked]:
        """Methods that gain on average and are better, with evidence, in more settings than worse; the most so first.

        They are what to try where no gain is certain over all settings, which few settings can hardly show.
        """
        own = [row for row in self.rows if row.label not in (plan.BASELINE, plan.NORMALISED)]
        good = [row for row in own if row.better > row.worse and row.gain.mean > 0]
        return sorted(good, key=lambda row: (row.better - row.worse, row.gain.mean), reverse=True)

    def row(self, label: str) -> Ranked | None:
        """A method's row, if all settings have it."""
        return next((row for row in self.rows if row.label == label), None)


def overview(experiments: Iterable[Experiment], costs: Mapping[str, float] | None = None) -> list[OverviewPart]:
    """The parts of all experiments, by trouble and then by the number of settings.

    Parameters
    ----------
    experiments
        What `read_summary` returns, of all pages.
    costs
        The time of a step over that of plain training, by the label of the method.
    """
    groups: dict[tuple[str, str, str], list[tuple[Experiment, Mapping[str, Any]]]] = {}
    for experiment in experiments:
        for setting in experiment["settings"]:
            if setting["trouble"]:
                key = (setting["trouble"], setting["model"], experiment["unit"]["points"])
                groups.setdefault(key, []).append((experiment, setting))
    parts = [_part(*key, members, costs or {}) for key, members in groups.items()]
    return sorted(
        (part for part in parts if part is not None),
        key=lambda part: (TROUBLES.index(part.trouble), -len(part.settings), part.model),
    )


def _part(
    trouble: str,
    model: str,
    points: str,
    members: Sequence[tuple[Experiment, Mapping[str, Any]]],
    costs: Mapping[str, float],
) -> OverviewPart | None:
    labels = [
        label
        for label in members[0][1]["rows"]
        if label not in _DIAGNOSTIC and all(_usable(label, setting) for _, setting in members)
    ]
    if len(labels) < 2 or plan.BASELINE not in labels:
        return None
    # More is better for all: differences of metrics where less is better change their sign.
    signs = [-1.0 if experiment["smallest"] else 1.0 for experiment, _ in members]
    scores = {
        label: [sign * setting["rows"][label]["mean"] for sign, (_, setting) in zip(signs, members, strict=True)]
        for label in labels
    }
    ranked = ranks(scores) if len(members) > 1 else _of_one({label: own[0] for label, own in scores.items()})
    rows = [_row(label, members, signs, ranked.average[label], costs.get(label)) for label in labels]
    return OverviewPart(
        trouble=trouble,
        model=model,
        settings=[f"{experiment['title']}: {setting['name']}" for experiment, setting in members],
        rows=sorted(rows, key=lambda row: (row.rank, -row.gain.mean)),
        points=points,
        critical=ranked.critical if math.isfinite(ranked.critical) else None,
        p=ranked.p if math.isfinite(ranked.p) else None,
    )


def _usable(label: str, setting: Mapping[str, Any]) -> bool:
    """Whether a setting has the row, finished and without knowledge that the others lack."""
    row = setting["rows"].get(label)
    return (
        row is not None
        and not row["knows_more"]
        and row["mean"] is not None
        and (label == plan.BASELINE or row["difference"] is not None)
    )


def _of_one(scores: Mapping[str, float]) -> Ranks:
    """Ranks in one setting, which say nothing about other settings."""
    order = stats.rankdata([-score for score in scores.values()])
    average = {label: float(rank) for label, rank in zip(scores, order, strict=True)}
    return Ranks(average=average, critical=math.nan, p=math.nan, sets=1)


def _row(
    label: str,
    members: Sequence[tuple[Experiment, Mapping[str, Any]]],
    signs: Sequence[float],
    rank: float,
    cost: float | None,
) -> Ranked:
    name = members[0][1]["rows"][label]["name"]
    if label == plan.BASELINE:
        return Ranked(
            label=label, name=name, rank=rank, gain=MeanGain(mean=0.0, low=0.0, high=0.0), better=0, worse=0, cost=1.0
        )
    differences = [setting["rows"][label]["difference"] for _, setting in members]
    scales = [sign * experiment["unit"]["scale"] for sign, (experiment, _) in zip(signs, members, strict=True)]
    decided = [
        math.copysign(1.0, scale * d["mean"]) if _decided(d) else 0.0
        for scale, d in zip(scales, differences, strict=True)
    ]
    return Ranked(
        label=label,
        name=name,
        rank=rank,
        gain=_gain(differences, scales),
        better=decided.count(1.0),
        worse=decided.count(-1.0),
        cost=cost,
    )


def _decided(difference: Mapping[str, Any]) -> bool:
    p = difference["p"] if difference["p_holm"] is None else difference["p_holm"]
    within = difference["low"] is None or difference["low"] <= 0 <= difference["high"]
    return difference["n"] > 1 and p < 0.05 and not within


def _gain(differences: Sequence[Mapping[str, Any]], scales: Sequence[float]) -> MeanGain:
    """The mean over settings; its interval is over settings, and with one or two of them over seeds."""
    means = np.array([scale * d["mean"] for scale, d in zip(scales, differences, strict=True)])
    mean, count = float(means.mean()), len(means)
    if count > 2:
        width = float(stats.t.ppf(0.975, count - 1)) * float(means.std(ddof=1)) / math.sqrt(count)
        return MeanGain(mean=mean, low=mean - width, high=mean + width)
    if any(d["low"] is None for d in differences):
        return MeanGain(mean=mean, low=-math.inf, high=math.inf)
    widths = [abs(scale) * (d["high"] - d["low"]) / 2 for scale, d in zip(scales, differences, strict=True)]
    width = math.hypot(*widths) / count
    return MeanGain(mean=mean, low=mean - width, high=mean + width)
