"""Which form of RGD gained what, read from the reports: `python docs/forms.py` writes the table.

It stands in docs/choosing_tau.md, between the marks `<!-- forms -->` and `<!-- /forms -->`: a line for each page that
has a summary in JSON and each kind of model on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reweigh.bench.lab import plan
from reweigh.bench.report import read_summary
from reweigh.bench.report.numbers import typeset

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "choosing_tau.md"
MARKS = re.compile(r"(<!-- forms -->\n).*?(<!-- /forms -->)", re.DOTALL)
#: Pages whose controls are compared, by the optimiser that trained them.
PAGES = {
    "longtail": "SGD", "noise": "SGD", "groups": "SGD", "tabular": "Adam", "meta": "Adam", "domains": "Adam",
}  # fmt: skip
FORMS = {
    "rgd": "as published, tuned",
    plan.AT_PLAIN_RATE: "as published, plain training's rate",
    plan.NORMALISED: "mean weight one, plain training's rate",
    plan.SCALED_BASELINE: "plain training, RGD's mean weight",
}
RULE = """Points above plain training, which is tuned alike: the mean over settings, and in how many of them the 95 %
interval lies above zero (▲) or below (▼); nothing here is corrected for the number of comparisons.
"""


def differences(settings: Sequence[Mapping[str, Any]], label: str) -> list[Mapping[str, Any]]:
    """The differences of a form to plain training, in the settings that have it with an interval."""
    found = [setting["rows"].get(label, {}).get("difference") for setting in settings]
    return [one for one in found if one and one["low"] is not None]


def mean_of(found: Sequence[Mapping[str, Any]], scale: float) -> float:
    """The mean of some differences."""
    return scale * fmean(one["mean"] for one in found)


def gains(settings: Sequence[Mapping[str, Any]], label: str, scale: float) -> str:
    """What a form gained, in short; a dash where no setting has it."""
    found = differences(settings, label)
    if not found:
        return "–"
    better = sum(min(scale * d["low"], scale * d["high"]) > 0 for d in found)
    worse = sum(max(scale * d["low"], scale * d["high"]) < 0 for d in found)
    counts = f"▲ {better}" + (f" ▼ {worse}" if worse else "") + f" of {len(found)}"
    return typeset(f"{round(mean_of(found, scale), 2) + 0.0:+.2f} ({counts})")


def parts() -> Iterator[tuple[str, str, list[Mapping[str, Any]], float]]:
    """Each page's settings by kind of model, and what turns their differences into points of which more are better."""
    for name in PAGES:
        path = ROOT / "reports" / f"{name}.json"
        for experiment in read_summary(path) if path.exists() else ():
            if experiment["recipe"] != name or not experiment["unit"]["points"]:
                continue  # nats and squared errors are no points
            scale = experiment["unit"]["scale"] * (-1 if experiment["smallest"] else 1)
            for model in dict.fromkeys(setting["model"] for setting in experiment["settings"]):
                yield name, model, [own for own in experiment["settings"] if own["model"] == model], scale


def lines() -> Iterator[str]:
    """The table, line by line."""
    yield f"| optimiser | page | model | {' | '.join(FORMS.values())} |"
    yield "|---" * (3 + len(FORMS)) + "|"
    for name, model, settings, scale in parts():
        cells = [gains(settings, label, scale) for label in FORMS]
        yield f"| {PAGES[name]} | [{name}](results.md) | {model or '–'} | {' | '.join(cells)} |"


def sentence() -> str:
    """How weights of mean one compare with the published form where the step follows the scale of the loss."""
    apart = [
        mean_of(differences(settings, plan.NORMALISED), scale) - mean_of(differences(settings, "rgd"), scale)
        for name, _, settings, scale in parts()
        if PAGES[name] == "SGD"
    ]
    ahead = sum(one > 0 for one in apart)
    return typeset(
        f"Under SGD, weights of mean one are ahead of the published form, whose rate was tuned again, in {ahead} of "
        f"{len(apart)} lines; the difference lies between {min(apart):+.2f} and {max(apart):+.2f} points."
    )


def written() -> str:
    """The page with the table of now."""
    text = PAGE.read_text()
    if not MARKS.search(text):
        raise ValueError(f"{PAGE.name} has no marks <!-- forms --> and <!-- /forms --> to write between.")
    block = "\n".join(lines())
    return MARKS.sub(lambda marks: f"{marks[1]}{block}\n\n{RULE}\n{sentence()}\n{marks[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(written())
