"""JAX: losses and corrections by name against torch's and formulas written out."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import reweigh
from reweigh.integrations.jax import init, loss, value_and_grad
from reweigh.torch import Reweighted
from reweigh.torch.losses import ClassBalanced, Focal

RNG = np.random.default_rng(2)
X = RNG.normal(size=(24, 5)).astype(np.float32)
Y = RNG.choice(4, 24, p=[0.5, 0.25, 0.15, 0.1])
W = RNG.normal(size=(5, 4)).astype(np.float32)
COUNTS = (50, 25, 15, 10)
HOST = "JAX, Optax"
TEXTS = [
    "cross_entropy",
    "focal:gamma=1.5",
    "label_smoothing:eps=0.2",
    "label_smoothing:eps=0.2,over=C-1",
    "class_weights:power=0.5",
    "class_balanced:beta=0.99",
    "class_balanced:base=focal",
    "class_weights:base=label_smoothing",
    "logit_adjusted:t=1.5",
    "vs:gamma=0.3",
    "large_margin",
    "poly:e1=2.0",
    "gce:q=0.5",
    "sce",
]


def logits_of(w: Any, x: Any) -> Any:
    return x @ w


def torchs(method: Any, sample_weight: Any = None, ignored: Any = None) -> tuple[float, Any]:
    """Value and gradient of the criterion for torch."""
    w = torch.tensor(W, requires_grad=True)
    criterion = Reweighted(method, class_counts=COUNTS)
    own = None if sample_weight is None else torch.tensor(sample_weight)
    target = torch.tensor(Y if ignored is None else ignored)
    value = criterion(torch.tensor(X) @ w, target, sample_weight=own)
    value.backward()
    assert w.grad is not None
    return value.item(), w.grad.numpy()


@pytest.mark.shows(HOST, "loss")
@pytest.mark.parametrize("text", [*(f"{text}+rgd:tau=1" for text in TEXTS), "label_smoothing+cvar:alpha=0.5", "focal"])
def test_a_method_by_its_text_is_that_of_torch(text: str) -> None:
    criterion = loss(text, class_counts=COUNTS)
    (value, step), gradient = value_and_grad(logits_of, criterion)(init(criterion), W, X, labels=Y)
    expected, slope = torchs(text)
    assert float(value) == pytest.approx(expected, rel=2e-5)
    np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=2e-6)
    assert step.weights.shape == (24,)


def test_a_pure_function_under_jit() -> None:
    criterion = loss("class_weights:base=label_smoothing+rgd:tau=1", class_counts=COUNTS)
    value, gradient = jax.jit(jax.value_and_grad(lambda w: criterion(X @ w, Y)))(W)
    expected, slope = torchs(criterion.method)
    assert float(value) == pytest.approx(expected, rel=2e-5)
    np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=2e-6)


def test_focal_and_class_weights_by_hand() -> None:
    logits = (X @ W).astype(np.float64)
    p = np.exp(logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(24), Y]
    of_class = 1 / np.array([0.5, 0.25, 0.15, 0.1]) / 4
    losses = (1 - p) ** 2 * -np.log(p)
    weights = np.exp(np.clip(losses, 0, 2) / 3)
    method = reweigh.Method(loss=reweigh.method("class_weights:base=focal").loss, objective=reweigh.RGD(tau=2.0))
    criterion = loss(method, class_counts=COUNTS)
    np.testing.assert_allclose(criterion.losses(X @ W, Y), losses, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(criterion.weights(Y)), of_class[Y], rtol=1e-6)
    expected = (of_class[Y] * weights * losses).sum() / of_class[Y].sum()
    assert float(criterion(X @ W, Y)) == pytest.approx(expected, rel=1e-5)


def test_extreme_logits_have_finite_gradients() -> None:
    logits = jnp.array([[120.0, -120.0, 0.0], [-120.0, 120.0, 0.0]])
    for text in ("focal", "large_margin", "gce", "sce", "poly"):
        criterion = loss(text)
        gradient = jax.grad(lambda z, criterion=criterion: criterion(z, jnp.array([0, 0])))(logits)
        assert np.isfinite(gradient).all(), text


def test_weights_of_rows_ignored_labels_and_accumulation() -> None:
    own = RNG.uniform(0.5, 2.0, 24).astype(np.float32)
    labels = np.where(np.arange(24) % 5 == 0, -100, Y)
    method = "class_weights:ignore_index=-100+rgd:tau=1"
    evaluate = value_and_grad(logits_of, loss(method, class_counts=COUNTS))
    (value, _), gradient = evaluate((), W, X, labels=labels, sample_weight=own)
    expected, slope = torchs(method, own, labels)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)
    amount = float((np.array([0.5, 1.0, 5 / 3, 2.5])[Y] * own * (labels >= 0)).sum())
    parts = [
        evaluate((), W, X[rows], labels=labels[rows], sample_weight=own[rows], count=amount)[1]
        for rows in np.split(np.arange(24), 3)
    ]
    np.testing.assert_allclose(sum(parts), gradient, rtol=1e-4, atol=1e-6)


def test_rows_of_probabilities() -> None:
    shares = RNG.dirichlet(np.ones(4), 24).astype(np.float32)
    found = loss("cross_entropy").losses(X @ W, shares)
    np.testing.assert_allclose(found, optax.softmax_cross_entropy(X @ W, shares), rtol=1e-5)
    expected = nn.functional.cross_entropy(
        torch.tensor(X @ W), torch.tensor(shares), label_smoothing=0.1, reduction="none"
    )
    np.testing.assert_allclose(loss("label_smoothing").losses(X @ W, shares), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="labels must be class indices for Focal"):
        loss("focal").losses(X @ W, shares)


@pytest.mark.shows(HOST, "post")
def test_a_correction_of_the_outputs() -> None:
    criterion = loss("rgd+prior", class_counts=COUNTS)
    logits = X @ W
    shares = np.array(COUNTS) / 100
    np.testing.assert_allclose(criterion.correction(logits, Y)(logits), logits - np.log(shares), rtol=1e-5)
    done = loss("logit_adjusted+rgd+prior", class_counts=COUNTS)  # what the loss corrects is not corrected again
    np.testing.assert_allclose(done.correction(jnp.asarray(logits), Y)(jnp.asarray(logits)), logits, atol=1e-5)
    with pytest.raises(ValueError, match="no correction after training"):
        loss("focal").correction(logits, Y)


def test_objects_work_where_texts_do() -> None:
    part = ClassBalanced(beta=0.9, base=Focal(gamma=1.0))
    value = loss(reweigh.Method(loss=part, objective=reweigh.RGD(tau=1.0)), class_counts=COUNTS)(X @ W, Y)
    bound = part.bind(COUNTS)
    expected = Reweighted(bound, tau=1.0)(torch.tensor(X @ W, requires_grad=True), torch.tensor(Y))
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)


def test_a_state_is_threaded() -> None:
    criterion = loss("focal+term_ema:t=0.5")
    (_, step), _ = value_and_grad(logits_of, criterion)(init(criterion), W, X, labels=Y)
    assert int(step.state["step"]) == 1
    with pytest.raises(TypeError, match="remembers something between steps"):
        criterion(X @ W, Y)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("class_weights", {}, "class_counts"),
        ("class_weights", {"class_counts": "auto"}, "has no data set to count"),
        ("ldam", {"class_counts": COUNTS}, "start late"),
        ("deferred", {"class_counts": COUNTS}, "start late"),
        ("mse+rgd", {}, "takes losses of classes from a method"),
        ("focal:form=sigmoid", {}, "focal loss of a softmax"),
        ("focal+sam", {}, "with the step 'sam': it gives one gradient"),
    ],
)
def test_what_is_refused(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(text, **options)


def test_wrong_shapes_and_missing_labels() -> None:
    with pytest.raises(ValueError, match="as many classes on the last axis as there are class counts, 4"):
        loss("logit_adjusted", class_counts=COUNTS)(np.zeros((2, 3), np.float32), np.array([0, 1]))
    with pytest.raises(ValueError, match="labels must have shape"):
        loss("focal")(np.zeros((2, 3), np.float32), np.array([0, 1, 2]))
    with pytest.raises(TypeError, match="floating-point"):
        loss("focal")(np.zeros((2, 3), int), np.array([0, 1]))
    with pytest.raises(TypeError, match="needs `labels`"):
        value_and_grad(logits_of, "focal+rgd")((), W, X)
    with pytest.raises(TypeError, match="takes no `labels`"):
        value_and_grad(logits_of, "rgd")((), W, X, labels=Y)


def test_a_column_of_labels_is_not_taken_for_probabilities():
    with pytest.raises(ValueError, match=r"class indices of shape \(4,\) or .* got \(4, 1\).*squeeze"):
        loss("rgd")(np.zeros((4, 3)), np.zeros((4, 1), int))


@pytest.mark.parametrize("text", ["class_balanced+rgd", "rgd+prior"])
def test_missing_class_counts_are_asked_for_as_this_loss_takes_them(text):
    with pytest.raises(ValueError, match=rf"loss\('{re.escape(text)}', class_counts=numpy.bincount\(labels\)\)"):
        loss(text)
