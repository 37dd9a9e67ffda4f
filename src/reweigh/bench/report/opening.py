"""What a page opens with: one sentence with its conclusion, and one picture of the settings it rests on."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reweigh.bench.lab.conclusions import WORDS, Conclusion, conclusions, rows_of
from reweigh.bench.lab.results import Results
from reweigh.bench.lab.table import Endpoint
from reweigh.bench.report.forest import Forest, settings_forest
from reweigh.bench.report.numbers import Unit, shown, unit_of
from reweigh.bench.report.verdict import BASELINE_NAME

#: What a conclusion says of the paper's gain, in a sentence.
_SAYS = {
    "confirmed": "the paper's gain is confirmed",
    "smaller than in the paper": "there is a gain, smaller than in the paper",
    "smaller than worth having": "there is a gain, smaller than worth having",
    "no difference that matters": "there is no difference that matters",
    "excluded": "the paper's gain is excluded",
    "undecided": "it is undecided",
    "better": "there is a gain",
    "worse": "there is a loss",
}


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The first screen of a page.

    Parameters
    ----------
    sentence
        The conclusion.
    forest
        The settings it rests on; None where there is nothing to draw.
    caption
        How to read the picture.
    """

    sentence: str
    forest: Forest | None
    caption: str

    @property
    def markup(self) -> Markup:
        """The picture."""
        return Markup("") if self.forest is None else self.forest.markup


def opening(results: Results) -> Opening | None:
    """The opening of an experiment; None where no endpoint was declared, or has no finished pair of rows."""
    concluded, endpoint = conclusions(results), results.table.endpoint
    if not concluded or endpoint is None:
        return None
    unit = unit_of(results)
    drawn = [one for one in concluded if one.difference.n > 1]
    return Opening(
        sentence=_sentence(results, endpoint, concluded),
        forest=settings_forest(drawn, unit, worth=endpoint.worth / unit.scale) if drawn else None,
        caption=_caption(results, endpoint, drawn, unit),
    )


def _sentence(results: Results, endpoint: Endpoint, concluded: Sequence[Conclusion]) -> str:
    """The conclusion of a page in one sentence."""
    unit = unit_of(results)
    ours, theirs = _names(results, endpoint)
    if len(concluded) == 1:
        (one,) = concluded
        d = one.difference
        if d.n < 2:
            return f"One pair says nothing about {ours} against {theirs}: run more seeds."
        numbers = f"{unit.signed(d.mean)}{unit.points} {unit.interval(d)} in {results.table.metric_name}"
        paper = "" if one.gain is None else f"; the paper has {unit.signed(one.gain)}"
        return (
            f"{_where(results, one)}{ours} against {theirs}: {_SAYS[one.word]}, {numbers}{paper} (n = {d.n})"
            f"{_wanted(concluded)}."
        )
    counts = collections.Counter(one.word for one in concluded)
    parts = [f"{_SAYS[word]} in {counts[word]}" for word in WORDS if counts[word]]
    whole = ", ".join(parts[:-1]) + f", and {parts[-1]}" if len(parts) > 1 else f"{_SAYS[concluded[0].word]} in all"
    return f"{ours} against {theirs}, {len(concluded)} settings: {whole}{_wanted(concluded)}."


def _names(results: Results, endpoint: Endpoint) -> tuple[str, str]:
    ours, theirs = rows_of(results.table, endpoint)
    return shown(results.table, ours), BASELINE_NAME if theirs == "mean" else shown(results.table, theirs)


def _where(results: Results, one: Conclusion) -> str:
    return f"{one.setting}. " if len(results.columns) > 1 else ""


def _wanted(concluded: Sequence[Conclusion]) -> str:
    """What it would take to decide what is undecided."""
    needed = [one.needed for one in concluded if one.needed is not None]
    if not needed:
        return ""
    seeds = f"{min(needed):,} to {max(needed):,}" if min(needed) < max(needed) else f"{max(needed):,}"
    return f"; deciding it would take about {seeds} seeds".replace(",", "\u2009")


def _caption(results: Results, endpoint: Endpoint, drawn: Sequence[Conclusion], unit: Unit) -> str:
    better = "Left" if results.table.smallest else "Right"
    gains = any(one.gain is not None for one in drawn)
    points = " in percentage points" if unit.sign else ""
    return (
        f"Difference{points} with its 95 % interval, paired by seed; {better.lower()} of the line is better. The band "
        f"is what would not matter (±{endpoint.worth:g})." + (" The diamond is the paper's gain." if gains else "")
    )
