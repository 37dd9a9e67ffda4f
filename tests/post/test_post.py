"""Corrections after training: definitions on small numbers, other libraries, brute force."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, f1_score, matthews_corrcoef

import reweigh
from reweigh import Context, post
from reweigh.method import method, names
from reweigh.post import Isotonic, Prior, TauNorm, Temperature, Threshold, load

RNG = np.random.default_rng(0)


def problem(n=200, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    targets = rng.choice(classes, size=n, p=np.arange(classes, 0, -1) / np.arange(1, classes + 1).sum())
    outputs = rng.normal(size=(n, classes)) * 2
    outputs[np.arange(n), targets] += 1.0
    return outputs, targets


def log_loss(outputs, targets):
    log_p = torch.log_softmax(torch.tensor(outputs), 1).numpy()
    return -log_p[np.arange(len(targets)), targets].mean()


CONTEXT = Context(class_counts=[900, 90, 10], classifier=(RNG.normal(size=(3, 5)), RNG.normal(size=3)))


# --- every correction ---


@pytest.fixture(params=names("post"))
def corrected_by(request):
    value = method(request.param).post
    outputs, targets = problem()
    return value, value.fit(outputs, targets, CONTEXT), outputs


def test_every_correction_is_plain_numbers(corrected_by):
    _, correction, outputs = corrected_by
    again = load(json.loads(json.dumps(correction.state())))
    assert again == correction
    np.testing.assert_array_equal(again(outputs), correction(outputs))


def test_every_correction_takes_any_rows_of_any_framework(corrected_by):
    _, correction, outputs = corrected_by
    expected = correction(outputs)
    assert expected.shape == outputs.shape
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(correction(torch.tensor(outputs)[7:8]), expected[7:8], rtol=1e-12)
    np.testing.assert_allclose(correction(outputs.tolist()), expected, rtol=1e-12)


def test_every_correction_is_a_slot_of_a_method(corrected_by):
    value, _, _ = corrected_by
    name = type(value).__module__.rsplit(".", 1)[-1]
    whole = method(f"rgd:tau=3+{name}")
    assert str(whole) == f"rgd:tau=3+{name}"
    assert whole.build(Context(class_counts=(3, 2, 1))).post == value
    assert str(method(f"mean+{name}")) == name
    with pytest.raises(ValueError, match="the target is a number"):
        whole.build(Context(class_counts=(3, 2, 1), loss="mse"))


@pytest.mark.parametrize(
    ("outputs", "targets", "said"),
    [
        (np.zeros(4), np.zeros(4, int), r"shape \(n, classes\) with two classes or more, got shape \(4,\)"),
        (np.zeros((4, 1)), np.zeros(4, int), "stack zeros in front"),
        (np.zeros((4, 3)), np.zeros(3, int), r"one class index per row, shape \(4,\)"),
        (np.zeros((4, 3)), np.zeros(4), "one class index per row"),
        (np.zeros((4, 3)), np.array([0, 1, 2, 3]), "classes from 0 to 2, got 0 to 3"),
        (np.full((4, 3), np.nan), np.zeros(4, int), "must be finite"),
    ],
)
def test_wrong_rows_are_named(corrected_by, outputs, targets, said):
    value, correction, _ = corrected_by
    with pytest.raises(ValueError, match=said):
        value.fit(outputs, targets, CONTEXT)
    with pytest.raises(ValueError, match="must have 3 classes, as those of the fit had, got 2"):
        correction(np.zeros((1, 2)))


def test_without_rows_there_is_nothing_to_learn_from():
    for value in (Threshold(), Temperature(), Isotonic(), TauNorm(), Prior(t=None)):
        assert value.needs_rows
        with pytest.raises(ValueError, match="learns from held-out rows, got none"):
            value.fit(np.zeros((0, 3)), np.zeros(0, int), CONTEXT)
    assert not Prior().needs_rows
    assert not TauNorm(tau=1.0).needs_rows


def test_lazy_names_are_the_files():
    listed = {name for name in post.__all__ if name not in ("Post", "Correction", "load")}
    assert {type(method(name).post).__name__ for name in names("post")} == listed
    with pytest.raises(AttributeError, match="has no attribute 'Priors'"):
        _ = post.Priors
    with pytest.raises(ValueError, match="`kind` must be one of"):
        load({"kind": "affin"})


# --- prior ---


def test_prior_is_bayes_rule_for_another_mix():
    """Two Gaussians with known posteriors: what was trained on 90 to 10 is turned into what 50 to 50 would give."""
    x = np.linspace(-3, 3, 25)
    likelihood = np.stack([np.exp(-((x + 1) ** 2) / 2), np.exp(-((x - 1) ** 2) / 2)], axis=1)
    shares, equal = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    posterior = {
        name: likelihood * p / (likelihood * p).sum(axis=1, keepdims=True)
        for name, p in (("trained", shares), ("equal", equal))
    }
    rows = np.zeros((0, 2)), np.zeros(0, int)
    there = Prior().fit(*rows, Context(class_counts=[90, 10]))
    back = Prior(t=-1.0).fit(*rows, Context(class_counts=[90, 10]))
    for correction, given, wanted in ((there, "trained", "equal"), (back, "equal", "trained")):
        result = torch.softmax(torch.tensor(correction(np.log(posterior[given]))), 1).numpy()
        np.testing.assert_allclose(result, posterior[wanted], rtol=1e-12)
    # After training with weights (1, 9) on 90 to 10 the model believes 50 to 50; the weights undo it.
    undo = Prior(t=0.0, class_weights=(1.0, 9.0)).fit(*rows, Context(class_counts=[90, 10]))
    result = torch.softmax(torch.tensor(undo(np.log(posterior["equal"]))), 1).numpy()
    np.testing.assert_allclose(result, posterior["trained"], rtol=1e-12)


def test_prior_against_the_authors_formula():
    outputs, targets = problem()
    shares = np.array([0.9, 0.09, 0.01])
    for t in (0.5, 1.0, 2.0):
        # The authors' code subtracts log(share ** t + 1e-12).
        expected = outputs - np.log(shares**t + 1e-12)
        np.testing.assert_allclose(Prior(t=t).fit(outputs, targets, CONTEXT)(outputs), expected, atol=1e-6)


def test_prior_chooses_t_on_the_rows():
    outputs, targets = problem(400)
    shares = np.log([0.9, 0.09, 0.01])
    scores = {t: balanced_accuracy_score(targets, (outputs - t * shares).argmax(1)) for t in (0.0, 0.5, 1.0, 1.5, 2.0)}
    chosen = Prior(t=None).fit(outputs, targets, CONTEXT)
    assert balanced_accuracy_score(targets, chosen(outputs).argmax(1)) == max(scores.values())


def test_prior_names_what_is_missing():
    outputs, targets = problem()
    with pytest.raises(ValueError, match=r"Context\(class_counts=\[\.\.\.\]\)"):
        Prior().fit(outputs, targets)
    with pytest.raises(ValueError, match="must be 3 numbers, one per class"):
        Prior().fit(outputs, targets, Context(class_counts=[1, 2]))
    with pytest.raises(ValueError, match="`class_weights` must be 3 numbers"):
        Prior(class_weights=(1.0, 2.0)).fit(outputs, targets, CONTEXT)
    with pytest.raises(ValueError, match="needs to know class_counts"):
        method("prior").build(Context(n=3))
    empty = Prior().fit(outputs, targets, Context(class_counts=[99, 1, 0]))
    assert np.isfinite(empty(outputs)).all()


# --- threshold ---


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "worst_class", "f1", "matthews", "cost"])
def test_the_binary_cut_is_the_best_of_all(metric, positive):
    def value(targets, predicted):
        recall = [(predicted[targets == k] == k).mean() for k in (0, 1)]
        by_name = {
            "accuracy": (targets == predicted).mean(),
            "balanced_accuracy": sum(recall) / 2,
            "worst_class": min(recall),
            "f1": f1_score(targets, predicted, pos_label=positive, zero_division=0),
            "matthews": matthews_corrcoef(targets, predicted),
            "cost": -np.where(predicted == positive, 1.0, 7.0)[predicted != targets].sum(),
        }
        return by_name[metric]

    for seed in range(5):
        outputs, targets = problem(60, 2, seed)
        margin = outputs[:, 1] - outputs[:, 0]
        cuts = [-np.inf, *sorted(margin)]
        every = [value(targets, (margin > cut).astype(int)) for cut in cuts]
        cut = Threshold(metric=metric, positive=positive, false_negative=7.0)
        correction = cut.fit(outputs, targets)
        assert value(targets, correction(outputs).argmax(1)) == pytest.approx(max(every))


def test_costs_are_those_of_two_classes():
    outputs, targets = problem(60, 3, 0)
    with pytest.raises(ValueError, match="costs are those of two"):
        Threshold(metric="cost").fit(outputs, targets)


def test_offsets_of_several_classes_cannot_be_improved_one_at_a_time():
    outputs, targets = problem(120, 4, 3)
    correction = Threshold().fit(outputs, targets)
    moved = correction(outputs)
    reached = balanced_accuracy_score(targets, moved.argmax(1))
    assert reached > balanced_accuracy_score(targets, outputs.argmax(1))
    for k, by in itertools.product(range(4), np.linspace(-3, 3, 61)):
        shifted = moved.copy()
        shifted[:, k] += by
        assert balanced_accuracy_score(targets, shifted.argmax(1)) <= reached + 1e-12


def test_no_cut_moves_without_a_gain():
    outputs = np.array([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    assert Threshold().fit(outputs, np.array([0, 0, 1])).offset == (0.0, 0.0)
    ties = Threshold().fit(np.zeros((4, 2)), np.array([0, 0, 1, 1]))
    assert np.isfinite(ties(np.zeros((1, 2)))).all()


# --- temperature ---


@pytest.mark.parametrize(("classes", "factor"), [(2, 3.0), (5, 0.2)])
def test_temperature_is_the_minimum_of_the_log_loss(classes, factor):
    outputs, targets = problem(300, classes)
    outputs *= factor
    correction = Temperature().fit(outputs, targets)
    best = log_loss(correction(outputs), targets)
    for change in (0.99, 1.01):
        assert best < log_loss(correction(outputs) * change, targets)
    # The optimum in closed form is where the expected output is the output of the right class.
    scaled = correction(outputs)
    expected = (torch.softmax(torch.tensor(scaled), 1).numpy() * scaled).sum(1).mean()
    assert expected == pytest.approx(scaled[np.arange(300), targets].mean(), abs=1e-9)


def test_temperature_of_rows_that_are_all_right_is_a_number():
    correction = Temperature().fit(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 1]))
    assert 30.0 < correction.scale[0] <= 1000.0  # softmax rounds to one from there on
    assert Temperature().fit(np.zeros((2, 2)), np.array([0, 1]))(np.zeros((1, 2))).tolist() == [[0.0, 0.0]]


# --- isotonic ---


def test_isotonic_of_two_classes_against_scikit_learn():
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=400)
    x = rng.normal(size=(400, 4))
    x[np.arange(400), y] += 1.0
    model, rows, labels = LogisticRegression().fit(x[:200], y[:200]), x[200:], y[200:]
    reference = CalibratedClassifierCV(FrozenEstimator(model), method="isotonic").fit(rows, labels)
    outputs = model.predict_log_proba(rows)
    ours = np.exp(Isotonic().fit(outputs, labels)(outputs))
    # On the rows themselves: between them, scikit-learn interpolates margins, and this probabilities.
    theirs = np.clip(reference.predict_proba(rows), 1 / 400, 1 - 1 / 400)  # ours keep 1/(2n) from the ends
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_isotonic_of_many_classes_by_hand():
    probabilities = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    correction = Isotonic().fit(np.log(probabilities), np.array([0, 1, 2, 0]))
    # Every class is separated: 1 at and above its own rows, 0 below; with the ends 1/8 and 7/8.
    np.testing.assert_allclose(np.exp(correction(np.log(probabilities[:1])))[0], np.array([7, 1, 1]) / 9, atol=1e-9)


# --- tau_norm ---


def test_tau_norm_is_the_layer_with_shorter_vectors():
    """The authors' code: features times weight vectors over a power of their length, and no bias."""
    rng = np.random.default_rng(2)
    features, layer = torch.tensor(rng.normal(size=(50, 6))), torch.nn.Linear(6, 3).double()
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([[3.0], [1.0], [0.3]]))
        outputs = layer(features)
        for tau in (0.0, 0.7, 1.0, 2.0):
            shorter = layer.weight / layer.weight.norm(dim=1, keepdim=True) ** tau
            correction = TauNorm(tau=tau).fit(
                outputs, torch.zeros(50, dtype=torch.long), Context(classifier=(layer.weight, layer.bias))
            )
            np.testing.assert_allclose(correction(outputs), (features @ shorter.T).numpy(), rtol=1e-9, atol=1e-12)


def test_tau_norm_chooses_the_power_on_the_rows():
    outputs, targets = problem(300)
    weight = np.diag([5.0, 1.0, 0.2])
    chosen = TauNorm().fit(outputs * np.diag(weight), targets, Context(classifier=(weight, None)))
    reached = balanced_accuracy_score(targets, chosen(outputs * np.diag(weight)).argmax(1))
    grid = [balanced_accuracy_score(targets, (outputs * np.diag(weight) ** (1 - 0.1 * i)).argmax(1)) for i in range(21)]
    assert reached == pytest.approx(max(grid))


def test_tau_norm_names_what_is_missing():
    outputs, targets = problem()
    with pytest.raises(ValueError, match=r"Context\(classifier=\(layer\.weight, layer\.bias\)\)"):
        TauNorm(tau=1.0).fit(outputs, targets)
    with pytest.raises(ValueError, match=r"a weight of shape \(3, features\)"):
        TauNorm(tau=1.0).fit(outputs, targets, Context(classifier=(np.zeros((2, 4)), None)))


def test_hyper_parameters_are_checked():
    for wrong in (lambda: Prior(t=math.nan), lambda: Prior(class_weights=(1.0, 0.0)), lambda: TauNorm(tau=-1.0)):
        with pytest.raises(ValueError, match="must be"):
            wrong()
    for kind in (Prior, Threshold, TauNorm):
        with pytest.raises(ValueError, match="Did you mean 'accuracy'"):
            kind(metric="acuracy")


def test_the_namespace_needs_no_import_of_its_own():
    assert reweigh.post.Prior is Prior


# --- after a training that has corrected already ---


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("mean+prior", 1.0),
        ("focal+prior", 1.0),
        ("class_weights:power=0.5+prior", 0.5),
        ("class_weights+prior", 0.0),
        ("class_balanced:beta=0+prior", 1.0),
        ("logit_adjusted+prior", 0.0),
        ("logit_adjusted:t=0.5+prior:t=2", 1.5),
        ("vs+prior", 0.0),
        ("deferred:base=class_weights+prior", 0.0),
        ("class_uniform+prior", 0.0),
        ("mean+crt+prior", 0.0),
    ],
)
def test_prior_corrects_what_training_has_left(text, left):
    context = Context(class_counts=[90, 9, 1], n=100, targets=torch.zeros(100), steps=10)
    outputs, targets = problem()
    correction = method(text).build(context).post.fit(outputs, targets, context)
    moved = correction(outputs) - outputs + left * np.log([0.9, 0.09, 0.01])
    np.testing.assert_allclose(moved - moved[:, :1], 0.0, atol=1e-6)


def test_given_class_weights_are_not_replaced():
    context = Context(class_counts=[90, 10])
    own = Prior(class_weights=(1.0, 3.0))
    loss = method("class_weights").loss
    assert reweigh.Method(loss=loss, post=own).build(context).post == own
