"""Objectives that see more than the loss: a signal per unit, in every framework and every host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from instances import SIGNALLED
from torch import nn

import reweigh
from reweigh.integrations import jax as reweigh_jax
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.lin_upper import LinUpper
from reweigh.objectives.rho import Rho
from reweigh.torch import Reweighted, entropy

RNG = np.random.default_rng(0)
LOSSES = RNG.gamma(1.5, size=12).astype(np.float32)
SIGNAL = RNG.random(12).astype(np.float32)
every = pytest.mark.parametrize("objective", SIGNALLED, ids=repr)


def weights(objective, losses=LOSSES, signal=SIGNAL, **options):
    return objective.weigh(losses, (), signal=signal, **options).weights


@every
def test_the_same_in_every_framework(objective):
    value = float(objective(LOSSES, signal=SIGNAL))
    tensor = torch.tensor(LOSSES, requires_grad=True)
    signal = torch.tensor(SIGNAL, requires_grad=True)
    loss = objective(tensor, signal=signal)
    loss.backward()
    gradient = jax.grad(lambda x: objective(x, signal=jnp.asarray(SIGNAL)))(jnp.asarray(LOSSES))
    assert loss.item() == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(tensor.grad, weights(objective) / 12, rtol=1e-5)
    np.testing.assert_allclose(gradient, weights(objective) / 12, rtol=1e-5)
    assert signal.grad is None  # a weight is a constant


@every
def test_masked_units_are_left_out(objective):
    mask = np.arange(12) % 3 != 0
    kept = float(objective(LOSSES[mask], signal=SIGNAL[mask]))
    assert float(objective(LOSSES, signal=SIGNAL, mask=mask)) == pytest.approx(kept, rel=1e-6)
    square = objective(LOSSES.reshape(3, 4), signal=SIGNAL.reshape(3, 4))
    assert float(square) == pytest.approx(float(objective(LOSSES, signal=SIGNAL)), rel=1e-6)


@every
def test_separable_is_the_truth(objective):
    halves = np.concatenate([weights(objective, LOSSES[part], SIGNAL[part]) for part in (slice(2), slice(2, 12))])
    assert np.allclose(halves, weights(objective)) == objective.separable


@every
def test_without_a_signal_the_error_has_the_line_to_write(objective):
    for call in (
        lambda: objective(LOSSES),
        lambda: objective.weigh(LOSSES, ()),
        lambda: Reweighted(nn.MSELoss(), objective)(torch.randn(4, 3, requires_grad=True), torch.zeros(4, 3)),
    ):
        with pytest.raises(ValueError, match=r"needs `signal`, got None\. It is .*signal=re"):
            call()
    with pytest.raises(ValueError, match=r"`signal` must have the shape of the losses, \(12,\), got \(3,\)"):
        objective(LOSSES, signal=SIGNAL[:3])


@every
def test_the_criterion_hands_it_on(objective):
    logits, target = torch.randn(12, 3, requires_grad=True), torch.arange(12) % 3
    losses = nn.functional.cross_entropy(logits, target, reduction="none")
    expected = torch.autograd.grad(objective(losses, signal=torch.tensor(SIGNAL)), logits)[0]
    criterion = Reweighted(nn.CrossEntropyLoss(), objective)
    ours = torch.autograd.grad(criterion(logits, target, signal=torch.tensor(SIGNAL)), logits)[0]
    torch.testing.assert_close(ours, expected)
    criterion.eval()
    assert criterion(logits, target).item() == pytest.approx(losses.mean().item())


@every
def test_jax_hands_it_on(objective):
    step = reweigh_jax.value_and_grad(lambda w, x: w * x, objective)
    (loss, info), gradient = step((), 2.0, jnp.asarray(LOSSES), signal=jnp.asarray(SIGNAL))
    expected = weights(objective, 2 * LOSSES)
    assert float(gradient) == pytest.approx(float((expected * LOSSES).mean()), rel=1e-5)
    np.testing.assert_allclose(info.weights, expected, rtol=1e-5)
    assert float(loss) == pytest.approx(float((expected * 2 * LOSSES).mean()), rel=1e-5)


def test_objectives_that_need_none_ignore_it():
    for text in ("mean", "rgd", "cvar"):
        objective = reweigh.method(text).objective
        assert float(objective(LOSSES, signal=SIGNAL, index=np.arange(12))) == float(objective(LOSSES))


def test_rho_keeps_the_units_most_above_the_reference():
    """Mindermann et al.: sort by loss minus irreducible loss, take the top of the batch, and average."""
    for keep, count in ((0.1, 2), (0.5, 6), (1.0, 12)):
        top = np.argsort(LOSSES - SIGNAL)[::-1][:count]
        assert float(Rho(keep=keep)(LOSSES, signal=SIGNAL)) == pytest.approx(float(LOSSES[top].mean()), rel=1e-6)


def test_entropy_against_the_definition():
    logits = torch.randn(5, 7, dtype=torch.float64)
    expected = torch.distributions.Categorical(logits=logits).entropy() / np.log(7)
    torch.testing.assert_close(entropy(logits), expected)
    torch.testing.assert_close(entropy(torch.zeros(2, 3, 4)), torch.ones(2, 3))
    losses = torch.rand(5)
    assert float(Entropy(power=2.0)(losses, signal=expected)) == pytest.approx(
        float((expected**2 * losses).mean()), rel=1e-5
    )


def test_entropy_of_the_most_probable_classes_is_the_authors():
    """EAFT: a softmax over the 20 largest logits, its entropy over 3.0, which stands for log 20."""
    logits, target = 3 * torch.randn(30, 200, dtype=torch.float64), torch.arange(30)
    losses = nn.functional.cross_entropy(logits, target, reduction="none").requires_grad_()
    odds = logits.sort(descending=True).values[:, :20].exp()
    probabilities = odds / odds.sum(1, keepdim=True)
    theirs = -(probabilities * probabilities.log()).sum(1) / 3.0
    ours = Entropy()(losses, signal=entropy(logits, top=20)) * np.log(20) / 3.0
    torch.testing.assert_close(ours, (theirs * losses).mean())
    torch.testing.assert_close(torch.autograd.grad(ours, losses)[0], theirs / 30)
    torch.testing.assert_close(entropy(logits, top=999), entropy(logits))
    with pytest.raises(ValueError, match="`top` must be a whole number of at least 2"):
        entropy(logits, top=1)


@pytest.mark.parametrize(("delta", "r"), [(1.0, 1.0), (0.5, 0.4)])
def test_lin_upper_against_the_published_formula(delta, r):
    """Losses scaled to [-delta, delta], shifted up and capped at delta, softmax at temperature r."""
    low, high = LOSSES.min(), LOSSES.max()
    scaled = 2 * delta * LOSSES / (high - low) - delta * (high + low) / (high - low)
    capped = torch.tensor(np.minimum(scaled + delta, delta))
    expected = 12 * torch.softmax(capped / r, 0).numpy()
    np.testing.assert_allclose(LinUpper(delta=delta, r=r).weigh(LOSSES, ()).weights, expected, rtol=1e-5)


def test_lin_upper_is_off_at_first():
    objective = LinUpper(warmup=2)
    state, seen = objective.init(), []
    for _ in range(3):
        weighed = objective.weigh(LOSSES, state)
        state = weighed.state
        seen.append(bool(np.allclose(weighed.weights, 1.0)))
    assert seen == [True, True, False]
    np.testing.assert_allclose(LinUpper().weigh(np.full(4, 2.0), ()).weights, np.ones(4))
