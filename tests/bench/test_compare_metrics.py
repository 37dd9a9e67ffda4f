"""Metrics of `compare` against hand-worked numbers, scikit-learn and brute force."""

import math

import numpy as np
import pytest
from sklearn import metrics as sk

from reweigh.bench.compare import metrics

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(200, 3))
TARGETS = RNG.integers(0, 3, 200)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def test_classification_against_scikit_learn():
    found = metrics.classification(LOGITS, TARGETS, 3)
    predicted = LOGITS.argmax(1)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(TARGETS, predicted))
    assert found["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(TARGETS, predicted))
    assert found["loss"] == pytest.approx(sk.log_loss(TARGETS, PROBABILITIES))
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(TARGETS, PROBABILITIES, multi_class="ovr"))
    assert found["worst_class"] == pytest.approx(sk.recall_score(TARGETS, predicted, average=None).min())


def test_binary_auroc_is_that_of_the_second_class():
    logits, targets = LOGITS[:, :2], TARGETS % 2
    found = metrics.classification(logits, targets, 2)["auroc"]
    assert found == pytest.approx(sk.roc_auc_score(targets, logits[:, 1] - logits[:, 0]))


def test_a_class_without_rows_is_left_out():
    targets = np.where(TARGETS == 2, 0, TARGETS)
    found = metrics.classification(LOGITS, targets, 3)
    recall = sk.recall_score(targets, LOGITS.argmax(1), labels=[0, 1], average=None)
    assert found["balanced_accuracy"] == pytest.approx(recall.mean())
    assert found["class_accuracy"][:2] == pytest.approx(recall.tolist())
    assert math.isnan(found["class_accuracy"][2]), "no row is not no hit"
    assert found["worst_class"] == pytest.approx(recall.min())
    assert math.isfinite(found["auroc"])
    assert math.isnan(metrics.classification(LOGITS, np.zeros(200, int), 3)["auroc"])


def test_calibration_error_by_hand():
    # Two bins of 15: confidence 0.62 (two rows, one right) and 0.9 (two rows, both right).
    found = metrics.calibration_error(np.array([0.62, 0.62, 0.9, 0.9]), np.array([1.0, 0.0, 1.0, 1.0]))
    assert found == pytest.approx(0.5 * abs(0.5 - 0.62) + 0.5 * abs(1.0 - 0.9))


def test_the_worst_tenth_by_hand():
    assert metrics.worst_tenth(np.arange(20.0)) == pytest.approx(18.5)
    assert metrics.worst_tenth(np.array([3.0, 7.0])) == 7.0


def test_groups_by_hand():
    found = metrics.by_group(np.array([1.0, 0.0, 1.0, 1.0]), np.array([0, 0, 2, 2]), worst=min)
    assert found["worst_group"] == 0.5  # the empty group 1 is no group
    assert found["group_score"] == pytest.approx([0.5, math.nan, 1.0], nan_ok=True)
    numbers = metrics.regression(np.array([1.0, 5.0]), np.array([1.0, 2.0]), np.array([0, 2]), 4)
    assert numbers["group_score"] == pytest.approx([0.0, math.nan, 3.0, math.nan], nan_ok=True)
    assert numbers["worst_group"] == 3.0


def test_regression_against_scikit_learn():
    truth, guess = RNG.normal(size=50), RNG.normal(size=50)
    groups = RNG.integers(0, 3, 50)
    found = metrics.regression(guess, truth, groups)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(truth, guess))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(truth, guess))
    assert found["r2"] == pytest.approx(sk.r2_score(truth, guess))
    worst = max(sk.root_mean_squared_error(truth[groups == g], guess[groups == g]) for g in range(3))
    assert found["worst_group"] == pytest.approx(worst)


def test_extreme_logits_stay_finite():
    found = metrics.classification(np.array([[1e4, -1e4], [-1e4, 1e4]]), np.array([0, 0]), 2)
    assert math.isfinite(found["loss"])
