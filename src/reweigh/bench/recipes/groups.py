"""Hidden groups: does re-weighting help the worst group when nobody knows the groups in training?

Question: most training rows have a feature that goes with the label, or belong to one part of the people; accuracy is
asked of the group that goes worst, groups being classes times an attribute. Hyper-parameters are chosen by the worst
*class* of validation rows, which takes no group labels. Rows that do use groups, in training (`group_dro`, `dfr`,
`group_balanced`) or in the choice, show what knowing them would be worth.

    reweigh run groups                        # digits, MNIST, Adult and Wikipedia comments
    reweigh run groups --only digits          # the columns with this in their names
    reweigh run groups --preset smoke         # seconds, digits

The `cpu` preset, 20 paired seeds, three rates for each row, an MLP with one hidden layer everywhere. Digits: small or
large, in a colour that goes with the label in 95 % of the training images; in the test set every digit has both
colours. MNIST: the same at 14 x 14 pixels on 5000 images per seed, 98 %. Adult: 8000 rows per seed, income times sex
times white or not. Wikipedia comments: 10000 per seed as hashed words, toxic or not, times whether the comment names an
identity by one of a list of words: the data set has no such label of its own. Not in the paper. The `paper` preset is
the `cpu` preset with all rows of MNIST, Adult and the comments, and five rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.lab.table import Column, Endpoint, Row, Table
from reweigh.bench.recipes._grouped import GroupedDraw, deal
from reweigh.bench.recipes.kinds import supervised
from reweigh.bench.recipes.kinds.supervised import SupervisedSettings
from reweigh.bench.train.task import Task

if TYPE_CHECKING:
    from reweigh.bench.lab.results import Figure, Results


@dataclass(frozen=True, kw_only=True)
class Settings(SupervisedSettings):
    """Settings of the recipe: what every supervised recipe has, and the groups.

    Parameters
    ----------
    data
        `digits`, `mnist`, `adult` or `toxicity`.
    agreement
        The share of training and validation images whose colour goes with the label.
    test_rows
        Test rows of each group at most, the same for every seed; 0 for all.
    side
        Pixels in a row of an image; 0 keeps the image as it is.
    """

    agreement: float = 0.95
    test_rows: int = 1000
    side: int = 0


PRESETS = {
    "smoke": Settings(epochs=3, hidden=(32,), lr=0.05, test_rows=100),
    "cpu": Settings(epochs=40, hidden=(64,), lr=0.05),
    "paper": Settings(epochs=40, hidden=(64,), lr=0.05, test_rows=0),
}
BLIND = ("mean", "rgd", "rgd_auto", "cvar", "chi2_dro", "doro", "term:t=1", "jtt", "afr")
#: Rows that use group labels: of validation rows to choose by, and the last three of training rows as well.
ORACLES = {
    "mean, chosen by worst group": Row(method="mean", select="val/worst_group"),
    "rgd, chosen by worst group": Row(method="rgd", select="val/worst_group"),
    "group_dro": Row(method="group_dro", select="val/worst_group"),
    "dfr": Row(method="dfr", select="val/worst_group"),
    "group_balanced": Row(method="group_balanced", select="val/worst_group"),
}
_MNIST: dict[str, Any] = {"data": "mnist", "agreement": 0.98, "side": 14, "epochs": 15}
_ADULT: dict[str, Any] = {"data": "adult", "epochs": 10, "batch_size": 128}
_COMMENTS: dict[str, Any] = {"data": "toxicity", "epochs": 8, "batch_size": 128, "lr": 0.2}

#: Rows to train and validate on for each seed of the `cpu` preset.
ROWS = {"mnist": 5000, "adult": 8000, "toxicity": 10000}


def table(preset: str) -> Table:
    """Rows and columns."""
    smoke = preset == "smoke"
    return Table(
        title="Hidden groups",
        question="Does re-weighting help the worst group when nobody knows the groups in training?",
        columns=_columns(preset),
        methods=("mean", "rgd", "jtt", "afr", "group_dro", "dfr") if smoke else (*BLIND, *ORACLES),
        metric="test/worst_group",
        metric_name="accuracy on the worst group",
        select="val/worst_class",
        seeds=2 if smoke else 20,
        trials={"smoke": 2, "cpu": 3, "paper": 5}[preset],
        rows={label: row for label, row in ORACLES.items() if not smoke or label in ("group_dro", "dfr")},
        names={name: f"{name} (knows the groups)" for name in ("group_dro", "dfr", "group_balanced")},
        endpoint=Endpoint(),
        notes=(
            "Groups are classes times an attribute. Rows that know the groups, or are chosen by the worst group of "
            "validation rows, are bounds and not rivals: the others see no group label before the test.",
            "Adult: income times sex times white or not. Comments: toxic or not times whether the comment names an "
            "identity by one of a list of words.",
        ),
    )


def task(settings: Settings, seeds: Seeds) -> Task:
    """Training and validation rows of the same shares of groups, and as many test rows of each group as there are."""
    draw = GroupedDraw(
        data=settings.data,
        rows=settings.rows,
        test_rows=settings.test_rows,
        validation=settings.validation,
        agreement=settings.agreement,
        side=settings.side,
    )
    return deal(draw, seeds)


train, group, train_group = supervised.recipe(task)


def figures(results: Results) -> Sequence[Figure]:
    """The accuracy of every group, and of all rows at the shares of training."""
    from reweigh.bench.recipes._figures import groups

    return groups.figures(results)


def _columns(preset: str) -> tuple[Column, ...]:
    digits = _column("coloured digits", {})
    if preset == "smoke":
        return (digits,)
    rows = {"mnist": 0, "adult": 0, "toxicity": 0} if preset == "paper" else ROWS
    return (
        digits,
        _column("coloured MNIST", {**_MNIST, "rows": rows["mnist"]}),
        _column("Adult, sex and race", {**_ADULT, "rows": rows["adult"]}),
        _column("comments that name an identity", {**_COMMENTS, "rows": rows["toxicity"]}),
    )


def _column(name: str, settings: dict[str, Any]) -> Column:
    return Column(name=name, settings=settings, trouble="hidden groups", model="MLP")
