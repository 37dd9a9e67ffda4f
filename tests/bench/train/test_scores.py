"""Scores against hand-worked numbers, scikit-learn and brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from reweigh.bench.train import scores as metrics
from reweigh.bench.train.scores import Metric, ScoringRules, worst_share
from reweigh.bench.train.task import Task

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(200, 3))
TARGETS = RNG.integers(0, 3, 200)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def task(targets, classes):
    """A task of which only the validation targets matter."""
    nothing = torch.empty(0)
    parts = dict.fromkeys(("x_train", "y_train", "x_val", "x_test", "y_test"), nothing)
    return Task(**parts, y_val=targets, classes=tuple(map(str, range(classes))))


def test_accuracies_by_hand():
    outputs = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]])
    found = task(torch.tensor([0, 1, 0, 1]), 2).score("val", outputs)
    assert found["accuracy"] == 0.75
    assert found["class_accuracy"] == [1.0, 0.5]
    assert found["balanced_accuracy"] == 0.75
    expected = -np.log([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-3)), 1 / (1 + np.exp(1))]).mean()
    assert found["loss"] == pytest.approx(expected)


def test_scores_of_several_models_are_those_of_each():
    torch.manual_seed(0)
    outputs, targets = torch.randn(4, 30, 5), torch.randint(0, 4, (30,))  # the last class does not occur
    several = task(targets, 5)
    for own, scores in zip(outputs, several.score_each("val", outputs), strict=True):
        right, loss = own.argmax(1) == targets, torch.nn.functional.cross_entropy(own.double(), targets)
        assert scores == several.score("val", own) | {"class_accuracy": scores["class_accuracy"]}
        assert scores["accuracy"] == pytest.approx(float(right.double().mean()))
        assert scores["loss"] == pytest.approx(float(loss), rel=1e-12)
        recall = [float(right[targets == k].double().mean()) for k in range(4)]
        assert scores["class_accuracy"] == pytest.approx([*recall, math.nan], nan_ok=True)
        assert scores["balanced_accuracy"] == pytest.approx(np.mean(recall))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_text_scores_against_scikit_learn(classes):
    draw = np.random.default_rng(classes)
    logits, labels = draw.normal(size=(80, classes)), draw.integers(classes, size=80)
    logits[np.arange(80), labels] += 1.0
    found, predicted = metrics.text(logits, labels, classes, "accuracy"), logits.argmax(1)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found["accuracy"] == found["score"] == pytest.approx(sk.accuracy_score(labels, predicted))
    assert found["loss"] == pytest.approx(sk.log_loss(labels, probabilities))
    assert found["class_accuracy"] == pytest.approx(sk.recall_score(labels, predicted, average=None).tolist())
    confusion = sk.confusion_matrix(labels, predicted)
    f1 = 2 * np.diag(confusion) / (confusion.sum(0) + confusion.sum(1))
    assert found["macro_f1"] == pytest.approx(f1.mean())
    if classes == 2:
        assert found["f1"] == pytest.approx(f1[1])
        (tn, fp), (fn, tp) = confusion.tolist()
        assert found["matthews"] == pytest.approx(
            (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
        )


def test_a_text_class_without_rows_has_no_score():
    logits = np.eye(3)[[0, 1, 2, 0]]
    found = metrics.text(logits, np.array([0, 1, 1, 0]), 3, "macro_f1")
    assert found["class_accuracy"] == pytest.approx([1.0, 0.5, math.nan], nan_ok=True)
    assert found["score"] == pytest.approx((1.0 + 2 / 3) / 2)
    assert math.isnan(metrics.text(logits[:, :2], np.zeros(4, int), 2, "f1")["f1"])
    assert "class_accuracy" not in metrics.text(np.eye(13), np.arange(13), 13, "accuracy")


@pytest.mark.parametrize("metric", ["f1", "macro_f1", "matthews"])
def test_a_text_task_is_judged_by_its_own_metric(metric):
    logits = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    found = metrics.text(logits, np.array([0, 1, 0, 1]), 2, metric)
    assert found["score"] == found[metric] != found["accuracy"]


def test_matthews_of_a_constant_is_zero():
    assert metrics.text(np.tile([1.0, 0.0], (10, 1)), np.repeat([0, 1], 5), 2, "matthews")["score"] == 0.0


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


def test_a_diverged_model_has_no_loss():
    (found,) = metrics.accuracies(np.array([[[math.inf, 0.0], [1.0, 2.0]]]), np.array([0, 1]), 2)
    assert math.isnan(found["loss"])


@given(st.lists(st.floats(0, 1), min_size=10, max_size=60), st.sampled_from([10, 20, 30, 40, 50, 100]))
def test_worst_share_by_sorting(scores, percent):
    count = percent * len(scores) // 100
    lowest, highest = sorted(scores)[:count], sorted(scores)[-count:]
    assert worst_share(scores, percent).mean == pytest.approx(sum(lowest) / count)
    assert worst_share(scores, percent, smallest=True).mean == pytest.approx(sum(highest) / count)
    assert worst_share(scores, percent).tasks == count


def test_interval_of_three_tasks_by_hand():
    """Mean 0.5, deviation 0.1, t of 0.975 at two degrees of freedom 4.302653."""
    assert worst_share([0.4, 0.5, 0.6]).half == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert worst_share([0.4, 0.9], 50).half == float("inf")
    with pytest.raises(ValueError, match="`percent` must leave at least one of 5 tasks"):
        worst_share([0.1] * 5, 10)


@pytest.mark.parametrize("positive", [0, 1])
def test_scores_of_two_classes_against_scikit_learn(positive):
    draw = np.random.default_rng(3)
    labels = (draw.random(120) < 0.2).astype(int)
    logits = np.round(4 * draw.normal(size=(120, 2))) / 4  # with ties, which quarters keep exact
    logits[np.arange(120), labels] += 0.75
    judging = metrics.ScoringRules(positive=positive, costs=(1.0, 20.0))
    found = metrics.classification(logits, labels, 2, judging=judging)
    ranked, hits = logits[:, positive] - logits[:, 1 - positive], labels == positive
    predicted = logits.argmax(1)
    assert found["average_precision"] == pytest.approx(sk.average_precision_score(hits, ranked))
    assert found["f1"] == pytest.approx(sk.f1_score(labels, predicted, pos_label=positive))
    assert found["matthews"] == pytest.approx(sk.matthews_corrcoef(labels, predicted))
    precision, recall, _ = sk.precision_recall_curve(hits, ranked)
    assert found["recall_at_precision"] == pytest.approx(recall[:-1][precision[:-1] >= 0.9].max(initial=0.0))
    table = sk.confusion_matrix(hits, predicted == positive)
    assert found["cost"] == pytest.approx((table[0, 1] * 1.0 + table[1, 0] * 20.0) / 120)


def test_scores_of_many_classes_against_scikit_learn():
    found = metrics.classification(LOGITS, TARGETS, 3)
    predicted = LOGITS.argmax(1)
    expected = sk.average_precision_score(np.eye(3)[TARGETS], PROBABILITIES, average="macro")
    assert found["average_precision"] == pytest.approx(expected)
    assert found["f1"] == pytest.approx(sk.f1_score(TARGETS, predicted, average="macro"))
    assert found["matthews"] == pytest.approx(sk.matthews_corrcoef(TARGETS, predicted))
    assert "cost" not in found
    assert "recall_at_precision" not in found


def test_classes_that_cannot_be_judged_do_not_count():
    logits = np.array([[2.0, 0, 0], [2, 0, 0], [0, 2, 0], [2, 0, 0], [2, 0, 0]])
    found = metrics.classification(
        logits, np.array([0, 0, 1, 1, 2]), 3, judging=metrics.ScoringRules(counted=(True, True, False))
    )
    assert found["balanced_accuracy"] == 0.75
    assert found["worst_class"] == 0.5
    assert found["class_accuracy"] == [1.0, 0.5, 0.0]


def test_a_change_that_matters_is_a_point_a_hundredth_or_one_percent():
    relative, absolute = Metric(key="loss", name="", relative=True), Metric(key="r2", name="")
    assert relative.margin(50.0) == relative.margin(-50.0) == 0.5
    assert relative.margin(0.2) == pytest.approx(0.002)
    assert relative.margin(math.inf) == 0.01
    assert absolute.margin(50.0) == 0.01


def test_shares_are_percentages_and_everything_else_is_not():
    """Of metrics of classes: those that stay between 0 and 1 whatever the model says."""
    draw = np.random.default_rng(0)
    ranges: dict[str, list[float]] = {}
    for sign in (-20.0, -1.0, 1.0, 20.0):  # models that are wrong or right, and sure or not
        targets = draw.integers(0, 2, 200)
        logits = np.stack([-sign * (2 * targets - 1) / 2, sign * (2 * targets - 1) / 2], axis=1)
        logits = logits + 0.1 * draw.normal(size=logits.shape)
        groups = draw.integers(0, 3, 200)
        scored = metrics.classification(logits, targets, 2, groups, 3, ScoringRules(costs=(1.0, 20.0)))
        for metric in metrics.CLASSIFICATION:
            ranges.setdefault(metric.key, []).append(scored[metric.key])
    for metric in metrics.CLASSIFICATION:
        inside = all(0.0 <= value <= 1.0 for value in ranges[metric.key])
        assert metric.percent == inside, (metric.key, ranges[metric.key])
