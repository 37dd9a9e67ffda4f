"""The estimators fit on a second device, and what they keep needs none."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_regression
from sklearn.preprocessing import StandardScaler

from reweigh.bench.recipes.algorithms import tabular
from reweigh.integrations.sklearn import RGDClassifier, RGDRegressor


@pytest.mark.parametrize("device", ["second", "second:1", "auto"])
def test_classifier(device):
    X, y = load_iris(return_X_y=True)
    settings = {"max_iter": 3, "early_stopping": True, "class_weight": "balanced", "random_state": 0}
    here = RGDClassifier(**settings).fit(X, y)
    there = RGDClassifier(**settings, device=device).fit(X, y)
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-4)
    assert b"second" not in pickle.dumps(there.model_)
    again = pickle.loads(pickle.dumps(there))
    np.testing.assert_array_equal(again.predict_proba(X), there.predict_proba(X))


def test_regressor_in_parts():
    X, y = make_regression(60, 4, random_state=0)
    here, there = (RGDRegressor(random_state=0, device=device) for device in (None, "second"))
    for part in (slice(0, 30), slice(30, 60)):
        here.partial_fit(X[part], y[part])
        there.partial_fit(X[part], y[part])
    np.testing.assert_allclose(there.predict(X), here.predict(X), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("device", ["second", "second:1"])
@pytest.mark.parametrize("name", ["METS", "MET", "VIME", "DACL", "SubTab", "TabNet"])
def test_self_supervised(name, device):
    X = StandardScaler().fit_transform(load_iris().data)[:40]
    settings = {"epochs": 1, "batch_size": 20, "random_state": 0}
    here = getattr(tabular, name)(**settings).fit(X)
    there = getattr(tabular, name)(**settings, device=device).fit(X)
    np.testing.assert_allclose(there.losses_, here.losses_, rtol=1e-3)
    np.testing.assert_allclose(there.transform(X), here.transform(X), rtol=2e-2, atol=2e-2)
    assert b"second" not in pickle.dumps(there.network_)


def test_a_device_that_is_not_there():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="'cuda' is not there: this machine has 2 x second"):
        RGDClassifier(device="cuda").fit(X, y)
