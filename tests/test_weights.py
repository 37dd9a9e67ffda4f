"""Weight functions: golden values, shapes, limits, and the integrals behind them."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from frameworks import ALL, JAX, NUMPY, TORCH, gradient, numbers
from hypothesis import given
from scipy.integrate import quad

import reweigh
from reweigh import KL, ChiSquare, ReverseKL

LOSSES = [-1, 0, 0.25, 0.5, 1, 2, 5, 10]
GOLDEN = {
    KL(tau=1.0): [1, 1, 1.133148, 1.284025, 1.648721, 1.648721, 1.648721, 1.648721],
    KL(tau=3.0): [1, 1, 1.064494, 1.133148, 1.284025, 1.648721, 2.117000, 2.117000],
    KL(tau=9.0): [1, 1, 1.025315, 1.051271, 1.105171, 1.221403, 1.648721, 2.459603],
    ReverseKL(tau=1.0): [1, 1, 1.142857, 1.333333, 2, 2, 2, 2],
    ReverseKL(tau=3.0): [1, 1, 1.066667, 1.142857, 1.333333, 2, 4, 4],
    ReverseKL(tau=9.0): [1, 1, 1.025641, 1.052632, 1.111111, 1.25, 2, 10],
    ChiSquare(tau=1.0): [1, 1, 1.25, 1.5, 2, 2, 2, 2],
    ChiSquare(tau=3.0): [3, 3, 3.25, 3.5, 4, 5, 6, 6],
    ChiSquare(tau=3.0, scaled=True): [1, 1, 1 + 0.25 / 3, 1 + 0.5 / 3, 4 / 3, 5 / 3, 2, 2],
}
BATCH = [0.2, 0.7, 1.5, 4.0]
GOLDEN_PHI = {
    KL(tau=1.0): [0.210342, 0.838135, 2.121803, 6.243606],
    ReverseKL(tau=1.0): [0.210721, 0.861566, 2.386294, 7.386294],
    ChiSquare(tau=1.0): [0.22, 0.945, 2.5, 7.5],
    KL(tau=3.0): [0.205084, 0.764985, 1.819966, 6.585000],
    ReverseKL(tau=3.0): [0.205173, 0.769488, 1.880015, 9.545177],
    ChiSquare(tau=3.0): [0.62, 2.345, 5.625, 19.5],
}
KINDS = [KL, ReverseKL, ChiSquare, lambda tau: ChiSquare(tau=tau, scaled=True)]
VARIED = [
    KL(tau=1.0),
    KL(tau=2.0, gamma=-0.7),
    KL(tau=2.0, gamma=0.9, offset=0.4),
    KL(tau=2.0, offset=-0.8),
    KL(tau=None, gamma=0.3),
    KL(tau=None, gamma=-1.0, offset=0.2),
    KL(tau=2.0, gamma=0.0),
    ReverseKL(tau=2.5),
    ReverseKL(tau=2.5, offset=0.3),
    ChiSquare(tau=1.5),
    ChiSquare(tau=1.5, scaled=True, offset=-0.5),
]

taus = st.floats(0.05, 50.0)
losses_of_a_batch = st.lists(st.floats(-5.0, 30.0), min_size=1, max_size=12)
kinds = st.sampled_from(KINDS)


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("weight", GOLDEN, ids=repr)
def test_golden_weights(weight, framework):
    for dtype, tolerance in (("float64", 1e-6), ("float32", 1e-6)):
        np.testing.assert_allclose(numbers(weight(framework.array(LOSSES, dtype))), GOLDEN[weight], rtol=tolerance)


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("weight", GOLDEN_PHI, ids=repr)
def test_golden_phi(weight, framework):
    for dtype in ("float64", "float32"):
        phi = weight.phi(framework.array(BATCH, dtype))
        np.testing.assert_allclose(numbers(phi), GOLDEN_PHI[weight], rtol=2e-6)


@pytest.mark.parametrize("weight", VARIED, ids=repr)
def test_phi_is_the_integral_of_the_weight(weight):
    for loss in (-2.0, -0.3, 0.0, 0.4, 1.0, 1.9, 2.4, 2.6, 7.0):
        kinks = [k for k in (weight.offset, weight.offset + (weight.tau or 0.0)) if min(0, loss) < k < max(0, loss)]
        expected, _ = quad(lambda s: float(weight(np.array([s]))[0]), 0.0, loss, points=kinks or None, epsabs=1e-12)
        assert float(weight.phi(np.array([loss]))[0]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@pytest.mark.parametrize("weight", VARIED, ids=repr)
def test_the_gradient_of_phi_is_the_weight(weight, framework):
    losses = np.array([-2.0, -0.3, 0.0, 0.4, 1.0, 1.5, 2.0, 2.5, 7.0])  # kinks included
    found = gradient(lambda x: weight.phi(x).sum(), losses, framework)
    np.testing.assert_allclose(found, weight(losses), rtol=1e-12)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_no_gradient_flows_through_a_weight(framework):
    if framework is TORCH:
        losses = torch.rand(5, requires_grad=True)
        assert not KL(tau=1.0)(losses).requires_grad
    else:
        assert numbers(jax.grad(lambda x: KL(tau=1.0)(x).sum())(JAX.array(BATCH))).tolist() == [0.0] * 4


@given(kinds, taus, losses_of_a_batch)
def test_ranges_order_and_plateaus(kind, tau, losses):
    weight = kind(tau=tau)
    losses = np.sort(np.array(losses))
    weights = weight(losses)
    low, high = {
        KL: (1.0, math.exp(tau / (tau + 1))),
        ReverseKL: (1.0, tau + 1),
        ChiSquare: (1.0, 2.0) if getattr(weight, "scaled", False) else (tau, 2 * tau),
    }[type(weight)]
    assert (weights >= low * (1 - 1e-12)).all()
    assert (weights <= high * (1 + 1e-9)).all()
    assert (np.diff(weights) >= 0).all()  # the losses are sorted, so this is order within a batch too
    assert np.allclose(weights[losses <= 0], low, rtol=1e-12)
    assert np.allclose(weights[losses >= tau], high, rtol=1e-9)


@given(taus, losses_of_a_batch)
def test_kl_never_reaches_e_in_any_dtype(tau, losses):
    for dtype in ("float16", "float32", "float64"):
        assert (KL(tau=tau)(np.array(losses, dtype)) <= np.array(math.e, dtype)).all()


@given(taus, losses_of_a_batch)
def test_reverse_kl_is_above_kl_and_both_follow_their_series(tau, losses):
    losses = np.array(losses)
    kl, reverse = KL(tau=tau)(losses), ReverseKL(tau=tau)(losses)
    assert (reverse >= kl * (1 - 1e-12)).all()
    assert (kl >= 1).all()
    x = np.minimum(np.maximum(losses, 0), tau) / (tau + 1)
    assert (kl >= 1 + x + x**2 / 2 + x**3 / 6 - 1e-12).all()
    assert (reverse >= 1 + x + x**2 + x**3 - 1e-12).all()
    assert (np.abs(reverse - kl) <= x**2 / (1 - x) + 1e-12).all()  # no term of first order is left


@given(st.sampled_from([KL, ReverseKL]), losses_of_a_batch)
def test_both_ends_of_tau_are_plain_training(kind, losses):
    losses = np.array(losses)
    assert np.allclose(kind(tau=1e-9)(losses), 1.0, atol=1e-8)
    assert np.allclose(kind(tau=1e9)(losses), 1.0, atol=1e-7)
    assert np.allclose(KL(tau=5.0, gamma=1e-12)(losses), 1.0, atol=1e-10)
    assert np.allclose(ChiSquare(tau=1e9, scaled=True)(losses), 1.0, atol=1e-7)


@given(st.floats(0.01, 3.0), taus, losses_of_a_batch)
def test_a_negative_gamma_reverses_the_order(gamma, tau, losses):
    losses = np.sort(np.array(losses))
    weights = KL(tau=min(tau, 20.0), gamma=-gamma)(losses)
    assert (weights > 0).all()
    assert (weights <= 1).all()
    assert (np.diff(weights) <= 0).all()


def test_dft_weight_is_the_probability_of_the_label():
    probability = np.array([0.9, 0.5, 0.1])
    np.testing.assert_allclose(KL(tau=None, gamma=-1)(-np.log(probability)), probability, rtol=1e-12)


@given(kinds, taus, losses_of_a_batch, st.floats(-3, 3))
def test_an_offset_shifts_the_losses(kind, tau, losses, offset):
    shifted = type(kind(tau=tau))(tau=tau, offset=offset)
    base = type(kind(tau=tau))(tau=tau)
    np.testing.assert_array_equal(shifted(np.array(losses)), base(np.array(losses) - offset))


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_shape_and_dtype_are_those_of_the_losses(framework, dtype):
    if framework is NUMPY and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    for shape in ((), (3,), (2, 3), (2, 1, 2)):
        losses = framework.array(np.full(shape, 0.5), dtype)
        for weight in VARIED:
            weights = weight(losses)
            assert tuple(weights.shape) == shape
            assert weights.dtype == losses.dtype


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_half_precision_is_computed_in_float32(framework):
    # gamma * loss is 40 and 0.0006 * 2: the product and the sum inside would be lost in half precision.
    losses = framework.array([1000.0, 2.0], "float16")
    expected = np.exp(0.01 * np.array([1000.0, 2.0])).astype(np.float16)
    np.testing.assert_array_equal(numbers(KL(tau=None, gamma=0.01)(losses)), expected.astype(np.float64))


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("weight", [KL(tau=None, gamma=2.0), KL(tau=1e6, gamma=2.0), KL(tau=None, gamma=-2.0)])
def test_an_unclipped_weight_stays_a_number(weight, dtype, framework):
    losses = framework.array([0.0, 5.6, 600.0, 60000.0, -60000.0], dtype)
    weights = numbers(weight(losses))
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    # Below the guard nothing changes: exp(11.2) is too large for float16 alone.
    tolerance = 1e-2 if dtype == "float16" else 1e-5
    top = float(np.finfo(dtype).max)
    np.testing.assert_allclose(weights[1], min(math.exp(weight.gamma * 5.6), top), rtol=tolerance, atol=1e-3)


def test_infinite_and_nan_losses_are_not_hidden():
    weights = KL(tau=1.0)(np.array([np.inf, -np.inf, np.nan]))
    np.testing.assert_allclose(weights[:2], [math.exp(0.5), 1.0])
    assert np.isnan(weights[2])


@pytest.mark.parametrize("weight", [*VARIED, *GOLDEN], ids=repr)
def test_repr_evaluates_back_and_values_are_hashable(weight):
    assert eval(repr(weight), {"KL": KL, "ReverseKL": ReverseKL, "ChiSquare": ChiSquare}) == weight
    assert len({weight, weight}) == 1
    with pytest.raises(FrozenInstanceError):
        weight.tau = 2.0


@pytest.mark.parametrize("kind", [KL, ReverseKL, ChiSquare])
@pytest.mark.parametrize("tau", [0, 0.0, -1.0, math.inf, -math.inf, math.nan])
def test_tau_must_be_positive_and_finite(kind, tau):
    with pytest.raises(ValueError, match=r"`tau` must be a positive number, got .*units of the loss; try 1\.0"):
        kind(tau=tau)


@pytest.mark.parametrize("tau", ["1", True, [1.0], 1j])
def test_tau_must_be_a_number(tau):
    with pytest.raises(TypeError, match="`tau` must be a positive number, got"):
        KL(tau=tau)


def test_other_errors_at_construction():
    with pytest.raises(ValueError, match=r"`gamma` is required when `tau` is None.*KL\(tau=None, gamma=0\.5\)"):
        KL(tau=None)
    with pytest.raises(ValueError, match="`gamma` must be a finite number, got nan"):
        KL(gamma=math.nan)
    with pytest.raises(ValueError, match="`offset` must be a finite number, got inf"):
        ChiSquare(offset=math.inf)
    with pytest.raises(ValueError, match="`scaled` must be one of True, False, got 'yes'"):
        ChiSquare(scaled="yes")
    with pytest.raises(ValueError, match=r"`tau` must be a positive number, got an array of shape \(2,\)"):
        KL(tau=np.ones(2))
    with pytest.raises(TypeError, match="positional argument"):
        KL(1.0)


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("weight", [KL(), ReverseKL(), ChiSquare()], ids=repr)
def test_integers_are_refused(weight, framework):
    with pytest.raises(TypeError, match=r"floating-point numbers, got dtype .*int64.*not labels"):
        weight(framework.array([1, 2], "int64"))


def test_a_list_is_refused_by_name():
    with pytest.raises(TypeError, match=r"got list\. Convert it first"):
        KL()([1.0, 2.0])


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tau_may_be_a_traced_number(kind, framework):
    """One program for many clip levels: vmap over tau."""
    levels, losses = np.array([0.5, 1.0, 3.0]), np.array(LOSSES, dtype=float)
    vmap = torch.vmap if framework is TORCH else jax.vmap
    found = vmap(lambda t: kind(tau=t)(framework.array(losses, "float64")))(framework.array(levels, "float64"))
    expected = np.stack([kind(tau=float(t))(losses) for t in levels])
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12)


def test_public_names():
    assert {reweigh.KL, reweigh.ReverseKL, reweigh.ChiSquare} == {KL, ReverseKL, ChiSquare}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = reweigh.nonsense
