"""The model card of a kept model: `README.md` in its folder, with its evidence and what it must not be used for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reweigh.bench.compare.answer import Answer, unit_of
from reweigh.bench.compare.problem import Problem
from reweigh.bench.lab.results import Results, difference
from reweigh.bench.train.scores import Metric

FILE = "README.md"
#: A class with fewer rows than this has a score that says little.
_FEW = 30


@dataclass(frozen=True, kw_only=True)
class ModelEvidence:
    """What the card takes from the comparison that chose the model.

    `sha256` is the fingerprint of the data, empty where they have a name instead.
    """

    problem: Problem
    sha256: str
    results: Results
    answer: Answer

    def scores(self) -> list[tuple[Metric, str, int]]:
        """Each metric of the chosen row with its mean and 95 % interval over splits, and the number of splits.

        The interval has Nadeau and Bengio's correction for splits that overlap.
        """
        column = next(c for c in self.results.columns if c.name == self.answer.model)
        outcomes = column.rows[self.answer.row].outcomes.values()
        own = next(m for m in self.answer.models if m.model == self.answer.model)
        lines: list[tuple[Metric, str, int]] = []
        for metric in (score.metric for score in own.scores[self.answer.row]):
            recorded = [float(o.records[o.chosen].get(f"test/{metric.key}", math.nan)) for o in outcomes]
            values = [value for value in recorded if math.isfinite(value)]
            if not values:
                continue
            spread = difference(values, [0.0] * len(values), self.results.table.overlap)
            unit = unit_of(metric, spread.mean)
            text = f"{unit.value(spread.mean)}{unit.sign}"
            if len(values) > 1:
                # No share and no error is below zero; no share, R² or correlation is above one.
                low = max(spread.low, 0.0) if metric.percent or metric.smallest else spread.low
                high = min(spread.high, 1.0) if metric.percent or not metric.smallest else spread.high
                text += f" [{unit.value(low)}, {unit.value(high)}]"
            lines.append((metric, text, len(values)))
        return lines


def text(saved: Mapping[str, Any], evidence: ModelEvidence) -> str:
    """The card of a model, from what `model.json` holds and what the comparison recorded."""
    problem, answer = evidence.problem, evidence.answer
    scores = evidence.scores()
    judged = next((f", {m.name} {value}" for m, value, _ in scores if m.key == answer.metric.key), "")
    rows = saved["rows"]
    lines = [
        f"# {problem.name}: {answer.model} with {saved['method']}{judged}",
        "",
        answer.headline,
        "",
        "## Data",
        "",
        f"- {problem.name}: {problem.rows} rows, {problem.kind}" + _classes(problem),
        f"- fingerprint (SHA-256, first 16 digits): `{evidence.sha256}`"
        if evidence.sha256
        else "- a data set of the catalogue, which its name identifies",
        f"- {rows['trained on']} rows trained this model"
        + (
            f", {rows['fitted the correction']} others fitted the correction of its outputs"
            if saved["correction"]
            else ""
        ),
        "",
        "## Model",
        "",
        f"- {answer.model}, trained with `{saved['method']}`",
        f"- learning rate {saved['lr']:g}, epoch {saved['epoch']}",
        f"- written by reweigh {saved['reweigh']}; loading it runs no code",
        "",
        "## Scores",
        "",
        "| metric | mean and 95 % interval | splits |",
        "|---|---|---|",
        *(f"| {metric.name}{' (less is better)' if metric.smallest else ''} | {v} | {n} |" for metric, v, n in scores),
        "",
        *_splits(problem),
        "",
        "## Do not use it",
        "",
        *_limits(problem),
        "",
    ]
    return "\n".join(lines)


def first_line(folder: Path) -> str | None:
    """What a model is, in one line; None for a model that was kept without a card."""
    try:
        card = (folder / FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return card.partition("\n")[0].removeprefix("# ").strip() or None


def _classes(problem: Problem) -> str:
    return f", {len(problem.classes)} classes" if problem.classes else ""


def _splits(problem: Problem) -> list[str]:
    """How the scores came about."""
    if problem.in_time:
        tested = "the latest rows, in every split"
    elif problem.test_rows is not None:
        tested = "the rows given for testing, in every split"
    else:
        tested = f"{problem.test_share:.0%} of the rows in every split, and on every row once in five splits"
    return [
        f"Tested on {tested}. Hyper-parameters were chosen on validation rows. The scores are those of "
        "models trained in this way on the other rows of each split. This one was trained once more, on the test rows "
        "too, so nothing is left to test it on.",
    ]


def _limits(problem: Problem) -> list[str]:
    """What the evidence does not cover."""
    lines = [
        "- on rows from another time, place or way of collecting: nothing here tells how it does there;",
        "- for decisions about people without scores of your own for everyone concerned"
        + ("; only the groups of the report were scored;" if problem.groups else "; no groups were scored;"),
    ]
    few = [
        name for name, count in zip(problem.classes, problem.class_counts, strict=bool(problem.classes)) if count < _FEW
    ]
    if few:
        shown = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        lines.append(f"- to recognise classes with fewer than {_FEW} rows, whose scores are mostly chance: {shown};")
    lines.append(
        "- with its probabilities as risks, unless the calibration error above is small enough for that."
        if problem.classes
        else "- for targets outside the range it was trained on."
    )
    return lines
