"""Confusions, cuts and reliability of classifiers, against numbers worked by hand."""

import re

import numpy as np
import pytest

from reweigh.bench.report.confusion import confusion
from reweigh.bench.report.cuts import Classifier, cuts, reliability
from reweigh.bench.report.dumbbells import Pair, dumbbells
from reweigh.bench.report.numbers import Unit
from reweigh.bench.report.plane import PlanePoint, plane

PERCENT = Unit(scale=100.0, digits=1, points=" points", sign=" %")


def test_confusions_are_shares_of_a_class():
    markup = confusion(np.array([[8, 2], [1, 3]]), ["no", "<yes>"], title="t")
    assert "no taken for &lt;yes&gt;: 20.0 % (2)" in markup
    assert "&lt;yes&gt; taken for no: 25.0 % (1)" in markup
    assert "78.6 % of rows right" in markup


@pytest.mark.parametrize("classes", [9, 26, 60])
def test_many_classes_are_a_heat_map(classes):
    markup = confusion(np.eye(classes, dtype=int), [f"class {k}" for k in range(classes)], title="t")
    assert "No mistakes." in markup
    assert len(re.findall(r'class="shade"', markup)) == 1


def test_the_cut_is_where_the_classifier_cuts():
    """Of four rows of the class two are named, and of six others three."""
    targets = np.array([1] * 4 + [0] * 6)
    logits = np.array([2.0, 1.0, -1.0, -2.0, 3.0, 1.5, 0.5, -1.5, -2.5, -3.0])
    tested = [(np.stack([np.zeros(10), logits], axis=1), targets)]
    roc, precision = cuts([Classifier(name="ours", role="primary", tested=tested)], 1)
    assert "ours cuts at 50 %, 50 %" in roc.markup  # 3 of 6 others, 2 of 4 of the class
    assert "ours cuts at 50 %, 40 %" in precision.markup  # 2 of the 5 that were named


def test_reliability_is_the_share_of_right_answers():
    logits = np.tile([0.0, np.log(3.0)], (20, 1))  # always 75 % sure of the second class
    targets = np.array([1] * 12 + [0] * 8)
    markup = reliability([Classifier(name="ours", role="primary", tested=[(logits, targets)])])
    assert "ours: confidence 75 %, right 60 % of 20 rows" in markup


def test_a_part_that_was_never_tested_has_no_dots():
    markup = dumbbells(
        [Pair(name="a", before=0.5, after=0.75, span=(0.6, 0.9)), Pair(name="b", before=np.nan, after=np.nan)], PERCENT
    )
    assert "a: baseline 50.0 %, primary 75.0 % [60.0, 90.0]" in markup
    assert "b: not tested" in markup
    assert markup.count("<circle") == 2


@pytest.mark.parametrize("apart", [0.0, 0.001, 0.3])
def test_names_on_a_plane_are_whole_and_never_cover_each_other(apart):
    places = {
        "plain logistic": (0.8, 0.6),
        "logistic with class_weights": (0.8 + apart / 3, 0.6 + apart),
        "mlp": (0.2, 0.1),
    }
    points = [PlanePoint(name=name, role="other", at=at, named=True) for name, at in places.items()]
    wide = plane(points, names=("average", "worst"), units=(PERCENT, PERCENT)).split("when-narrow")[0]
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="name other"[^>]*>([^<]+)</text>', wide)
    assert {name for *_, name in names} == set(places)
    heights = [float(y) for _, y, name in names if name != "mlp"]
    assert abs(heights[0] - heights[1]) >= 14


def test_names_on_a_plane_avoid_the_points_of_others():
    crowd = [PlanePoint(name="other", role="other", at=(0.70 + 0.01 * k, 0.64)) for k in range(10)]
    ends = [PlanePoint(name="end", role="other", at=at) for at in ((0.0, 0.0), (1.0, 1.0))]
    ours = PlanePoint(name="logistic with class_weights", role="primary", at=(0.8, 0.6), named=True)
    markup = plane([*crowd, *ends, ours], names=("average", "worst"), units=(PERCENT, PERCENT))
    wide = markup.split("when-narrow")[0]
    ((right, height),) = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="name primary"', wide)
    left, right, height = float(right) - 7.4 * len(ours.name), float(right), float(height)
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]* cx="([\d.]+)" cy="([\d.]+)"', wide)]
    assert len(dots) == 13
    assert not any(left < x < right and height - 14 < y < height for x, y in dots)
