"""Samplers: the trees against brute force, the estimators against the whole data set, ranks and resuming."""

from __future__ import annotations

import itertools
import math
import socket

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from children import answers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import reweigh
from reweigh import KL, rgd
from reweigh.method import names
from reweigh.torch.samplers import ClassUniform, GroupBalanced, Hardness, Importance, PrimalDual, SumTree, Uniform
from reweigh.torch.samplers._chi_square_ball import ChiSquareBall
from reweigh.torch.samplers._sum_tree import descend

ADAPTIVE = [
    Importance(tau=1.0),
    Hardness(beta=2.0),
    PrimalDual(step=0.5),
    PrimalDual(divergence="kl", step=0.05),
]
ALL = [Uniform(), ClassUniform(), GroupBalanced(), *ADAPTIVE]
WEIGHT = [float(i % 4) for i in range(37)]


def name(config):
    return type(config).__name__ + ("-kl" if getattr(config, "divergence", "") == "kl" else "")


def started(config, n=37, batch_size=5, **options):
    return config.start(n, batch_size=batch_size, targets=torch.arange(n) % 3, groups=torch.arange(n) % 4, **options)


def losses_of(indices, step=0):
    """Losses that differ between examples and steps, without randomness."""
    return 1.0 + torch.sin(indices.double() * 1.7 + 0.3 * step)


# --- the sum tree ---


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=150).filter(any),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
)
def test_a_draw_is_a_search_in_the_cumulative_sum(values, numbers):
    tree = SumTree(torch.tensor(values, dtype=torch.float64))
    total = sum(values)
    half = np.array([number % total + 0.5 for number in numbers])  # between the steps of the cumulative sum
    drawn = tree.draw(torch.tensor(half / total))
    np.testing.assert_array_equal(drawn.numpy(), np.searchsorted(np.cumsum(values), half, side="right"))


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=120).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_entries_without_mass_are_never_drawn(values, numbers):
    values = torch.tensor(values, dtype=torch.float64)
    edges = (values.cumsum(0) / values.sum()).clamp_max(1 - 2**-53)  # where rounding is most likely to lead astray
    drawn = SumTree(values).draw(torch.cat([torch.tensor(numbers, dtype=torch.float64), edges]))
    assert bool((values[drawn] > 0).all())


def test_a_share_that_rounds_to_one_stays_on_the_last_child_with_mass():
    child, share = descend(torch.tensor([[1.0, 2.0, 0.0]]).double(), torch.tensor([1.0]).double())
    assert child.tolist() == [1]
    assert 0.999 < float(share) <= 1.0


@given(
    st.integers(1, 150),
    st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e3)), max_size=12), max_size=6),
)
def test_updates_leave_the_tree_as_if_freshly_built(n, rounds):
    tree, dense = SumTree(torch.ones(n)), np.ones(n)
    for changes in rounds:
        for i, value in changes:  # one after the other: the last value of an index counts
            dense[i % n] = value
        indices = torch.tensor([i % n for i, _ in changes], dtype=torch.int64)
        tree.update(indices, torch.tensor([value for _, value in changes], dtype=torch.float64))
    np.testing.assert_array_equal(tree.values.numpy(), dense)
    assert float(tree.total) == pytest.approx(math.fsum(dense), rel=1e-12, abs=1e-300)
    fresh = SumTree(torch.tensor(dense))
    for mine, other in zip(tree._levels, fresh._levels, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("n", [1000, 2**17, 2**17 + 1, 2**19 + 1])  # one row, two levels, many
def test_sum_tree_of_any_depth_draws_as_a_search_in_running_sums(n):
    rng = np.random.default_rng(n)
    dense = rng.integers(0, 5, n).astype(np.float64)  # whole numbers: their sums are exact in any order
    tree = SumTree(torch.tensor(dense))
    for _ in range(3):
        u = rng.random(500)
        expected = np.searchsorted(dense.cumsum(), u * dense.sum(), side="right")
        drawn = tree.draw(torch.tensor(u))
        np.testing.assert_array_equal(drawn.numpy(), expected)
        fresh = rng.integers(0, 1000, 500).astype(np.float64)
        tree.update(drawn, torch.tensor(fresh))
        for index, value in zip(expected, fresh, strict=True):
            dense[index] = value


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 1025])
def test_every_entry_of_any_size_is_reached(n):
    drawn = SumTree(torch.ones(n)).draw((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    assert torch.equal(drawn, torch.arange(n))


def test_tens_of_thousands_of_updates_do_not_drift():
    generator = torch.Generator().manual_seed(0)
    tree = SumTree(torch.full((500,), 1e-8))
    for _ in range(300):
        indices = torch.randint(500, (200,), generator=generator)
        tree.update(indices, 1e8 * torch.rand(200, generator=generator, dtype=torch.float64))
    tree.update(torch.arange(500), torch.full((500,), 1e-8))
    assert float(tree.total) == pytest.approx(500e-8, rel=1e-12)


def test_the_last_of_repeated_indices_counts():
    tree = SumTree(torch.zeros(40))
    tree.update(torch.tensor([35, 2, 35, 2, 35]), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert tree.values[[35, 2]].tolist() == [5.0, 4.0]
    assert float(tree.total) == 9.0


@pytest.mark.parametrize("logarithms", [False, True])
def test_draws_follow_the_shares(logarithms):
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0] * 20 + [0.5], dtype=torch.float64)
    tree = SumTree(weights.log() if logarithms else weights, logarithms=logarithms)
    u = torch.rand(100_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    counts = torch.bincount(tree.draw(u), minlength=81).numpy()
    expected = weights.numpy() / weights.sum().item() * 100_000
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3
    np.testing.assert_allclose(tree.shares().numpy(), expected / 100_000, rtol=1e-12)


def test_logarithms_of_any_size():
    values = torch.tensor([-3000.0] * 40 + [1000.0, 1001.0])
    tree = SumTree(values, logarithms=True)
    np.testing.assert_allclose(tree.shares(torch.tensor([40, 41])), [0.26894142, 0.73105858], rtol=1e-7)
    tree.update(torch.tensor([40, 41]), torch.tensor([-3000.0, -3000.0]))  # now all are tiny, and all alike
    np.testing.assert_allclose(tree.shares(), np.full(42, 1 / 42), rtol=1e-12)
    assert torch.equal(tree.draw((torch.arange(42, dtype=torch.float64) + 0.5) / 42), torch.arange(42))


def test_rebuild_replaces_all_values():
    tree = SumTree(torch.ones(70))
    tree.rebuild(torch.arange(70.0))
    assert float(tree.total) == 69 * 70 / 2


def test_what_a_tree_refuses():
    with pytest.raises(ValueError, match="at least one entry"):
        SumTree(torch.zeros(0))
    with pytest.raises(ValueError, match="not negative"):
        SumTree(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="at least one value must be positive"):
        SumTree(torch.zeros(3)).draw(torch.rand(2))
    tree = SumTree(torch.ones(3))
    with pytest.raises(ValueError, match="finite"):
        tree.update(torch.tensor([0]), torch.tensor([float("nan")]))
    with pytest.raises(IndexError, match=r"\[0, 3\)"):
        tree.update(torch.tensor([3]), torch.tensor([1.0]))
    with pytest.raises(IndexError, match="got -1"):
        tree.update(torch.tensor([-1]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="one length"):
        tree.update(torch.tensor([0, 1]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        tree.rebuild(torch.ones(4))


# --- importance sampling ---


def regression(n=40, seed=0):
    """Per-example losses and gradients of a small linear regression with heavy tails."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + torch.randn(n, generator=generator).double() ** 3
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    return x, y, theta


def gradients(x, y, theta):
    residual = (x @ theta - y).detach()
    return residual[:, None] * x, 0.5 * residual**2


def full_gradient(x, y, theta, tau):
    (grad,) = torch.autograd.grad(rgd(0.5 * (x @ theta - y) ** 2, tau=tau), theta)
    return grad


def factor_of_every_example(sampler, losses):
    """Corrections of all examples, from a batch so large that it holds each of them."""
    batch = torch.tensor(next(iter(sampler)))
    factors = sampler.sample_weight(batch, losses[batch])
    table = torch.full((losses.shape[0],), float("nan"), dtype=torch.float64)
    table[batch] = factors
    assert not table.isnan().any()
    return table


@pytest.mark.parametrize("tau", [1.0, 3.0])
@pytest.mark.parametrize("stale", [False, True])
def test_the_corrected_estimator_is_exactly_unbiased(tau, stale):
    x, y, theta = regression()
    sampler = Importance(tau=tau).start(40, batch_size=3000, seed=1)
    g, losses = gradients(x, y, theta)
    seen = losses.flip(0)[:25] if stale else losses  # stale: wrong values for some, none at all for the others
    sampler.update(torch.arange(seen.shape[0]), seen)
    p = sampler.probabilities()
    expectation = (p * factor_of_every_example(sampler, losses)) @ g
    torch.testing.assert_close(expectation, full_gradient(x, y, theta, tau), rtol=1e-12, atol=1e-12)


def test_the_estimator_averages_to_the_gradient_of_rgd():
    x, y, theta = regression()
    g, losses = gradients(x, y, theta)
    sampler = Importance(tau=1.0).start(40, batch_size=10, seed=5)
    estimates = []
    for epoch in range(500):
        for batch in sampler:
            indices = torch.tensor(batch)
            factors = sampler.sample_weight(indices, losses[indices])
            estimates.append((factors[:, None] * g[indices]).mean(0))
            # What is stored moves about all the time, and never matches the losses.
            sampler.update(indices, losses_of(indices, epoch))
    estimates = torch.stack(estimates)
    error = estimates.mean(0) - full_gradient(x, y, theta, 1.0)
    assert bool((error.abs() < 4 * estimates.std(0) / math.sqrt(len(estimates))).all())


def test_second_moments():
    x, y, theta = regression()
    g, losses = gradients(x, y, theta)
    sampler = Importance(tau=3.0).start(40, batch_size=3000, seed=1)
    sampler.update(torch.arange(40), losses)
    squares = (g**2).sum(1)
    importance = (sampler.probabilities() * factor_of_every_example(sampler, losses) ** 2 * squares).sum()
    w = KL(tau=3.0)(losses)
    assert float(importance) == pytest.approx(float(w.mean() * (w * squares).mean()), rel=1e-12)
    assert float(importance) < float((w**2 * squares).mean())  # uniform drawing: gradients here grow with losses


def test_second_moments_agree_when_all_are_saturated():
    squares = torch.arange(1.0, 41.0, dtype=torch.float64)
    losses = torch.full((40,), 7.0, dtype=torch.float64)
    sampler = Importance(tau=3.0).start(40, batch_size=3000, seed=1)
    sampler.update(torch.arange(40), losses)
    importance = (sampler.probabilities() * factor_of_every_example(sampler, losses) ** 2 * squares).sum()
    assert float(importance) == pytest.approx(math.exp(0.75) ** 2 * 20.5, rel=1e-12)


def test_the_plain_form_is_rgd_divided_by_the_mean_weight():
    x, y, theta = regression()
    g, losses = gradients(x, y, theta)
    sampler = Importance(tau=1.0, correction=False).start(40, batch_size=4)
    sampler.update(torch.arange(40), losses)
    assert sampler.sample_weight(torch.tensor([0]), losses[:1]) is None
    mean_weight = float(torch.exp(losses.clamp(0, 1) / 2).mean())
    torch.testing.assert_close(sampler.probabilities() @ g, full_gradient(x, y, theta, 1.0) / mean_weight)


def test_unvisited_examples_have_the_largest_weight():
    sampler = Importance(tau=1.0).start(4, batch_size=2)
    sampler.update(torch.tensor([0, 1]), torch.tensor([0.0, 100.0]))
    weights = [1.0, math.exp(0.5), math.exp(0.5), math.exp(0.5)]
    np.testing.assert_allclose(sampler.probabilities(), np.array(weights) / sum(weights), rtol=1e-7)


def test_a_negative_gamma_starts_at_weight_one():
    sampler = Importance(tau=2.0, gamma=-1.0).start(2, batch_size=2)
    sampler.update(torch.tensor([0]), torch.tensor([2.0]))
    np.testing.assert_allclose(sampler.probabilities(), np.array([math.exp(-2), 1]) / (1 + math.exp(-2)), rtol=1e-6)


def test_the_unclipped_weight():
    sampler = Importance(tau=None, gamma=0.5, initial=2.0).start(3, batch_size=2)
    sampler.update(torch.tensor([0, 1]), torch.tensor([0.0, 4.0]))
    weights = np.exp([0.0, 2.0, 1.0])
    np.testing.assert_allclose(sampler.probabilities(), weights / weights.sum(), rtol=1e-7)
    sampler.update(torch.tensor([0, 1, 2]), torch.tensor([1e6, 1e6, -1e6]))  # neither overflow nor zero
    np.testing.assert_allclose(sampler.probabilities(), [0.5, 0.5, 0.0], atol=1e-12)
    with pytest.raises(ValueError, match="`initial` is required"):
        Importance(tau=None, gamma=0.5)


def test_corrections_use_the_probability_at_the_draw():
    """Two batches are drawn ahead; the update of the first must not change the correction of the second."""
    sampler = Importance(tau=1.0).start(6, batch_size=2, seed=0)
    drawn = iter(sampler)
    first, second = torch.tensor(next(drawn)), torch.tensor(next(drawn))
    sampler.update(first, torch.zeros(2))
    assert float(sampler.probabilities().max()) > 1.1 / 6
    # All probabilities were 1/n at the draw, so that w / (n p) is w: that of losses 0 and 1.
    factors = sampler.sample_weight(second, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(factors, torch.tensor([1.0, math.exp(0.5)]))


def test_half_precision_and_micro_batches():
    sampler = Importance(tau=1.0).start(20, batch_size=8, seed=0)
    batch = torch.tensor(next(iter(sampler)))
    losses = torch.linspace(0, 2, 8)
    whole = sampler.sample_weight(batch, losses)
    halves = [sampler.sample_weight(batch[part], losses[part]) for part in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(torch.cat(halves), whole)
    rough = sampler.sample_weight(batch, losses.bfloat16())
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, whole, rtol=1e-2, atol=0)
    sampler.update(batch[:4], losses[:4])
    torch.testing.assert_close(sampler.sample_weight(batch[4:], losses[4:]), whole[4:])  # still outstanding
    sampler.update(batch[4:], losses[4:])
    with pytest.raises(ValueError, match="before update"):
        sampler.sample_weight(batch, losses)


def test_no_gradient_passes_and_no_graph_is_kept():
    sampler = Importance(tau=1.0).start(20, batch_size=8, seed=0)
    batch = torch.tensor(next(iter(sampler)))
    losses = torch.linspace(0, 2, 8, requires_grad=True)
    assert not sampler.sample_weight(batch, losses * 2).requires_grad
    sampler.update(batch, losses * 2)
    assert not sampler.probabilities().requires_grad


# --- hardness ---


def test_hardness_draws_from_the_softmax():
    losses = np.array([0.0, 0.01, 0.03, 0.05, 0.02])
    sampler = Hardness(beta=100.0).start(5, batch_size=500, seed=2)
    sampler.update(torch.arange(5), torch.tensor(losses))
    expected = scipy.special.softmax(100 * losses)
    np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-12)
    drawn = torch.cat([sampler._draw().indices for _ in range(40)])
    counts = torch.bincount(drawn, minlength=5).numpy()
    assert scipy.stats.chisquare(counts, expected * counts.sum()).pvalue > 1e-3


def test_hardness_corrects_for_stale_losses_within_bounds():
    sampler = Hardness(beta=10.0, correction=True, initial=1.0).start(4, batch_size=400, seed=0)
    batch = torch.tensor(next(iter(sampler)))
    now = torch.tensor([1.0, 1.1, 0.0, 50.0])
    factors = sampler.sample_weight(batch, now[batch])
    expected = torch.tensor([1.0, math.e, 0.1, 10.0])[batch]
    torch.testing.assert_close(factors, expected, rtol=1e-5, atol=0)
    assert Hardness().start(4, batch_size=2).sample_weight(torch.tensor([0]), torch.ones(1)) is None


def test_hardness_follows_losses_that_fall_far():
    """Where exponentials of all losses have become zero, their ratios are still right."""
    sampler = Hardness(beta=1000.0, initial=50.0).start(3, batch_size=2)
    sampler.update(torch.tensor([0, 1, 2]), torch.tensor([0.001, 0.002, 0.0], dtype=torch.float64))
    np.testing.assert_allclose(sampler.probabilities(), scipy.special.softmax([1.0, 2.0, 0.0]), rtol=1e-9)


# --- primal-dual ---


def dense_projection(y, rho, floor):
    import cvxpy as cp  # here, so that worker processes need not load it

    q = cp.Variable(len(y))
    constraints = [cp.sum(q) == len(y), q >= floor, cp.norm(q - 1) <= math.sqrt(2 * rho)]
    cp.Problem(cp.Minimize(cp.norm(q - y)), constraints).solve(solver=cp.CLARABEL)
    return q.value


def assert_in_ball(q, rho, floor):
    n = len(q)
    assert q.sum() == pytest.approx(n, rel=1e-10)
    assert q.min() >= floor - 1e-12
    assert 0.5 * ((q - 1) ** 2).sum() <= rho * (1 + 1e-9)


@pytest.mark.parametrize("floor", [0.01, 0.1, 0.7])
@pytest.mark.parametrize("radius", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("size", [0.05, 3.0])
def test_the_tree_projects_like_a_convex_solver(floor, radius, size):
    rng = np.random.default_rng(int(100 * floor + 1000 * radius))
    n = 45  # two levels
    rho = radius * n
    ball = ChiSquareBall(n, rho=rho, floor=floor)
    for _ in range(8):
        indices, amounts = rng.integers(0, n, 6), size * rng.exponential(size=6)
        y = ball.weights().numpy().copy()
        np.add.at(y, indices, amounts)
        ball.nudge(torch.tensor(indices), torch.tensor(amounts))
        q = ball.weights().numpy()
        assert_in_ball(q, rho, floor)
        expected = dense_projection(y, rho, floor)
        np.testing.assert_allclose(q, expected, atol=3e-4)
        assert np.linalg.norm(q - y) <= np.linalg.norm(expected - y) + 1e-6  # no further away than the solver's


def slow_projection(y, rho, floor):
    """The projection by nested root finding on its optimality conditions, over all examples."""

    def with_slope(alpha):
        def map_with(t):
            return np.maximum(floor, alpha * (y - t) + floor)

        low, high = y.min() - len(y) / alpha, y.max()
        return map_with(scipy.optimize.brentq(lambda t: map_with(t).sum() - len(y), low, high, xtol=1e-13))

    def excess(alpha):
        return 0.5 * ((with_slope(alpha) - 1) ** 2).sum() - rho

    return with_slope(1.0 if excess(1.0) <= 0 else scipy.optimize.brentq(excess, 1e-6, 1.0, xtol=1e-14))


@given(st.integers(1, 80), st.floats(0.01, 5.0), st.floats(0.01, 0.9), st.floats(0.01, 10.0), st.integers(0, 10**6))
def test_the_tree_projects_like_bisection(n, radius, floor, size, seed):
    rng = np.random.default_rng(seed)
    rho = radius * n
    ball, q = ChiSquareBall(n, rho=rho, floor=floor), np.ones(n)
    for _ in range(3):
        indices, amounts = rng.integers(0, n, 4), size * rng.exponential(size=4)
        np.add.at(q, indices, amounts)
        q = slow_projection(q, rho, floor)  # follows its own path: differences would add up
        ball.nudge(torch.tensor(indices), torch.tensor(amounts))
        np.testing.assert_allclose(ball.weights().numpy(), q, atol=1e-7 * max(1.0, size))


def test_the_ball_holds_over_thousands_of_steps_and_rewrites():
    rng = np.random.default_rng(0)
    n, rho, floor = 1500, 900.0, 0.1  # three levels
    ball = ChiSquareBall(n, rho=rho, floor=floor)
    hard = torch.tensor(rng.exponential(size=n))
    rewrites, rewrite = [], ball._rewrite
    ball._rewrite = lambda: (rewrites.append(1), rewrite())
    for _ in range(1500):
        indices = ball.draw(torch.tensor(rng.random(64)))
        ball.nudge(indices, 0.5 * hard[indices] / ball.weights(indices))
    q = ball.weights().numpy()
    assert rewrites
    assert_in_ball(q, rho, floor)
    assert np.corrcoef(q, hard.numpy())[0, 1] > 0.5
    rows = ball._above()
    above = q[np.isfinite(ball._keys.view(-1)[:n].numpy())] - 1
    np.testing.assert_allclose(rows, [len(above), above.sum(), (above**2).sum()], rtol=1e-8, atol=1e-8)


def test_draws_from_the_ball_follow_its_weights():
    rng = np.random.default_rng(1)
    ball = ChiSquareBall(70, rho=60.0, floor=0.1)
    for _ in range(40):
        indices = torch.tensor(rng.integers(0, 70, 8) ** 2 // 70)
        ball.nudge(indices, torch.ones(8, dtype=torch.float64))
    q = ball.weights().numpy()
    assert q.min() == pytest.approx(0.1)
    assert q.max() > 2
    counts = torch.bincount(ball.draw(torch.tensor(rng.random(100_000))), minlength=70).numpy()
    assert scipy.stats.chisquare(counts, q / 70 * 100_000).pvalue > 1e-3


def test_one_coordinate_step_by_hand():
    """One of four examples gains 0.4 and all give 0.1: neither floor nor radius is met."""
    sampler = PrimalDual(rho=4.0, step=0.2).start(4, batch_size=1, seed=0)
    (drawn,) = next(iter(sampler))
    sampler.update(torch.tensor([drawn]), torch.tensor([2.0]))
    expected = np.full(4, 0.9 / 4)
    expected[drawn] = 1.3 / 4
    np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-6)


def play(config, losses, epochs, batch_size=4):
    sampler = config.start(len(losses), batch_size=batch_size, seed=0)
    average = torch.zeros(len(losses), dtype=torch.float64)
    for epoch in range(epochs):
        for batch in sampler:
            indices = torch.tensor(batch)
            sampler.update(indices, losses[indices])
            if epoch >= epochs // 2:
                average += sampler.probabilities()
    return average / average.sum()


def test_the_second_player_finds_the_worst_case_of_the_ball():
    import cvxpy as cp

    losses = torch.tensor([0.1, 0.5, 0.9, 1.3, 0.2, 0.4, 0.6, 2.0], dtype=torch.float64)
    p = cp.Variable(8)
    ball = [cp.sum(p) == 1, p >= 0.1 / 8, cp.norm(8 * p - 1) <= 2.0]
    best = cp.Problem(cp.Maximize(losses.numpy() @ p), ball).solve(solver=cp.CLARABEL)
    average = play(PrimalDual(rho=2.0, step=0.02), losses, 400)
    assert float(average @ losses) == pytest.approx(best, rel=0.02)
    assert best > 1.3 * float(losses.mean())


def test_the_penalised_player_finds_the_tilted_distribution():
    losses = torch.tensor([0.1, 0.5, 0.9, 1.3, 0.2, 0.4, 0.6, 2.0], dtype=torch.float64)
    average = play(PrimalDual(divergence="kl", penalty=0.7, step=0.01), losses, 1000)
    expected = 0.9 * scipy.special.softmax(losses.numpy() / 0.7) + 0.1 / 8
    assert 0.5 * np.abs(average.numpy() - expected).sum() < 0.03  # the uniform distribution is 0.37 away


def test_estimates_divide_by_the_probability_of_the_draw():
    """With two batches drawn ahead, the second's update uses the probabilities before the first's."""
    sampler = PrimalDual(rho=1000.0, step=1.0, floor=0.01).start(2, batch_size=1, seed=0)
    drawn = iter(sampler)
    (a,), (b,) = next(drawn), next(drawn)
    sampler.update(torch.tensor([a]), torch.tensor([1.0]))
    middle = 2 * sampler.probabilities()
    sampler.update(torch.tensor([b]), torch.tensor([0.2]))
    step = 0.1 if b == a else -0.1  # 0.2 / 1.0, half of which the projection gives to the other
    assert float(2 * sampler.probabilities()[a] - middle[a]) == pytest.approx(step)


def test_negative_losses_earn_nothing():
    sampler = PrimalDual().start(10, batch_size=4, seed=0)
    sampler.update(torch.tensor(next(iter(sampler))), torch.full((4,), -3.0))
    np.testing.assert_allclose(sampler.probabilities(), np.full(10, 0.1))


def test_a_primal_dual_update_must_belong_to_a_draw():
    sampler = PrimalDual().start(10, batch_size=4)
    with pytest.raises(ValueError, match="once for each batch"):
        sampler.update(torch.tensor([0]), torch.ones(1))


def test_hyper_parameters_of_the_other_form_are_refused():
    with pytest.raises(ValueError, match="belongs to divergence='chi2'"):
        PrimalDual(divergence="kl", rho=1.0)
    with pytest.raises(ValueError, match="belongs to divergence='kl'"):
        PrimalDual(penalty=1.0)
    with pytest.raises(ValueError, match="Did you mean 'chi2'"):
        PrimalDual(divergence="chi")


# --- uniform and class-uniform ---


@pytest.mark.parametrize(("n", "drop_last", "sizes"), [(10, False, [4, 4, 2]), (10, True, [4, 4]), (8, False, [4, 4])])
def test_uniform_gives_every_example_once(n, drop_last, sizes):
    sampler = Uniform(drop_last=drop_last).start(n, batch_size=4, seed=0)
    batches = list(sampler)
    assert [len(batch) for batch in batches] == sizes
    assert len(sampler) == len(sizes)
    seen = [i for batch in batches for i in batch]
    assert len(set(seen)) == len(seen) == sum(sizes)
    again = list(sampler)
    assert again != batches  # another order in the next epoch
    sampler.set_epoch(0)
    assert list(sampler) == batches


def test_uniform_orders_are_uniform():
    sampler = Uniform().start(6, batch_size=6, seed=0)
    first = [next(iter(sampler))[0] for _ in range(3000)]  # each iteration begins another epoch
    assert scipy.stats.chisquare(np.bincount(first, minlength=6)).pvalue > 1e-3


def test_class_uniform_draws_classes_alike_and_examples_within_them():
    targets = torch.tensor([5] * 90 + [7] * 8 + [2] * 2)[
        torch.randperm(100, generator=torch.Generator().manual_seed(0))
    ]
    sampler = ClassUniform().start(100, batch_size=50, seed=0, targets=targets)
    counts = np.zeros(100)
    for _ in range(600):
        for batch in sampler:
            counts += np.bincount(batch, minlength=100)
    expected = np.where(targets == 5, 1 / 270, np.where(targets == 7, 1 / 24, 1 / 6))
    assert scipy.stats.chisquare(counts, expected * counts.sum()).pvalue > 1e-3
    np.testing.assert_allclose(sampler.probabilities(), expected)


def test_class_uniform_needs_targets():
    with pytest.raises(ValueError, match="targets=labels"):
        ClassUniform().start(4, batch_size=2)
    with pytest.raises(ValueError, match="each of 4 examples"):
        ClassUniform().start(4, batch_size=2, targets=torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="argmax"):
        ClassUniform().start(2, batch_size=2, targets=torch.tensor([0.5, 1.0]))


# --- weights of examples ---

#: With weights 1, 2, 0, 5, classes 0, 0, 0, 1 and groups 0, 1, 1, 1: the losses to learn first, and the masses by hand.
WEIGHTED = {
    "uniform": [(Uniform(), {}, [1, 2, 0, 5])],
    "class_uniform": [(ClassUniform(), {}, [1 / 6, 2 / 6, 0, 5 / 2])],
    "group_balanced": [(GroupBalanced(), {}, [1 / 2, 2 / 6, 0, 5 / 6])],
    # Powers of two of the losses: 1, 2, 4, 1.
    "importance": [(Importance(tau=2.0, gamma=math.log(2)), {0: 0, 1: 1, 3: 0}, [1, 2 * 2, 0, 5])],
    "hardness": [(Hardness(beta=math.log(2), correction=True), {0: 0, 1: 1, 3: 0}, [1, 2 * 2, 0, 5])],
    # Example 3 is drawn with 5/8, 2.5 times as often as one in four. A reward of 2.5 raises its relative probability
    # by 1, and the projection lowers all by 1/4; one of 2.5 log 2 doubles it, and half of all draws are uniform.
    "primal_dual": [
        (PrimalDual(rho=4.0, step=1.0), {3: 2.5}, [0.75, 2 * 0.75, 0, 5 * 1.75]),
        (
            PrimalDual(divergence="kl", step=1.0, floor=0.5),
            {3: 2.5 * math.log(2)},
            [0.4 + 0.5, 2 * (0.4 + 0.5), 0, 5 * (0.8 + 0.5)],
        ),
    ],
}


def weighted(config, learned, *, batch_size):
    sampler = config.start(
        4,
        batch_size=batch_size,
        seed=3,
        targets=torch.tensor([0, 0, 0, 1]),
        groups=torch.tensor([0, 1, 1, 1]),
        weight=np.array([1, 2, 0, 5]),
    )
    if learned:
        next(iter(sampler))
        sampler.update(torch.tensor(list(learned)), torch.tensor(list(learned.values()), dtype=torch.float64))
    return sampler


@pytest.mark.parametrize("registered", names("sampler"))
def test_rows_are_drawn_by_their_weights_too(registered):
    for config, learned, masses in WEIGHTED[registered]:
        sampler = weighted(config, learned, batch_size=4 if registered == "uniform" else 4000)
        expected = np.array(masses) / sum(masses)
        np.testing.assert_allclose(sampler.probabilities(), expected, rtol=1e-12)
        counts = sum(
            np.bincount(next(iter(sampler)), minlength=4) for _ in range(1000 if registered == "uniform" else 1)
        )
        assert counts[2] == 0
        drawn = [0, 1, 3]
        assert scipy.stats.chisquare(counts[drawn], expected[drawn] * counts.sum()).pvalue > 1e-3


def test_weighted_shuffling_rounds_how_often_a_row_comes():
    sampler = weighted(Uniform(), {}, batch_size=4)
    counts = np.array([np.bincount(next(iter(sampler)), minlength=4) for _ in range(200)])
    for row, allowed in enumerate([{0, 1}, {1}, {0}, {2, 3}]):  # 4 v / 8 is 0.5, 1, 0, 2.5
        assert set(counts[:, row].tolist()) == allowed


def test_corrections_undo_the_sampler_but_not_the_weights():
    drawn, now = torch.tensor([0, 1, 3]), torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    (config, learned, _), *_ = WEIGHTED["importance"]
    sampler = weighted(config, learned, batch_size=4000)
    next(iter(sampler))
    # The weight now, times the row's share of the weights, over its probability.
    expected = [2 * (1 / 8) / 0.1, 2 * (2 / 8) / 0.4, 4 * (5 / 8) / 0.5]
    np.testing.assert_allclose(sampler.sample_weight(drawn, now), expected)
    (config, learned, _), *_ = WEIGHTED["hardness"]
    sampler = weighted(config, learned, batch_size=4000)
    next(iter(sampler))
    np.testing.assert_allclose(sampler.sample_weight(drawn, now), [2.0, 1.0, 4.0])


@pytest.mark.parametrize("config", ALL, ids=name)
def test_equal_weights_change_nothing(config):
    logs = []
    for weight in (None, torch.ones(37), [0.3] * 37):
        sampler = started(config, weight=weight)
        logs.append([])
        for _ in range(2):
            for _ in train(sampler, sampler, logs[-1]):
                pass
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([1.0] * 36, r"one number for each of 37 examples, got shape \(36,\)"),
        ([[1.0]] * 37, r"got shape \(37, 1\)"),
        ([1.0] * 36 + [-1.0], r"not negative, got 1 of 37 that are not, the first -1.0 for example 36"),
        ([math.nan] + [1.0] * 36, r"the first nan for example 0"),
        ([1.0, math.inf] + [1.0] * 35, r"must be finite"),
        ([0.0] * 37, "positive for at least one example, got zeros only"),
    ],
    ids=["short", "matrix", "negative", "nan", "infinite", "zeros"],
)
def test_bad_weights_are_refused(config, weight, words):
    with pytest.raises(ValueError, match=words):
        started(config, weight=weight)


# --- what all of them share ---


class Indices(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("config", ALL, ids=name)
def test_a_data_loader_takes_them_and_epochs_have_their_length(config):
    sampler = started(config)
    loader = DataLoader(Indices(37), batch_sampler=sampler)
    batches = list(loader)
    assert len(batches) == len(sampler) == len(loader) == 8
    assert all(int(batch.min()) >= 0 and int(batch.max()) < 37 for batch in batches)
    assert sampler.probabilities().shape == (37,)
    assert float(sampler.probabilities().sum()) == pytest.approx(1.0)


def train(sampler, batches, log, step=0):
    for batch in batches:
        indices = torch.as_tensor(batch)
        losses = losses_of(indices, step)
        factors = sampler.sample_weight(indices, losses)
        log.append((indices.tolist(), None if factors is None else factors.tolist()))
        sampler.update(indices, losses)
        step += 1
        yield step


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize(("stop", "weight"), [(0, None), (3, None), (3, WEIGHT), (8, None), (11, None), (11, WEIGHT)])
def test_resuming_continues_bit_for_bit(config, stop, weight, tmp_path):
    def run(sampler, log, step, until=None):
        while step < 24:
            for done in train(sampler, sampler, log, step):
                step = done
                if step == until:
                    return step
        return step

    whole, log = started(config, seed=4, weight=weight), []
    run(whole, log, 0)
    first, parts = started(config, seed=4, weight=weight), []
    step = run(first, parts, 0, until=stop) if stop else 0
    torch.save(first.state_dict(), tmp_path / "sampler.pt")
    second = started(config, seed=4, weight=weight)
    second.load_state_dict(torch.load(tmp_path / "sampler.pt", weights_only=True))
    run(second, parts, step)
    assert parts == log
    assert torch.equal(second.probabilities(), whole.probabilities())


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize("bad", [[[4]], [[0, 1, 2, 3, 4]], [[2], [0, 1, 2, 3, 4]]], ids=str)
def test_a_batch_with_losses_left_out_is_not_handed_out_again(config, bad):
    """`bad` says which losses of the last batches before the state is taken are no numbers."""

    def run(sampler, batches, log, until=None):
        for batch in batches:
            indices = torch.as_tensor(batch)
            ok = torch.ones(len(batch), dtype=torch.bool)
            ok[bad[len(log) - 2] if 2 <= len(log) < 2 + len(bad) else []] = False
            log.append(batch)
            sampler.update(indices[ok], losses_of(indices)[ok])
            if len(log) == until:
                return

    whole, log = started(config, n=40, seed=4), []
    run(whole, whole, log)
    first, parts = started(config, n=40, seed=4), []
    run(first, first, parts, until=2 + len(bad))
    second = started(config, n=40, seed=4)
    second.load_state_dict(first.state_dict())
    run(second, second, parts)
    assert parts == log


def test_a_batch_with_losses_left_out_does_not_answer_for_the_next():
    for seed in range(100):  # until the second batch is of examples of the first
        sampler = Importance(tau=1.0).start(4, batch_size=2, seed=seed)
        drawn = iter(sampler)
        first = torch.tensor(next(drawn))
        sampler.update(first[:1], torch.zeros(1))
        now = sampler.probabilities()
        second = torch.tensor(next(drawn))
        if set(second.tolist()) <= set(first.tolist()):
            break
    else:
        pytest.fail("no seed draws such batches")
    factors = sampler.sample_weight(second, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(factors, 1.0 / (4 * now[second]))  # not of how the first was drawn


@pytest.mark.processes
@pytest.mark.parametrize("config", [Importance(tau=1.0), PrimalDual(step=0.5), Uniform()], ids=name)
def test_resuming_with_prefetching_workers(config):
    """Workers have drawn batches ahead when the state is taken; they are handed out again."""

    def epoch(sampler, log, step, until=None):
        # Spawned, since another test may have left threads in this process that a fork would not survive.
        loader = DataLoader(
            Indices(37), batch_sampler=sampler, num_workers=1, prefetch_factor=3, multiprocessing_context="spawn"
        )
        for done in train(sampler, loader, log, step):
            if done == until:
                return done
        return None

    log, parts = [], []
    epoch(started(config, seed=4), log, 0)
    first = started(config, seed=4)
    step = epoch(first, parts, 0, until=3)
    assert len(parts) == 3
    second = started(config, seed=4)
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)  # as a training loop does; must not begin the epoch anew
    epoch(second, parts, step)
    assert parts == log


def test_a_state_must_fit():
    state = started(Importance()).state_dict()
    with pytest.raises(ValueError, match=r"`batch_size` must be that of the saved sampler, 5, got 4"):
        started(Importance(), batch_size=4).load_state_dict(state)
    with pytest.raises(ValueError, match="`weight` must be that of the saved sampler"):
        started(Importance(), weight=WEIGHT).load_state_dict(state)
    with pytest.raises(ValueError, match="`weight` must be that of the saved sampler"):
        started(Importance(), weight=WEIGHT).load_state_dict(started(Importance(), weight=WEIGHT[::-1]).state_dict())


@pytest.mark.parametrize("config", ALL, ids=name)
def test_global_random_state_is_neither_used_nor_changed(config):
    before = torch.get_rng_state()
    a = [list(started(config, seed=1)), list(started(config, seed=2))]
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert list(started(config, seed=1)) == a[0] != a[1]


@pytest.mark.parametrize("config", ALL, ids=name)
def test_errors_name_the_fix(config):
    with pytest.raises(ValueError, match=r"`n` must be .* got 0. Pass the number of training examples"):
        config.start(0, batch_size=1, targets=torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="`batch_size` must be"):
        started(config, batch_size=0)
    with pytest.raises(ValueError, match=r"`rank` must be below num_replicas=2, got 2"):
        started(config, num_replicas=2, rank=2)
    sampler = started(config)
    batch = torch.tensor(next(iter(sampler)))
    with pytest.raises(ValueError, match=r"2 of 5 that are NaN or infinite.*leave such examples out"):
        sampler.update(batch, torch.tensor([1.0, float("nan"), 1.0, float("inf"), 1.0]))
    with pytest.raises(ValueError, match=r"shapes \(5,\) and \(\).*unreduced"):
        sampler.update(batch, torch.tensor(1.0))
    with pytest.raises(ValueError, match="one length"):
        sampler.update(batch, torch.ones(4))
    with pytest.raises(TypeError, match="return its index"):
        sampler.update(torch.ones(5), torch.ones(5))
    with pytest.raises(TypeError, match="floating-point"):
        sampler.update(batch, torch.ones(5, dtype=torch.int64))
    with pytest.raises(IndexError, match=r"\[0, 37\).*n=len\(dataset\)"):
        sampler.update(torch.tensor([37]), torch.ones(1))


def test_batches_larger_than_the_data():
    with pytest.raises(ValueError, match=r"n=5, when drawing without replacement, got 2 x 3. Use a smaller batch"):
        Uniform().start(5, batch_size=2, num_replicas=3, rank=0)
    assert len(next(iter(Importance().start(3, batch_size=50)))) == 50


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Importance(tau=-1.0), "`tau`"),
        (lambda: Hardness(beta=0.0), "`beta`"),
        (lambda: PrimalDual(step=0.0), "`step`"),
        (lambda: PrimalDual(floor=1.0), "`floor`"),
        (lambda: Uniform(drop_last="no"), "`drop_last`"),  # type: ignore[arg-type]
    ],
)
def test_hyper_parameters_are_checked(make, word):
    with pytest.raises(ValueError, match=word):
        make()


@pytest.mark.parametrize("config", ALL, ids=name)
def test_the_repr_is_the_identity(config):
    assert eval(repr(config)) == config


# --- ranks ---


@pytest.mark.parametrize("n", [24, 25, 29, 31])
@pytest.mark.parametrize("drop_last", [False, True])
def test_uniform_ranks_are_disjoint_and_of_equal_length(n, drop_last):
    ranks = [Uniform(drop_last=drop_last).start(n, batch_size=4, num_replicas=3, rank=r) for r in range(3)]
    batches = [list(sampler) for sampler in ranks]
    assert len({len(sampler) for sampler in ranks}) == 1
    assert {len(b) for b in batches} == {len(ranks[0])}
    for parts in zip(*batches, strict=True):
        assert len({len(part) for part in parts}) == 1
    seen = [i for rank in batches for batch in rank for i in batch]
    assert len(seen) == len(set(seen)) == (n // 12 * 12 if drop_last else n // 3 * 3)


@pytest.mark.parametrize("config", ALL, ids=name)
@pytest.mark.parametrize("weight", [None, WEIGHT[:36]], ids=["equal", "weighted"])
def test_ranks_share_one_global_batch(config, weight):
    alone = list(started(config, n=36, batch_size=6, weight=weight))
    ranks = [list(started(config, n=36, batch_size=2, num_replicas=3, rank=rank, weight=weight)) for rank in range(3)]
    assert [a + b + c for a, b, c in zip(*ranks, strict=True)] == alone


@pytest.mark.parametrize("config", ADAPTIVE, ids=name)
def test_ranks_that_cannot_hear_each_other_say_so(config):
    sampler = started(config, num_replicas=2, rank=0)
    batch = torch.tensor(next(iter(sampler)))
    with pytest.raises(RuntimeError, match="init_process_group"):
        sampler.update(batch, torch.ones(5))


def work(rank, port, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = {}
    for config, weight in itertools.product(ADAPTIVE, (None, WEIGHT)):
        sampler = started(config, batch_size=4, seed=2, weight=weight)  # ranks from torch.distributed
        log = []
        for _ in range(2):
            for _ in train(sampler, sampler, log):
                pass
        # A rank may have fewer losses than another.
        batch = torch.tensor(next(iter(sampler)))[: 4 - rank]
        sampler.update(batch, losses_of(batch))
        message = ""
        try:
            sampler.update(batch, torch.full((4 - rank,), float("nan") if rank else 1.0))
        except ValueError as error:  # on both ranks, though only one has the NaN
            message = str(error)
        found[name(config), weight is None] = (log, sampler.probabilities().tolist(), message)
    results.put((rank, found))
    torch.distributed.destroy_process_group()


@pytest.mark.processes
def test_two_processes_keep_identical_trees():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=work, args=(rank, port, results)) for rank in range(2)]
    found = dict(answers(workers, results))
    for config, weight in itertools.product(ADAPTIVE, (None, WEIGHT)):
        key = name(config), weight is None
        (log0, p0, error0), (log1, p1, error1) = found[0][key], found[1][key]
        assert p0 == p1
        assert error0 == error1 != ""
        assert len(log0) == len(log1) == 10
        # One process with the whole batch goes the same way.
        sampler, log = started(config, batch_size=8, seed=2, weight=weight), []
        for _ in range(2):
            for _ in train(sampler, sampler, log):
                pass
        assert [(a[0] + b[0], a[1] and a[1] + b[1]) for a, b in zip(log0, log1, strict=True)] == log


def test_group_balanced_draws_groups_alike_whatever_the_classes():
    groups = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    sampler = GroupBalanced().start(100, batch_size=3000, seed=0, targets=torch.zeros(100).long(), groups=groups)
    drawn = torch.cat([torch.tensor(batch) for batch in sampler])
    shares = torch.bincount(groups[drawn], minlength=3) / len(drawn)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.1, rtol=0)
    expected = 1 / (3 * torch.tensor([90.0, 8.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(sampler.probabilities(), expected[groups])
    with pytest.raises(ValueError, match=r"`groups` must be given to draw each group equally often.*groups=labels"):
        GroupBalanced().start(4, batch_size=2, targets=torch.arange(4))


def test_group_balanced_says_what_the_context_lacks():
    with pytest.raises(ValueError, match=r"'group_balanced' needs to know groups.*Context\(groups="):
        reweigh.method("group_balanced").build(reweigh.Context(n=4, targets=torch.arange(4)))
    built = reweigh.method("group_balanced").build(reweigh.Context(n=4, groups=torch.arange(4)))
    assert built.sampler == GroupBalanced()
