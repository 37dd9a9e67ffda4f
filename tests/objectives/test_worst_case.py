"""Objectives that solve an inner supremum on the batch, against general-purpose solvers and worked cases."""

from __future__ import annotations

import dataclasses
import math
import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

import reweigh.objectives
from reweigh import Context, method
from reweigh._array import repeat
from reweigh.objectives.chi2_dro import Chi2DRO
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.doro import DORO
from reweigh.objectives.kl_dro import KLDRO
from reweigh.objectives.ohem import OHEM

LOSSES = np.array([0.2, 0.7, 1.5, 4.0, 1.1, 0.05, 2.2, 0.9])
UNEVEN = np.array([1.0, 3.0, 0.5, 2.0, 0.0, 1.0, 4.0, 0.25])

sizes = st.integers(2, 30)
seeds = st.integers(0, 10_000)


def probabilities(objective, losses, measure=None):
    """The re-weighted distribution p, from weights with respect to the measure."""
    share = np.full(losses.size, 1 / losses.size) if measure is None else measure / measure.sum()
    return objective.weigh(losses, (), measure=measure).weights * share, share


def solved(losses, share, constraints, penalty=None):
    """The supremum over distributions that live where the measure does, by a convex solver."""
    live = share > 0
    p = cp.Variable(int(live.sum()), nonneg=True)
    value = losses[live] @ p - (penalty(p, share[live]) if penalty else 0)
    problem = cp.Problem(cp.Maximize(value), [cp.sum(p) == 1, *constraints(p, share[live])])
    problem.solve(solver=cp.CLARABEL)
    best = np.zeros(losses.size)
    best[live] = p.value
    return problem.value, best


def half_chi2(p, share):
    return 0.5 * cp.sum(cp.multiply(1 / share, cp.square(p - share)))


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 1.0])
def test_kl_ball_is_the_solvers(rho, measure):
    p, share = probabilities(KLDRO(rho=rho), LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [cp.sum(cp.rel_entr(p, q)) <= rho])
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert p @ LOSSES == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(p, best, atol=2e-4)
    assert KLDRO(rho=rho)(LOSSES, sample_weight=measure) == pytest.approx(p @ LOSSES, abs=1e-12)


@given(seed=seeds, size=sizes, rho=st.floats(1e-3, 3.0), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_kl_primal_meets_dual(seed, size, rho, scale):
    """The primal value with its constraint, and the dual minimised over the temperature, enclose the supremum."""
    losses = np.random.default_rng(seed).exponential(size=size) * scale
    p, share = probabilities(KLDRO(rho=rho), losses)
    live = p > 0
    assert (p[live] * np.log(p[live] / share[live])).sum() <= rho + 1e-9
    assert p.sum() == pytest.approx(1.0, abs=1e-9)

    def dual(log_beta):
        beta = np.exp(log_beta) * scale
        top = losses.max()
        return top + beta * np.log(np.mean(np.exp((losses - top) / beta))) + beta * rho

    least = minimize_scalar(dual, bounds=(-14, 8), method="bounded", options={"xatol": 1e-10})
    # Where all mass is on the maximum the dual is reached at beta = 0, of which the search stops short.
    assert p @ losses == pytest.approx(least.fun, rel=1e-9 if rho < np.log(size) else 1e-4)
    assert losses.mean() - 1e-9 * scale <= p @ losses <= losses.max() + 1e-9 * scale


def test_kl_temperature_by_another_root_finder():
    rho = 0.3

    def gap(scale):
        q = np.exp(scale * (LOSSES - LOSSES.max()))
        q = q / q.sum()
        return (q * np.log(q * LOSSES.size)).sum() - rho

    scale = brentq(gap, 1e-3, 1e2, xtol=1e-14)
    q = np.exp(scale * (LOSSES - LOSSES.max()))
    p, _ = probabilities(KLDRO(rho=rho), LOSSES)
    np.testing.assert_allclose(p, q / q.sum(), rtol=1e-9, atol=1e-9)


def test_kl_constraint_is_tight_on_losses_of_many_scales():
    """Gaps and amounts over many orders of magnitude: the divergence then rises in steps with plateaus between."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        size = rng.integers(2, 40)
        losses = -np.append(0.0, 10 ** rng.uniform(-12, 0, size - 1))
        measure = rng.random(size) * 10.0 ** rng.integers(-6, 1, size)
        rho = 10 ** rng.uniform(-6, 1)
        p, share = probabilities(KLDRO(rho=rho), losses, measure)
        divergence = (p[p > 0] * np.log(p[p > 0] / share[p > 0])).sum()
        assert divergence == pytest.approx(min(rho, -np.log(share[0])), abs=1e-11)


def test_kl_tells_maxima_apart_at_any_spread():
    np.testing.assert_array_equal(KLDRO(rho=2.0).weigh(np.array([0.0, 1.0, -1e40]), ()).weights, [0, 3, 0])


@pytest.mark.parametrize("objective", [KLDRO(rho=np.log(5 / 2)), Chi2DRO(rho=0.75)], ids=["kl", "chi2"])
def test_a_wide_ball_puts_all_mass_on_the_maxima(objective):
    """Two maxima of five: log(5/2) nats, or (5/2 - 1)/2, reach the uniform distribution on them."""
    losses = np.array([3.0, 1.0, 3.0, 0.0, 2.9999])
    np.testing.assert_allclose(objective.weigh(losses, ()).weights, [2.5, 0, 2.5, 0, 0], atol=1e-9)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("objective", [KLDRO(), Chi2DRO(), Chi2DRO(reg=0.1), CVaR(), DORO(), OHEM()], ids=repr)
def test_equal_losses_weigh_one(objective, size):
    np.testing.assert_allclose(objective.weigh(np.full(size, 2.5), ()).weights, 1.0, atol=1e-12)


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("rho", [0.01, 0.1, 0.5, 1.0, 2.0])
def test_chi2_ball_is_the_solvers(rho, measure):
    p, share = probabilities(Chi2DRO(rho=rho), LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [half_chi2(p, q) <= rho])
    assert p @ LOSSES == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(p, best, atol=1e-3)


@given(seed=seeds, size=sizes, rho=st.floats(1e-3, 5.0))
def test_chi2_ball_meets_its_dual(seed, size, rho):
    """The dual is inf over eta of sqrt(1 + 2 rho) times the root mean square of the excess over eta, plus eta."""
    losses = np.random.default_rng(seed).exponential(size=size)
    p, share = probabilities(Chi2DRO(rho=rho), losses)
    assert 0.5 * ((p / share - 1) ** 2 * share).sum() <= rho + 1e-9
    assert p.sum() == pytest.approx(1.0, abs=1e-9)

    def dual(eta):
        return np.sqrt(1 + 2 * rho) * np.sqrt(np.mean(np.maximum(losses - eta, 0) ** 2)) + eta

    least = minimize_scalar(dual, bounds=(-100, losses.max()), method="bounded", options={"xatol": 1e-10})
    assert p @ losses == pytest.approx(least.fun, abs=1e-6)


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("reg", [0.05, 0.5, 2.0, 50.0])
def test_chi2_penalty_is_the_solvers(reg, measure):
    objective = Chi2DRO(reg=reg)
    p, share = probabilities(objective, LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [], lambda p, q: reg * half_chi2(p, q))
    np.testing.assert_allclose(p, best, atol=1e-4)
    assert objective(LOSSES, sample_weight=measure) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("rho", "reg"), [(0.05, 0.1), (0.05, 50.0), (1.0, 0.05), (1.0, 2.0)])
def test_chi2_ball_with_a_price_is_the_solvers(rho, reg, measure):
    objective = Chi2DRO(rho=rho, reg=reg)
    p, share = probabilities(objective, LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [half_chi2(p, q) <= rho], lambda p, q: reg * half_chi2(p, q))
    np.testing.assert_allclose(p, best, atol=1e-3)
    assert objective(LOSSES, sample_weight=measure) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("alpha", [0.05, 0.125, 0.3, 0.5, 0.99, 1.0])
def test_cvar_is_the_solvers(alpha, measure):
    p, share = probabilities(CVaR(alpha=alpha), LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [p <= q / alpha])
    np.testing.assert_allclose(p, best, atol=1e-5)
    assert p @ LOSSES == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("measure", [None, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("alpha", "reg"), [(0.05, 0.3), (0.3, 0.02), (0.3, 0.5), (0.3, 20.0), (0.8, 0.5), (1.0, 0.5)])
def test_cvar_with_a_price_is_the_solvers(alpha, reg, measure):
    objective = CVaR(alpha=alpha, reg=reg)
    p, share = probabilities(objective, LOSSES, measure)
    value, best = solved(LOSSES, share, lambda p, q: [p <= q / alpha], lambda p, q: reg * cp.sum(cp.kl_div(p, q)))
    np.testing.assert_allclose(p, best, atol=1e-4)
    assert objective(LOSSES, sample_weight=measure) == pytest.approx(value, abs=1e-6)


@given(seed=seeds, size=sizes, alpha=st.floats(0.01, 1.0), reg=st.floats(1e-3, 1e3))
def test_cvar_with_a_price_meets_its_dual(seed, size, alpha, reg):
    """The dual of Levy et al.: inf over eta of eta plus reg times the mean of a function with a straight tail."""
    losses = np.random.default_rng(seed).exponential(size=size)
    p, share = probabilities(CVaR(alpha=alpha, reg=reg), losses)
    assert p.sum() == pytest.approx(1.0, abs=1e-9)
    assert (p <= share / alpha * (1 + 1e-9)).all()

    def dual(eta):
        x = (losses - eta) / reg + np.log(alpha)
        return eta + reg * np.mean(np.where(x < 0, np.exp(np.minimum(x, 0)), x + 1) / alpha - 1)

    low, high = losses.min() + reg * np.log(alpha) - 1, losses.max() + 1
    least = minimize_scalar(dual, bounds=(low, high), method="bounded", options={"xatol": 1e-11})
    assert float(CVaR(alpha=alpha, reg=reg)(losses)) == pytest.approx(least.fun, rel=1e-6, abs=1e-6)


def test_cvar_with_a_price_keeps_its_digits_in_float32():
    """Losses thousands of prices apart, where the units at the cap leave half of one for the next."""
    losses = np.array([1.0, 1.002, 5.0, 9.0], np.float32)
    weights = CVaR(alpha=0.625, reg=1e-3).weigh(losses, ()).weights
    odds = np.exp((np.float64(losses[1]) - np.float64(losses[0])) / 1e-3)
    left = 4 - 2 / 0.625
    np.testing.assert_allclose(weights, [left / (1 + odds), left * odds / (1 + odds), 1.6, 1.6], rtol=1e-4)


def test_cvar_gives_the_boundary_unit_what_is_left():
    """A quarter of six units is one and a half: two thirds and one third of the mass."""
    weights = CVaR(alpha=0.25).weigh(np.array([5.0, 1.0, 9.0, 2.0, 3.0, 0.0]), ()).weights
    np.testing.assert_allclose(weights, [2.0, 0, 4.0, 0, 0, 0], atol=1e-12)


def test_units_that_tie_at_the_boundary_share():
    weights = CVaR(alpha=0.5).weigh(np.array([1.0, 3.0, 1.0, 1.0]), ()).weights
    np.testing.assert_allclose(weights, [2 / 3, 2.0, 2 / 3, 2 / 3], atol=1e-12)


def test_doro_drops_then_takes_the_tail():
    """Ten units: one is dropped, then a third of nine is three."""
    losses = np.array([100.0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    weights = DORO(eps=0.1, alpha=1 / 3).weigh(losses, ()).weights
    np.testing.assert_allclose(weights, [0, 0, 0, 0, 0, 0, 0, 10 / 3, 10 / 3, 10 / 3], atol=1e-9)
    assert DORO(eps=0.1, alpha=1 / 3)(losses) == pytest.approx(8.0)


def test_doro_drops_part_of_a_unit():
    """Four units, three eighths dropped: all of 9 and half of 4; the rest is 2.5 units, of which a fifth is 0.5."""
    losses = np.array([9.0, 4.0, 1.0, 2.0])
    weights = DORO(eps=0.375, alpha=0.2).weigh(losses, ()).weights
    np.testing.assert_allclose(weights, [0, 4.0, 0, 0], atol=1e-9)
    assert DORO(eps=0.375, alpha=1.0)(losses) == pytest.approx((0.5 * 4 + 1 + 2) / 2.5)


def test_doro_chi2_is_the_dual_of_what_is_kept():
    """`C sqrt(mean relu(l - eta)^2) + eta` with `C^2 = 1 + (1/alpha - 1)^2`, minimised over eta."""
    alpha, losses = 0.6, np.append(LOSSES[:7], 1e6)
    kept, scale = losses[:7], np.sqrt(1 + (1 / alpha - 1) ** 2)

    def dual(eta):
        return scale * np.sqrt(np.mean(np.maximum(kept - eta, 0) ** 2)) + eta

    least = minimize_scalar(dual, bounds=(-50, 4), method="bounded", options={"xatol": 1e-10})
    assert DORO(eps=1 / 8, alpha=alpha, divergence="chi2")(losses) == pytest.approx(least.fun, abs=1e-8)


def test_doro_without_dropping_is_the_worst_case_itself():
    np.testing.assert_allclose(
        DORO(eps=0.0, alpha=0.3).weigh(LOSSES, ()).weights, CVaR(alpha=0.3).weigh(LOSSES, ()).weights, atol=1e-12
    )
    chi2 = DORO(eps=0.0, alpha=0.5, divergence="chi2").weigh(LOSSES, ()).weights
    np.testing.assert_allclose(chi2, Chi2DRO(rho=0.5).weigh(LOSSES, ()).weights, atol=1e-12)


@pytest.mark.parametrize(("keep", "kept"), [(0.1, 1), (0.125, 1), (0.3, 3), (0.5, 4), (0.75, 6), (1.0, 8)])
def test_ohem_averages_the_hardest(keep, kept):
    assert OHEM(keep=keep)(LOSSES) == pytest.approx(np.sort(LOSSES)[-kept:].mean())


def test_ohem_counts_seven_per_cent_of_a_hundred_as_seven():
    """Though 0.07 · 100 is a rounding error above 7."""
    assert np.count_nonzero(OHEM(keep=0.07).weigh(np.arange(100.0), ()).weights) == 7


def test_ohem_weighs_the_mean_and_not_the_choice():
    """Two of four units are kept whatever their weight; the mean over them is 3:1."""
    losses, weight = np.array([1.0, 8.0, 2.0, 4.0]), np.array([9.0, 3.0, 5.0, 1.0])
    assert OHEM(keep=0.5)(losses, sample_weight=weight) == pytest.approx((3 * 8 + 4) / 4)


@pytest.mark.parametrize("objective", [KLDRO(rho=0.2), Chi2DRO(rho=0.2), Chi2DRO(reg=1.0), CVaR(alpha=0.4)], ids=repr)
def test_gradient_is_that_of_the_supremum(objective):
    """By finite differences of the value, which Danskin's theorem says is the worst-case probability."""
    p, _ = probabilities(objective, LOSSES)
    step = 1e-6
    slope = [
        (objective(LOSSES + step * unit) - objective(LOSSES - step * unit)) / (2 * step) for unit in np.eye(LOSSES.size)
    ]
    np.testing.assert_allclose(p, slope, atol=1e-6)


@pytest.mark.parametrize("objective", [KLDRO(rho=0.2), Chi2DRO(rho=0.2), CVaR(alpha=0.3), DORO(), OHEM()], ids=repr)
def test_shift_and_scale_change_nothing(objective):
    expected = objective.weigh(LOSSES, ()).weights
    np.testing.assert_allclose(objective.weigh(1e3 * LOSSES - 7.0, ()).weights, expected, rtol=1e-9, atol=1e-9)


def test_float32_keeps_its_digits_at_large_offsets():
    """Losses of 1e4 that differ by ones: subtracting the largest first loses nothing."""
    small = np.array([0.0, 1.0, 2.0, 3.0, 6.0], np.float32)
    for objective in (KLDRO(rho=0.2), Chi2DRO(rho=0.2), Chi2DRO(reg=0.5)):
        expected = objective.weigh(small.astype(np.float64), ()).weights
        np.testing.assert_allclose(objective.weigh(small + np.float32(1e4), ()).weights, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", [Chi2DRO(rho=0.4), DORO(eps=0.1, alpha=0.5, divergence="chi2")], ids=repr)
@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e37])
def test_the_chi_square_ball_does_not_know_the_unit_of_the_loss(objective, scale):
    """Squares of such losses are beyond float32."""
    ordinary = objective.weigh(LOSSES.astype(np.float32), ()).weights
    scaled = objective.weigh((LOSSES * scale).astype(np.float32), ()).weights
    np.testing.assert_allclose(scaled, ordinary, rtol=1e-4, atol=1e-5)
    assert np.ptp(ordinary) > 0.5


@pytest.mark.parametrize(
    "objective", [CVaR(alpha=0.3, reg=1e-3), Chi2DRO(reg=0.5), Chi2DRO(rho=0.1, reg=0.5)], ids=repr
)
def test_the_largest_losses_have_a_finite_value(objective):
    """Of losses near the largest float32, in the mean over a weight above one."""
    losses = np.array([0.0, 1e38, 3e38], np.float32)
    weights = objective.weigh(losses, ()).weights
    assert float(objective(losses)) == pytest.approx(float((weights / 3).astype(np.float64) @ losses), rel=1e-5)


@pytest.mark.parametrize(("forget", "kept"), [(0.0, 10), (0.3, 7), (0.31, 6), (0.95, 1)])
def test_small_loss_averages_the_easiest(forget, kept):
    losses = np.random.default_rng(0).permutation(np.arange(10.0) ** 1.5)
    assert float(method(f"small_loss:forget={forget}").objective(losses)) == pytest.approx(
        np.sort(losses)[:kept].mean()
    )


def test_small_loss_forgets_more_and_more():
    """The schedule of co-teaching, by steps: a straight line from nothing to the share, then level."""
    objective = method("small_loss:forget=0.4,gradual=0.5").build(Context(steps=8)).objective
    losses, state, kept = np.arange(1.0, 11.0), objective.init(), []
    for _ in range(6):
        weighed = objective.weigh(losses, state)
        state = weighed.state
        kept.append(int((weighed.weights > 0).sum()))
    assert kept == [10, 9, 8, 7, 6, 6]


def test_the_radius_of_chi2_dro_is_one_unless_given():
    # mean + sqrt(2 rho variance), where no weight would be negative.
    losses = np.array([0.0, 0.0, 0.0, 1.0])
    assert float(Chi2DRO()(losses)) == pytest.approx(0.25 + math.sqrt(2 * 0.1875))


def test_objectives_over_a_batch_look_at_the_batch_of_all_processes_unless_told_otherwise():
    with_sync = [
        made for name in reweigh.objectives.__all__
        if dataclasses.is_dataclass(made := getattr(reweigh.objectives, name))
        and any(field.name == "sync" for field in dataclasses.fields(made))
    ]  # fmt: skip
    assert len(with_sync) >= 5
    for made in with_sync:
        assert next(field.default for field in dataclasses.fields(made) if field.name == "sync") is True, made


@pytest.mark.parametrize("objective", [CVaR(alpha=0.3), OHEM(keep=0.3)], ids=repr)
@pytest.mark.parametrize(
    "measure", [None, [1.0] * 4, [0.0, 1.0, 0.5, 2.0], [0.0] * 4], ids=["none", "ones", "some", "zeros"]
)
@pytest.mark.parametrize(
    "losses", [[np.nan, 1, 2, 3], [np.inf, 1, 2, 3], [-np.inf, np.inf, np.nan, 1], [np.inf] * 4, [3e38, 3e38, -3e38, 1]]
)
def test_bounded_objectives_give_no_warning_whatever_the_losses(objective, measure, losses):
    assert objective.bounded
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amounts = None if measure is None else np.array(measure, np.float32)
        objective.weigh(np.array(losses, np.float32), (), measure=amounts)
    assert not CVaR(alpha=0.3, reg=1.0).bounded


@pytest.mark.parametrize("number", [np.float64, torch.tensor], ids=["numpy", "torch"])
def test_steps_end_when_they_are_done_where_that_can_be_read(number):
    """On a device, or in a traced program, all of them are made, and change nothing."""
    taken = []

    def halve(_, x):
        taken.append(x)
        return x / 2 < 0.1, torch.where(x < 0.1, x, x / 2) if torch.is_tensor(x) else x / 2

    start = number(1.0)
    assert float(repeat(halve, (start < 0, start), 40)[-1]) == 0.0625
    assert len(taken) == 4
    if number is torch.tensor:
        taken.clear()
        assert torch.vmap(lambda x: repeat(halve, (x < 0, x), 40)[-1])(torch.ones(3)).tolist() == [0.0625] * 3
        assert len(taken) == 40
