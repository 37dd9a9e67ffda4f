"""How many labels are called wrong, and which."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh.bench.lab.suspects import suspects
from reweigh.bench.lab.wrong_labels import _confidently_other, wrong_labels


def told_apart(*, n=1000, classes=5, wrong=0.0, sure=0.9, seed=0):
    """Labels, probabilities of models that know the classes, mean probabilities in training, and what is wrong."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(0, classes, n)
    changed = draw.random(n) < wrong
    labels = np.where(changed, (truth + draw.integers(1, classes, n)) % classes, truth)
    logits = draw.normal(0.0, 0.5, (n, classes))
    logits[np.arange(n), truth] += np.log(sure * (classes - 1) / (1 - sure))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    fitted = np.clip(np.where(changed, 0.15, 0.85) + draw.normal(0, 0.1, n), 0, 1)
    return labels, probabilities, fitted, changed


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_wrong_labels_are_counted_and_found(share):
    labels, probabilities, fitted, changed = told_apart(wrong=share)
    found = wrong_labels(labels, probabilities, fitted)
    assert found.confident == pytest.approx(changed.mean(), abs=0.04)
    assert (found.called & changed).sum() >= 0.8 * changed.sum()
    assert (found.called & changed).sum() >= 0.8 * found.called.sum()


def test_true_labels_are_left_alone():
    labels, probabilities, fitted, _ = told_apart()
    assert not wrong_labels(labels, probabilities, fitted).called.any()


@pytest.mark.parametrize("alike", [2.0, 8.0])
def test_where_classes_overlap_nothing_is_called_wrong(alike):
    """Probabilities that are right about the chances, and labels drawn from them."""
    draw = np.random.default_rng(1)
    probabilities = draw.dirichlet([alike] * 3, 3000)
    labels = (draw.random(3000)[:, None] > probabilities.cumsum(1)).sum(1)
    found = wrong_labels(labels, probabilities, probabilities[np.arange(3000), labels])
    assert found.confident > 0.1
    assert found.apart < 0.7
    assert not found.called.any()


def test_where_most_of_the_disagreement_is_unexplained_nothing_is_called_wrong():
    """A half that is easy but for a few wrong labels, and a half that is guessed."""
    labels, probabilities, fitted, _ = told_apart(wrong=0.1)
    draw = np.random.default_rng(2)
    probabilities[:500] = draw.dirichlet([20.0] * 5, 500)
    found = wrong_labels(labels, probabilities, fitted)
    assert found.overlap > 0.28
    assert not found.called.any()


def test_the_count_by_hand():
    """Twelve rows of two classes: the surest three agree but one; four disagree; three confidently."""
    first = np.array([0.99, 0.98, 0.97, 0.9, 0.9, 0.8, 0.2, 0.1, 0.1, 0.1, 0.45, 0.3])
    labels = np.array([0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    probabilities = np.stack([first, 1 - first], 1)
    fitted = np.full(12, 0.5)
    found = wrong_labels(labels, probabilities, fitted)
    # Mean probabilities of the labels: of class 0 5.32 / 7 = 0.76, of class 1 (0.03 + 0.8 + 2.7) / 5 = 0.706. The third
    # row alone is above one of them with another class, 0.97 for class 0; the last has 0.7 for class 1.
    assert _confidently_other(labels, probabilities) == pytest.approx(1 / 12)
    assert found.confident == pytest.approx(1 / 3)
    assert found.overlap == pytest.approx(0.0)  # 3 of 12 disagree everywhere, which is less than a third
    # min(max(1.1 / 12, 1/3), 3/12, 1.5 / 3) of 12 rows are three: those with the smallest probability of their label.
    assert np.flatnonzero(found.called).tolist() == [2, 10, 11]
    margin = 0.97 - 0.03
    assert found.score[2] == pytest.approx((4 + margin - 3 * 0.5) / 5)


@given(st.integers(0, 500), st.integers(2, 6))
def test_the_confident_count_is_cleanlabs(seed, classes):
    cleanlab = pytest.importorskip("cleanlab.count")
    labels, probabilities, _, _ = told_apart(n=150, classes=classes, wrong=0.3, sure=0.6, seed=seed)
    labels[:classes] = np.arange(classes)
    joint = cleanlab.compute_confident_joint(labels, probabilities, calibrate=False)
    assert round(150 * _confidently_other(labels, probabilities)) == joint.sum() - np.trace(joint)


@given(st.integers(0, 500), st.integers(0, 30), st.integers(1, 4), st.floats(0, 1))
def test_any_input_gives_scores_and_calls(seed, n, classes, unknown):
    draw = np.random.default_rng(seed)
    probabilities = draw.dirichlet(np.ones(classes), n).reshape(n, classes)
    probabilities[draw.random(n) < unknown] = np.nan
    fitted = np.where(draw.random(n) < 0.2, np.nan, draw.random(n))
    found = wrong_labels(draw.integers(0, classes, n), probabilities, fitted)
    assert ((found.score >= 0) & (found.score <= 1)).all()
    assert not found.called[np.isnan(fitted) | np.isnan(probabilities[:, 0])].any()
    assert not found.score[np.isnan(fitted)].any()
    called, known = found.score[found.called], found.score[~found.called & ~np.isnan(fitted + probabilities[:, 0])]
    assert not len(called) or not len(known) or called.min() >= known.max()


def test_training_stands_in_where_no_other_model_saw_the_row():
    labels, probabilities, fitted, _ = told_apart(n=40)
    probabilities[7] = np.nan
    assert wrong_labels(labels, probabilities, fitted).score[7] == pytest.approx(1 - fitted[7])


def test_suspects_are_those_called_wrong():
    labels, probabilities, fitted, changed = told_apart(wrong=0.1)
    trajectory = np.tile(-np.log(np.maximum(fitted, 1e-3)), (6, 1))
    ranking = suspects(trajectory, labels, probabilities=probabilities)
    assert ranking.wrong is not None
    suspected = ranking.of_kind("suspected label error")
    assert set(suspected.tolist()) == set(np.flatnonzero(ranking.wrong.called).tolist())
    assert changed[suspected].mean() > 0.8
    assert ranking.order[: len(suspected)].tolist() == suspected.tolist()
    first = int(ranking.order[0])
    own = probabilities[first, labels[first]]
    other = np.delete(probabilities[first], labels[first]).max()
    expected = f"models that did not see it give its label {100 * own:.0f} %, another one {100 * other:.0f} %"
    assert ranking[0].reason.endswith(expected)


def test_wrong_input_is_named():
    losses, even = np.zeros((2, 4)), np.full((4, 2), 0.5)
    with pytest.raises(TypeError, match="need `labels`"):
        suspects(losses, probabilities=even)
    with pytest.raises(ValueError, match=r"shape \(4, classes\).*got shape \(3, 2\)"):
        suspects(losses, [0, 1, 0, 1], probabilities=even[:3])
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        suspects(losses, [0, 1, 0, 2], probabilities=even)
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        suspects(losses, ["a", "b", "a", "b"], probabilities=even)
    with pytest.raises(ValueError, match="For logits take a softmax"):
        suspects(losses, [0, 1, 0, 1], probabilities=4 * even)
    with pytest.raises(ValueError, match="NaN throughout"):
        suspects(losses, [0, 1, 0, 1], probabilities=np.where(np.eye(4, 2) > 0, np.nan, even))
