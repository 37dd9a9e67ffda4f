"""Boosting with scikit-learn's trees, against scikit-learn's own boosting and sums by hand."""

import json

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression

from reweigh.bench.train.programs import newton_trees
from reweigh.bench.train.programs.boosting import Booster, installed
from reweigh.bench.train.schedule import OptimizerPlan
from reweigh.bench.train.task import Task
from reweigh.method import method

PLAN = OptimizerPlan(lr=0.1, epochs=30, batch_size=64, optimizer="sgd")


def data(n=300, classes=0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    score = x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(0, 0.3, n)
    if not classes:
        return x, ((score - score.mean()) / score.std()).astype(np.float32)
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))


def task(x, y, classes=()):
    held = len(x) // 3
    target = torch.from_numpy(y if classes else y[:, None])
    parts = {"train": slice(held, None), "val": slice(0, held), "test": slice(0, held)}
    rows = {f"x_{part}": torch.from_numpy(x[own]) for part, own in parts.items()}
    return Task(**rows, **{f"y_{part}": target[own] for part, own in parts.items()}, classes=classes)


def test_plain_regression_is_gradient_boosting_of_squared_errors():
    assert installed("gradient_boosting")
    x, y = data()
    grown = Booster("gradient_boosting", task(x, y), method("mean"), PLAN, 0)
    grown.advance(30)
    reference = GradientBoostingRegressor(
        learning_rate=0.1,
        n_estimators=30,
        max_leaf_nodes=newton_trees.LEAVES,
        max_depth=None,
        min_samples_leaf=5,
        random_state=0,
    ).fit(x[100:], y[100:])
    apart = np.abs(grown.margins("test").numpy().ravel() - reference.predict(x[:100]))
    assert np.median(apart) < 1e-6
    assert (apart < 1e-4).mean() > 0.9, "ties between splits are broken at random"


def test_a_leaf_is_the_newton_step_of_its_rows():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 1)).astype(np.float32)
    gradient, curvature = rng.normal(size=40), rng.uniform(0.1, 1.0, 40)
    tree = newton_trees.newton_tree(x, gradient, curvature, least=5, rng=rng)
    steps = tree(x)
    for step in np.unique(steps):
        own = steps == step
        assert own.sum() >= 5
        assert step == pytest.approx(-gradient[own].sum() / curvature[own].sum())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("text", ["mean", "rgd", "class_weights", "logit_adjusted", "focal"])
def test_classes_are_learnt_and_a_file_predicts_the_same(tmp_path, classes, text):
    x, y = data(classes=classes)
    names = tuple("abc"[:classes])
    grown = Booster("gradient_boosting", task(x, y, names), method(text), PLAN, 0)
    grown.advance(30)
    margins = grown.margins("test").numpy()
    linear = LogisticRegression().fit(x[100:], y[100:]).score(x[:100], y[:100])
    assert (margins.argmax(1) == y[:100]).mean() > linear - 0.02, "half of the signal is not linear"
    grown.save(tmp_path / "trees.json", 30)
    outputs = classes if classes > 2 else 1
    read = newton_trees.load(tmp_path / "trees.json", width=4, outputs=outputs).margins(x[:100])
    shown = margins if classes > 2 else margins[:, 1:]
    assert read == pytest.approx(shown, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["left"].__setitem__(0, 0), "back to itself"),
        (lambda tree: tree["right"].__setitem__(0, 10**6), "outside"),
        (lambda tree: tree["feature"].__setitem__(0, 4), "a feature that there is not"),
        (lambda tree: tree["value"].__setitem__(0, float("nan")), "not a number"),
        (lambda tree: tree["value"].pop(), "lists differ"),
        (lambda tree: tree["left"].__setitem__(0, 1.5), "not whole"),
    ],
)
def test_files_that_lead_astray_are_refused(tmp_path, change, message):
    x, y = data()
    grown = Booster("gradient_boosting", task(x, y), method("mean"), PLAN, 0)
    grown.advance(2)
    path = tmp_path / "trees.json"
    grown.save(path, 2)
    stored = json.loads(path.read_text())
    change(stored["rounds"][1][0])
    path.write_text(json.dumps(stored))
    with pytest.raises(newton_trees.TreesFileError, match=message):
        newton_trees.load(path, width=4, outputs=1)
