"""Exponential tilts, of one batch and with running normalisers: golden values and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reweigh.objectives.absgd import ABSGD
from reweigh.objectives.mean import Mean
from reweigh.objectives.scdro import SCDRO
from reweigh.objectives.term import TERM
from reweigh.objectives.term_ema import TERMEma
from reweigh.objectives.term_hierarchical import TERMHierarchical

LOSSES = np.array([0.2, 0.7, 1.5, 4.0])


def slopes(function, x, step=1e-6):
    """The gradient of a function of a vector, by finite differences."""
    return np.array([(function(x + step * e) - function(x - step * e)) / (2 * step) for e in np.eye(x.size)])


def test_mean_is_the_mean():
    assert Mean()(LOSSES) == pytest.approx(1.6)
    assert Mean()(LOSSES, sample_weight=np.array([1.0, 0, 0, 3.0])) == pytest.approx((0.2 + 12) / 4)


@pytest.mark.parametrize(
    ("t", "weights", "value"),
    [
        (0.5, [0.367463, 0.471831, 0.703890, 2.456816], 2.202267),
        (1.0, [0.078402, 0.129263, 0.287680, 3.504656], 2.745908),
    ],
)
def test_term_golden_values(t, weights, value):
    np.testing.assert_allclose(TERM(t=t).weigh(LOSSES, ()).weights, weights, atol=1e-6)
    assert TERM(t=t)(LOSSES) == pytest.approx(value, abs=1e-6)


def test_term_of_logarithms_by_hand():
    """With losses log x: t = 1 gives the arithmetic mean of x, t = -1 the harmonic one."""
    losses = np.log([1.0, 2.0, 4.0, 4.0])
    assert np.exp(TERM(t=1.0)(losses)) == pytest.approx(11 / 4)
    assert np.exp(TERM(t=-1.0)(losses)) == pytest.approx(2.0)
    np.testing.assert_allclose(TERM(t=-1.0).weigh(losses, ()).weights, [2.0, 1.0, 0.5, 0.5])


@pytest.mark.parametrize("t", [-2.0, 0.3, 3.0])
def test_term_weights_are_its_gradient(t):
    weights = TERM(t=t).weigh(LOSSES, ()).weights
    np.testing.assert_allclose(weights / 4, slopes(lambda x: float(TERM(t=t)(x)), LOSSES), atol=1e-6)


@given(t=st.floats(0.01, 20.0), seed=st.integers(0, 1000))
def test_term_lies_between_smallest_mean_and_largest(t, seed):
    losses = np.random.default_rng(seed).exponential(size=7)
    low, high = TERM(t=-t)(losses), TERM(t=t)(losses)
    assert losses.min() - 1e-9 <= low <= losses.mean() + 1e-9
    assert losses.mean() - 1e-9 <= high <= losses.max() + 1e-9
    assert TERM(t=t).weigh(losses, ()).weights.mean() == pytest.approx(1.0)


@pytest.mark.parametrize("t", [1e-7, -1e-7])
def test_a_tiny_tilt_is_the_mean_even_in_float32(t):
    losses = LOSSES.astype(np.float32)
    assert TERM(t=t)(losses) == pytest.approx(1.6, rel=1e-6)
    np.testing.assert_allclose(TERM(t=t).weigh(losses, ()).weights, 1.0, atol=1e-6)


@pytest.mark.parametrize("t", [5.0, -5.0])
def test_term_keeps_float32_digits_at_large_losses(t):
    """Weights depend on differences alone, so losses of a thousand must not cost digits."""
    shifted = (LOSSES + 1024.0).astype(np.float32)
    exact = TERM(t=t).weigh(shifted.astype(np.float64), ()).weights
    np.testing.assert_allclose(TERM(t=t).weigh(shifted, ()).weights, exact, rtol=1e-5)


def test_term_ema_averages_exponentials():
    """exp(R) goes 2, then half of 2 and half of 4; then a quarter of the way would differ, so the rate shows."""
    objective = TERMEma(t=1.0, rate=0.25)
    _, state = objective.apply(np.log([1.0, 3.0]), objective.init())
    loss, state = objective.apply(np.log([2.0, 6.0]), state)
    assert np.exp(loss) == pytest.approx(0.75 * 2 + 0.25 * 4)
    weights = objective.weigh(np.log([5.0, 5.0]), state).weights
    np.testing.assert_allclose(weights, 5 / (0.75 * 2.5 + 0.25 * 5))


def test_term_ema_first_batch_and_full_rate_are_term():
    first = TERMEma(t=0.5, rate=0.1)
    loss, _ = first.apply(LOSSES, first.init())
    assert loss == pytest.approx(2.202267, abs=1e-6)
    full = TERMEma(t=0.5, rate=1.0)
    _, state = full.apply(LOSSES + 3, full.init())
    loss, _ = full.apply(LOSSES, state)
    assert loss == pytest.approx(2.202267, abs=1e-6)


def test_hierarchical_term_by_hand():
    """Group means of x: 2 of (1, 3), 6 of (4, 8), 8; across with t = -1, shares 2/5, 2/5, 1/5."""
    objective = TERMHierarchical(n_groups=4, t_in=1.0, t_out=-1.0)
    losses, groups = np.log([1.0, 3.0, 4.0, 8.0, 8.0]), np.array([0, 0, 1, 1, 3])
    harmonic = 1 / (2 / 5 / 2 + 2 / 5 / 6 + 1 / 5 / 8)
    assert np.exp(objective(losses, groups=groups)) == pytest.approx(harmonic)
    weights = objective.weigh(losses, (), groups=groups).weights
    by_hand = harmonic * np.array([1 / 2 / 2, 3 / 2 / 2, 4 / 6 / 6, 8 / 6 / 6, 1 / 8])
    np.testing.assert_allclose(weights, by_hand)


def test_hierarchical_term_weights_are_its_gradient():
    objective, groups = TERMHierarchical(n_groups=2, t_in=-1.5, t_out=2.0), np.array([0, 1, 0, 1])
    weights = objective.weigh(LOSSES, (), groups=groups).weights
    np.testing.assert_allclose(weights / 4, slopes(lambda x: float(objective(x, groups=groups)), LOSSES), atol=1e-6)


def test_equal_tilts_forget_the_groups():
    objective, groups = TERMHierarchical(n_groups=2, t_in=0.5, t_out=0.5), np.array([0, 1, 0, 1])
    assert objective(LOSSES, groups=groups) == pytest.approx(2.202267, abs=1e-6)


def test_absgd_by_hand():
    """u: 2 at first, then 3/4 of 2 and 1/4 of 6; weights are the exponentials over it."""
    objective = ABSGD(lam=2.0, rate=0.25)
    loss, state = objective.apply(2 * np.log([1.0, 3.0]), objective.init())
    assert loss == pytest.approx(0.5 * (1.5 * 2 * np.log(3)))
    weighed = objective.weigh(2 * np.log([4.0, 8.0]), state)
    np.testing.assert_allclose(weighed.weights, [4 / 3, 8 / 3], rtol=1e-6)
    assert np.exp(weighed.state["log_u"]) == pytest.approx(3.0)
    assert weighed.value is None


def test_absgd_negative_temperature_favours_easy_units():
    weights = ABSGD(lam=-1.0).weigh(LOSSES, ABSGD().init()).weights
    assert (np.diff(weights) < 0).all()


def test_scdro_by_hand():
    """Two steps with lam from 1 to 0.9 to less, each line of the update computed with plain numbers."""
    objective = SCDRO(rho=0.4, lam=1.0, lam_min=0.1, lam_lr=0.5, rate=0.25)
    first = objective.weigh(np.log([1.0, 3.0]), objective.init())  # s = 2, weights 1/2 and 3/2
    np.testing.assert_allclose(first.weights, [0.5, 1.5])
    assert first.value == pytest.approx(np.log(2) + 0.9 * 0.4)
    u = np.log(2) + 0.4 - (0 + 1.5 * np.log(3)) / 2
    lam = 1.0 - 0.5 * u
    assert first.state["u"] == pytest.approx(u)
    assert first.state["lam"] == pytest.approx(lam)

    losses = np.array([0.5, 2.0])
    second = objective.weigh(losses, first.state)
    s = 0.75 * 2 + 0.25 * np.mean(np.exp(losses / lam))
    weights = np.exp(losses / lam) / s
    u = 0.75 * u + 0.25 * (np.log(s) + 0.4 - np.mean(np.exp(losses / lam) * losses) / (lam * s))
    np.testing.assert_allclose(second.weights, weights, rtol=1e-6)
    assert second.state["u"] == pytest.approx(u, abs=1e-6)
    assert second.state["lam"] == pytest.approx(lam - 0.5 * u, abs=1e-6)


def test_scdro_slope_is_that_of_its_value_in_the_temperature():
    """On one batch `u` is the derivative of `lam log mean exp(l/lam) + (lam - lam_min) rho`."""

    def value(lam):
        return lam * np.log(np.mean(np.exp(LOSSES / lam))) + (lam - 1e-3) * 0.3

    weighed = SCDRO(rho=0.3, lam=2.0).weigh(LOSSES, SCDRO().init())
    assert weighed.value == pytest.approx(value(2.0))
    assert weighed.state["u"] == pytest.approx((value(2 + 1e-6) - value(2 - 1e-6)) / 2e-6, abs=1e-6)


def test_scdro_on_one_batch_finds_the_temperature_of_the_ball():
    """Descending the temperature on a fixed batch leads to the worst case of the KL ball."""
    from reweigh.objectives.kl_dro import KLDRO

    objective = SCDRO(rho=0.2, lam=3.0, lam_lr=0.5, rate=1.0)
    state = objective.init()
    for _ in range(400):
        weighed = objective.weigh(LOSSES, state)
        state = weighed.state
    np.testing.assert_allclose(weighed.weights, KLDRO(rho=0.2).weigh(LOSSES, ()).weights, atol=1e-5)


def test_scdro_temperature_stops_at_its_bound():
    objective = SCDRO(rho=5.0, lam=0.5, lam_min=0.4, lam_lr=1.0)
    _, state = objective.apply(LOSSES, objective.init())
    assert state["lam"] == pytest.approx(0.4)


@pytest.mark.parametrize("objective", [TERMEma(), ABSGD(), SCDRO()], ids=repr)
def test_a_batch_without_units_leaves_the_state(objective):
    _, state = objective.apply(LOSSES, objective.init())
    loss, after = objective.apply(LOSSES, state, mask=np.zeros(4, bool))
    assert np.isfinite(loss)
    assert all((after[name] == state[name]).all() for name in state)
    _, still_first = objective.apply(LOSSES, objective.init(), mask=np.zeros(4, bool))
    assert still_first["step"] == 0
