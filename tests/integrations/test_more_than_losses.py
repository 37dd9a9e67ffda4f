"""Entropies in hosts of classifiers, made from their outputs; and hosts without what an objective needs say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from reweigh.torch import Reweighted


def batch():
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(24, 3, generator=generator), torch.randint(3, (24,), generator=generator)


def units_by_hand(logits, labels):
    """The loss and the entropy over its maximum of each row, in double precision and one row at a time."""
    losses, entropies = [], []
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        odds = [math.exp(value - max(row)) for value in row]
        p = [one / sum(odds) for one in odds]
        losses.append(-math.log(p[label]))
        entropies.append(-sum(one * math.log(one) for one in p) / math.log(len(p)))
    return np.array(losses), np.array(entropies)


@pytest.mark.parametrize(
    ("criterion", "to_outputs"),
    [
        ("entropy", lambda logits: logits),
        (nn.CrossEntropyLoss(), lambda logits: logits),
        (nn.functional.cross_entropy, lambda logits: logits),
        (nn.NLLLoss(), lambda logits: logits.log_softmax(1)),
    ],
)
def test_criteria_of_classes_make_the_entropies_themselves(criterion, to_outputs):
    logits, labels = batch()
    reweighted = Reweighted(criterion) if isinstance(criterion, str) else Reweighted(criterion, "entropy")
    loss = reweighted(to_outputs(logits.requires_grad_()), labels)
    losses, entropies = units_by_hand(logits, labels)
    assert loss.item() == pytest.approx((entropies * losses).mean(), rel=1e-5)


def test_a_given_signal_comes_first():
    logits, labels = batch()
    signal = torch.linspace(0.0, 1.0, len(labels))
    loss = Reweighted("entropy")(logits.requires_grad_(), labels, signal=signal)
    losses, _ = units_by_hand(logits, labels)
    assert loss.item() == pytest.approx((signal.numpy() * losses).mean(), rel=1e-5)


@pytest.mark.parametrize("level", ["sample", "token", "sequence"])
def test_entropies_of_tokens_are_those_of_their_units(level):
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(2, 3, 4, generator=generator), torch.randint(3, (2, 4), generator=generator)
    labels[0, 2:] = -100
    loss = Reweighted(nn.CrossEntropyLoss(), "entropy", level=level)(logits.requires_grad_(), labels)
    rows = [units_by_hand(logits[b].T[labels[b] >= 0], labels[b][labels[b] >= 0]) for b in range(2)]
    if level == "token":
        expected = sum((entropies * losses).sum() for losses, entropies in rows) / 6
    elif level == "sequence":
        expected = sum(entropies.mean() * losses.sum() for losses, entropies in rows) / 6
    else:
        expected = np.mean([entropies.mean() * losses.mean() for losses, entropies in rows])
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_cosines_become_logits_first():
    cosines, labels = torch.tensor([[1.0, -1.0], [0.0, 0.0]], requires_grad=True), torch.tensor([0, 0])
    criterion = Reweighted("ldam:scale=5+entropy", class_counts=[1, 1])
    criterion(cosines, labels)
    p = 1 / (1 + math.exp(-10.0))
    sure = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / math.log(2)
    assert criterion.weights.tolist() == pytest.approx([sure, 1.0], rel=1e-4)


def test_other_criteria_still_ask_for_it():
    outputs, targets = torch.randn(4, 2, requires_grad=True), torch.rand(4, 2)
    for criterion in (nn.MSELoss(), nn.BCEWithLogitsLoss()):
        with pytest.raises(ValueError, match="needs `signal`, got None"):
            Reweighted(criterion, "entropy")(outputs, targets)


@pytest.mark.parametrize("from_logits", [True, False])
def test_keras_makes_the_entropies_itself(from_logits):
    keras = pytest.importorskip("keras")
    from reweigh.integrations.keras import Reweighted as KerasReweighted
    from reweigh.integrations.keras import loss

    logits, labels = batch()
    losses, entropies = units_by_hand(logits, labels)
    outputs = (logits if from_logits else logits.softmax(1)).numpy()
    wrapped = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    for criterion in (loss("entropy", from_logits=from_logits), KerasReweighted(wrapped, "entropy")):
        assert float(criterion(labels.numpy(), outputs)) == pytest.approx((entropies * losses).mean(), rel=1e-4)


def test_jax_makes_the_entropies_itself():
    pytest.importorskip("jax")
    from reweigh.integrations.jax import loss

    logits, labels = batch()
    losses, entropies = units_by_hand(logits, labels)
    value = loss("cross_entropy+entropy")(logits.numpy(), labels.numpy())
    assert float(value) == pytest.approx((entropies * losses).mean(), rel=1e-5)


def test_the_network_of_scikit_learn_makes_them_itself():
    from reweigh.integrations.sklearn import RGDClassifier

    X, y = np.eye(4, dtype=np.float32).repeat(8, 0), np.arange(4).repeat(8) % 2
    model = RGDClassifier(objective="entropy", max_iter=60, learning_rate_init=0.05, random_state=0).fit(X, y)
    assert model.score(X, y) == 1.0


def rows():
    draw = np.random.default_rng(0)
    return draw.normal(size=(40, 3)), np.arange(40) % 3


def of_booster(text):
    from reweigh.integrations.boosting import xgboost

    xgboost("multiclass", objective=text)


def of_catboost(text):
    from reweigh.integrations.boosting import RGDCatBoostClassifier

    RGDCatBoostClassifier(objective=text, iterations=2, verbose=False, allow_writing_files=False).fit(*rows())


def of_refit(text):
    from reweigh.integrations.sklearn import ReweightedClassifier

    ReweightedClassifier(objective=text).fit(*rows())


def of_network(text):
    from reweigh.integrations.sklearn import RGDClassifier

    RGDClassifier(objective=text).fit(*rows())


def of_regressor(text):
    from reweigh.integrations.sklearn import RGDRegressor

    RGDRegressor(objective=text).fit(*rows())


def of_keras(text):
    keras = pytest.importorskip("keras")
    from reweigh.integrations.keras import Reweighted as KerasReweighted

    KerasReweighted(keras.losses.MeanSquaredError(), text)


@pytest.mark.parametrize(
    ("host", "text", "name"),
    [
        (of_booster, "entropy", "signal"),
        (of_catboost, "entropy", "signal"),
        (of_refit, "entropy", "signal"),
        (of_refit, "rho", "signal"),
        (of_refit, "gain", "index"),
        (of_refit, "group_dro", "groups"),
        (of_network, "rho", "signal"),
        (of_network, "gain:n=40", "index"),
        (of_network, "group_dro:n_groups=2", "groups"),
        (of_regressor, "entropy", "signal"),
        (of_keras, "entropy", "signal"),
        (of_keras, "gain", "index"),
        (of_keras, "group_dro", "groups"),
    ],
)
def test_a_host_that_has_losses_alone_says_so_before_training(host, text, name):
    with pytest.raises(ValueError, match=f"the losses and nothing else, got .*which needs `{name}` too"):
        host(text)


@pytest.mark.parametrize("text", ["mse", "bce+rgd"])
def test_a_classifier_refuses_a_loss_of_numbers(text):
    with pytest.raises(ValueError, match=r"a loss of numbers, .*RGDClassifier needs one of classes"):
        of_network(text)


def test_classes_that_are_ruled_out_cost_nothing_in_jax():
    jax = pytest.importorskip("jax")
    from reweigh.integrations.jax import loss

    logits, labels = np.array([[0.0, -np.inf, 1.0]]), np.array([2])
    expected = math.log(1 + math.exp(-1.0))
    for text in ("mean", "focal:gamma=0", "gce:q=1e-6"):
        value, gradient = jax.value_and_grad(lambda z, text=text: loss(text)(z, labels))(logits)
        assert float(value) == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(gradient, [[1 / (1 + math.e), 0.0, -1 / (1 + math.e)]], atol=1e-4)


def test_the_last_layer_goes_to_the_correction_of_a_trainer():
    pytest.importorskip("transformers")
    from reweigh.integrations.transformers import loss

    logits, labels = batch()
    weight = np.diag([1.0, 2.0, 4.0])
    correct = loss("rgd+tau_norm:tau=1").correction(logits, labels, classifier=(weight, None))
    np.testing.assert_allclose(correct(logits.numpy()), logits.numpy() / [1.0, 2.0, 4.0], rtol=1e-6)
    with pytest.raises(ValueError, match=r"or `classifier=` to a host.s `correction`"):
        loss("rgd+tau_norm").correction(logits, labels)


def test_a_trainer_has_no_groups_and_says_so_at_construction():
    pytest.importorskip("transformers")
    from reweigh.integrations.transformers import loss

    for text in ("group_dro:n_groups=2", "term_hierarchical:n_groups=2"):
        with pytest.raises(ValueError, match="weighs groups, and a Trainer does not hand on the groups of rows"):
            loss(text)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 0]])])
def test_a_column_of_texts_is_not_one_of_weights(labels):
    from reweigh.integrations._data_weights import WeightedCollator

    collate = WeightedCollator(lambda rows: {"labels": labels}, "quality")
    with pytest.raises(TypeError, match="the column 'quality' must hold numbers, or lists of numbers, got 'good'"):
        collate([{"labels": [0, 1], "quality": "good"}, {"labels": [1, 0], "quality": "bad"}])
