"""`clip_level`: the loss from which on every unit has the same weight, seen in the weights themselves."""

from __future__ import annotations

import numpy as np
import pytest

import reweigh


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("rgd:tau=2", 2.0),
        ("rgd:tau=2,offset=-1.5", 0.5),
        ("rgd:tau=3,divergence=chi2,offset=1", 4.0),
        ("rgd:tau=2,divergence=revkl,offset=0.5", 2.5),
        ("rgd:tau=2,normalize=mean,offset=0.5", 2.5),
        ("redescending:tau=2,power=0", 2.0),
    ],
)
def test_weights_are_constant_from_the_level_on_and_only_from_there(text, level):
    objective = reweigh.method(text).objective
    assert objective.clip_level == pytest.approx(level)
    weights = objective.weigh(level + np.array([-0.01, 0.0, 0.5, 5.0, 50.0]), ()).weights
    np.testing.assert_allclose(weights[1:], weights[1], rtol=1e-12)
    assert weights[0] < weights[1]


@pytest.mark.parametrize(
    "text", ["mean", "redescending:tau=2", "rgd:tau=none,gamma=0.5", "term", "dft", "superloss:T=1"]
)
def test_there_is_no_level_where_larger_losses_still_differ_or_all_are_alike(text):
    assert reweigh.method(text).objective.clip_level is None
