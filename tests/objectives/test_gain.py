"""Objectives that remember each unit by its number: hand-worked weights, in every framework and in the bench."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from instances import INDEXED

import reweigh
from reweigh.objectives.gain import Gain

every = pytest.mark.parametrize("objective", INDEXED, ids=repr)
RNG = np.random.default_rng(0)
#: Batches of units, some of which come again.
BATCHES = [(RNG.permutation(20)[:8], RNG.exponential(size=8).astype(np.float32)) for _ in range(5)]


def test_weights_by_hand():
    objective = Gain(beta=2.0, n=4)
    state = objective.init()
    weights, state, _ = objective.weigh(np.array([1.0, 3.0]), state, index=np.array([3, 1]))
    assert weights.tolist() == [1.0, 1.0]
    assert state["last"].tolist() == [math.inf, 3.0, math.inf, 1.0]
    weights, state, _ = objective.weigh(np.array([2.5, 0.7, 2.0]), state, index=np.array([1, 0, 3]))
    # The first fell by a half: 2 / (1 + e); the second is new; the third rose by one: 2 / (1 + e^-2).
    assert weights.tolist() == pytest.approx([2 / (1 + math.e), 1.0, 2 / (1 + math.exp(-2))])
    assert state["last"].tolist() == pytest.approx([0.7, 2.5, math.inf, 2.0])


@every
def test_the_same_in_every_framework(objective):
    states = [objective.init() for _ in range(3)]
    seen = {}
    for index, losses in BATCHES:
        expected = [
            2 / (1 + math.exp(objective.beta * (seen.get(i, x) - x))) for i, x in zip(index, losses, strict=True)
        ]
        seen.update(zip(index, losses, strict=True))
        value, states[0] = objective.apply(losses, states[0], index=index)
        tensor = torch.tensor(losses, requires_grad=True)
        loss, states[1] = objective.apply(tensor, states[1], index=torch.tensor(index))
        loss.backward()

        def traced(x, state, index=index):
            return objective.apply(x, state, index=jnp.asarray(index))

        (other, states[2]), gradient = jax.value_and_grad(traced, has_aux=True)(jnp.asarray(losses), states[2])
        for own in (value, loss.item(), other):
            assert float(own) == pytest.approx(float(np.mean(np.array(expected) * losses)), rel=1e-5)
        for own in (tensor.grad, gradient):
            np.testing.assert_allclose(own, np.array(expected) / 8, rtol=1e-5)
    for state in states:
        np.testing.assert_allclose(state["last"], [seen.get(i, np.inf) for i in range(20)], rtol=1e-6)


@every
def test_what_does_not_count_is_not_remembered(objective):
    state = objective.init()
    losses = np.array([1.0, np.nan, 2.0], np.float32)
    mask = np.array([True, True, False])
    _, state = objective.apply(losses, state, index=np.arange(3), mask=mask, nonfinite="skip")
    assert state["last"][:3].tolist() == [1.0, math.inf, math.inf]
    kept = objective.apply(losses[:1], state, index=np.arange(1))[0]
    assert float(kept) == pytest.approx(1.0)


@every
def test_large_gains_stay_finite(objective):
    state = objective.weigh(np.array([1e6, 0.0]), objective.init(), index=np.arange(2)).state
    weights = objective.weigh(np.array([0.0, 1e6]), state, index=np.arange(2)).weights
    assert weights.tolist() == pytest.approx([0.0, 2.0])


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"needs `index`, got None\. It is the number of each unit.*index=indices"):
        Gain(n=3).apply(np.ones(2), Gain(n=3).init())
    with pytest.raises(ValueError, match=r"`n` must be known before the first batch.*Give len\(dataset\)"):
        Gain().init()
    with pytest.raises(ValueError, match="needs to know n"):
        reweigh.method("gain").build(reweigh.Context())
    with pytest.raises(TypeError, match="`index` must be whole numbers, got dtype float64"):
        Gain(n=3).apply(np.ones(2), Gain(n=3).init(), index=np.zeros(2))
    with pytest.raises(ValueError, match="`n` must be"):
        Gain(n=0)


@pytest.mark.parametrize("array", [np.asarray, torch.tensor])
@pytest.mark.parametrize(("index", "given"), [((3, 10), "3 to 10"), ((3, -1), "-1 to 3")])
def test_a_unit_outside_the_data_is_named(array, index, given):
    objective = Gain(n=10)
    losses = array([1.0, 2.0])
    with pytest.raises(IndexError, match=rf"`index` must lie in \[0, 10\), got {given} .*n=len\(dataset\)"):
        objective.apply(losses, objective.init(), index=array(index))
