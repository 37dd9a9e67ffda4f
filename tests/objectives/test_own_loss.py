"""Objectives that weigh each unit by its own loss, some against a running level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from reweigh.objectives.dft import DFT
from reweigh.objectives.redescending import Redescending
from reweigh.objectives.rgd import RGD
from reweigh.objectives.rgd_auto import RGDAuto
from reweigh.objectives.self_paced import SelfPaced
from reweigh.objectives.superloss import SuperLoss

LOSSES = np.array([0.2, 0.7, 1.5, 4.0])


def test_dft_weight_is_the_probability():
    p = np.array([0.9, 0.5, 0.1])
    np.testing.assert_allclose(DFT().weigh(-np.log(p), ()).weights, p)


def test_dft_does_not_overflow_on_negative_losses():
    assert np.isfinite(DFT().weigh(np.array([-1e4, 1.0], np.float32), ()).weights).all()


@given(loss=st.floats(-50, 1e4), level=st.floats(-3, 5), lam=st.floats(0.05, 20))
def test_superloss_weight_is_lamberts(loss, level, lam):
    y = 0.5 * max(-2 / np.e, (loss - level) / lam)
    # scipy is not defined a rounding error below -1/e
    expected = np.exp(-lambertw(max(y, -1 / np.e + 1e-16)).real)
    weight = SuperLoss(T=level, lam=lam).weigh(np.array([loss]), ()).weights[0]
    assert weight == pytest.approx(expected, rel=3e-8 if y < -0.3678 else 1e-11)


def test_superloss_lambert_in_float32():
    losses = np.linspace(-1, 40, 500).astype(np.float32)
    expected = np.exp(-lambertw(0.5 * np.maximum(-2 / np.e + 1e-16, (losses - 1.0) / 0.7)).real)
    np.testing.assert_allclose(SuperLoss(T=1.0, lam=0.7).weigh(losses, ()).weights, expected, rtol=2e-3)
    away = losses > 0.6  # from the branch point, where the square root halves the number of digits
    np.testing.assert_allclose(SuperLoss(T=1.0, lam=0.7).weigh(losses[away], ()).weights, expected[away], rtol=2e-6)


@pytest.mark.parametrize("loss", [0.6, 1.0, 1.7, 6.0])
def test_superloss_is_the_minimum_over_confidences(loss):
    objective = SuperLoss(T=1.0, lam=0.8)
    least = minimize_scalar(
        lambda log_s: (loss - 1.0) * np.exp(log_s) + 0.8 * log_s**2,
        bounds=(-5, 0.999),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert objective(np.array([loss])) == pytest.approx(least.fun, abs=1e-9)
    assert objective.weigh(np.array([loss]), ()).weights[0] == pytest.approx(np.exp(least.x), abs=1e-6)


def test_superloss_running_mean_by_hand():
    """Means 2, then 0.9 of 2 and 0.1 of 7: the level of the second step is 2.5, where the weight is one."""
    objective = SuperLoss(lam=1.0)
    weighed = objective.weigh(np.array([1.0, 2.0, 3.0]), objective.init())
    assert weighed.weights[1] == pytest.approx(1.0)
    weighed = objective.weigh(np.array([2.5, 11.5]), weighed.state)
    assert weighed.state["mean"] == pytest.approx(2.5)
    assert weighed.weights[0] == pytest.approx(1.0)


def test_self_paced_hard_by_hand():
    objective = SelfPaced(growth=2.0, every=2)
    losses = np.array([1.0, 2.0, 4.0, 100.0])
    admitted = []
    state = objective.init()
    for _ in range(6):
        weighed = objective.weigh(losses, state)
        admitted.append(weighed.weights.tolist())
        state = weighed.state
    # The median is 3; it doubles after the 2nd and the 4th step.
    assert admitted[:2] == [[1, 1, 0, 0]] * 2
    assert admitted[2:4] == [[1, 1, 1, 0]] * 2
    assert state["K"] == pytest.approx(24.0)
    assert state["step"] == 6


def test_self_paced_keeps_the_threshold_of_the_first_batch():
    objective = SelfPaced(every=100)
    _, state = objective.apply(np.array([1.0, 3.0, 8.0]), objective.init())
    _, state = objective.apply(np.array([50.0, 60.0]), state)
    assert state["K"] == pytest.approx(3.0)


def test_self_paced_linear_by_hand():
    objective = SelfPaced(soft="linear")
    losses = np.array([0.0, 1.0, 2.0, 3.0, 9.0])
    weighed = objective.weigh(losses, objective.init())
    np.testing.assert_allclose(weighed.weights, [1, 0.5, 0, 0, 0])
    # The integral of 1 - l/2 from 0: 0, 3/4, and 1 from the threshold on.
    assert weighed.value == pytest.approx((0 + 0.75 + 1 + 1 + 1) / 5)


def test_self_paced_value_has_the_weights_as_its_gradient():
    for soft in (None, "linear"):
        objective = SelfPaced(soft=soft)
        _, state = objective.apply(np.array([1.0, 2.0, 3.0]), objective.init())
        losses = np.array([0.3, 1.7, 2.6])
        slope = [
            (objective.apply(losses + e, state)[0] - objective.apply(losses - e, state)[0]) / 2e-6
            for e in 1e-6 * np.eye(3)
        ]
        np.testing.assert_allclose(objective.weigh(losses, state).weights / 3, slope, atol=1e-6)


def test_self_paced_threshold_never_overflows():
    objective = SelfPaced(growth=1e20, every=1)
    state = objective.init()
    for _ in range(5):
        loss, state = objective.apply(LOSSES.astype(np.float32), state)
    assert np.isfinite(state["K"])
    assert loss == pytest.approx(1.6)


def test_rgd_auto_by_hand():
    """Levels: 4 set by the first batch; the second still uses 4 and moves it a twentieth of the way to 24."""
    objective = RGDAuto()
    first = objective.weigh(np.array([0.0, 2.0, 4.0]), objective.init())
    np.testing.assert_allclose(first.weights, np.exp([0, 0.5, 1]))
    second = objective.weigh(np.array([-1.0, 1.0, 24.0]), first.state)
    np.testing.assert_allclose(second.weights, np.exp([0, 0.25, 1]))
    assert second.state["q"] == pytest.approx(5.0)


@given(seed=st.integers(0, 1000), scale=st.floats(1e-3, 1e3), gamma=st.floats(0.1, 2.0))
def test_rgd_auto_does_not_see_the_scale(seed, scale, gamma):
    rng = np.random.default_rng(seed)
    objective = RGDAuto(gamma=gamma)
    one, other = objective.init(), objective.init()
    for _ in range(3):
        losses = rng.exponential(size=9)
        a, b = objective.weigh(losses, one), objective.weigh(losses * scale, other)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-6)
        assert (a.weights >= 1).all()
        assert (a.weights <= np.exp(gamma) * (1 + 1e-12)).all()
        one, other = a.state, b.state


def test_rgd_auto_quantile_leaves_masked_units_out():
    losses, mask = np.array([1.0, 2.0, 3.0, 900.0, 800.0]), np.array([1, 1, 1, 0, 0], bool)
    _, state = RGDAuto(quantile=0.5).apply(losses, RGDAuto().init(), mask=mask)
    assert state["q"] == pytest.approx(2.0)


def test_rgd_auto_normalised_weights_average_to_one():
    objective = RGDAuto(normalize="mean")
    assert objective.weigh(LOSSES, objective.init()).weights.mean() == pytest.approx(1.0)


def test_rgd_auto_survives_losses_of_zero():
    objective = RGDAuto()
    weighed = objective.weigh(np.zeros(3), objective.init())
    np.testing.assert_array_equal(weighed.weights, 1.0)
    assert weighed.state["q"] == pytest.approx(1e-6)


def test_redescending_by_hand():
    weights = Redescending(tau=2.0, power=2.0).weigh(np.array([-1.0, 0.0, 1.0, 2.0, 4.0]), ()).weights
    top = np.exp(2 / 3)
    np.testing.assert_allclose(weights, [1, 1, np.exp(1 / 3), top, top / 4])


def test_redescending_without_power_is_rgd():
    np.testing.assert_allclose(
        Redescending(tau=1.0, power=0.0).weigh(LOSSES, ()).weights, RGD(tau=1.0).weigh(LOSSES, ()).weights
    )


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_redescending_phi_is_the_integral_of_the_weight(tau, power):
    objective = Redescending(tau=tau, power=power)
    for loss in (-0.5, 0.4, tau, 2.5, 9.0):
        area, _ = quad(lambda u: objective.weigh(np.array([u, 1.0]), ()).weights[0], 0, loss, points=[min(tau, loss)])
        assert objective.phi(np.array([loss]))[0] == pytest.approx(area, abs=1e-7)


def test_redescending_phi_beyond_tau_is_a_logarithm():
    phi = Redescending(tau=1.0).phi(np.array([1.0, np.e]))
    assert phi[1] - phi[0] == pytest.approx(np.exp(0.5))


def test_redescending_surrogate_has_the_same_gradient():
    torch = pytest.importorskip("torch")
    grads = []
    for surrogate in (False, True):
        losses = torch.tensor([0.3, 1.0, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
        Redescending(tau=1.0, surrogate=surrogate)(losses).backward()
        grads.append(losses.grad)
    losses = torch.tensor([0.3, 1.0, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    Redescending(tau=1.0).phi(losses).mean().backward()
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(grads[0], losses.grad)
