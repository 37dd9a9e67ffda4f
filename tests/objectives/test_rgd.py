"""RGD: golden values, the gradient identity, and every option of the one-line call."""

from __future__ import annotations

import dataclasses
import warnings

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frameworks import ALL, JAX, TORCH, gradient, numbers
from hypothesis import given, settings

import reweigh
from reweigh import RGD, rgd
from reweigh.objectives.redescending import Redescending

BATCH = [0.2, 0.7, 1.5, 4.0]
GOLDEN = {
    (1.0, "kl"): ([1.105171, 1.419068, 1.648721, 1.648721], 2.570587),
    (1.0, "revkl"): ([1.111111, 1.538462, 2, 2], 3.074786),
    (1.0, "chi2"): ([1.2, 1.7, 2, 2], 3.1075),
    (3.0, "kl"): ([1.051271, 1.191246, 1.454991, 2.117000], 2.923653),
    (3.0, "revkl"): ([1.052632, 1.212121, 1.6, 4], 4.864753),
    (3.0, "chi2"): ([3.2, 3.7, 4.5, 6], 8.495),
}
MEAN_PHI = {
    (1.0, "kl"): (0.210342 + 0.838135 + 2.121803 + 6.243606) / 4,
    (1.0, "revkl"): (0.210721 + 0.861566 + 2.386294 + 7.386294) / 4,
    (1.0, "chi2"): (0.22 + 0.945 + 2.5 + 7.5) / 4,
    (3.0, "kl"): (0.205084 + 0.764985 + 1.819966 + 6.585000) / 4,
    (3.0, "revkl"): (0.205173 + 0.769488 + 1.880015 + 9.545177) / 4,
    (3.0, "chi2"): (0.62 + 2.345 + 5.625 + 19.5) / 4,
}

divergences = st.sampled_from(["kl", "revkl", "chi2"])
taus = st.floats(0.1, 20.0)
batches = st.lists(st.floats(0.0, 25.0), min_size=1, max_size=10).map(np.array)


def problem(seed: int = 0, n: int = 6):
    """A small regression: per-example losses as a function of three parameters, and their exact gradients."""
    rng = np.random.default_rng(seed)
    x, y, theta = rng.normal(size=(n, 3)), rng.normal(size=n), rng.normal(size=3)

    def losses(parameters, xp=np):
        inputs, targets = (x, y) if xp is np else (xp.asarray(x), xp.asarray(y))
        return 0.5 * (inputs @ parameters - targets) ** 2

    gradients = (x @ theta - y)[:, None] * x
    return losses, gradients, theta


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_golden_batch(case, framework):
    tau, divergence = case
    weights, value = GOLDEN[case]
    for dtype in ("float32", "float64"):
        losses = framework.array(BATCH, dtype)
        assert float(rgd(losses, tau, divergence)) == pytest.approx(value, rel=1e-6)
        assert float(RGD(tau=tau, divergence=divergence)(losses)) == pytest.approx(value, rel=1e-6)
        assert float(rgd(losses, tau, divergence, reduction="sum")) == pytest.approx(4 * value, rel=1e-6)
        vector = rgd(losses, tau, divergence, reduction="none")
        np.testing.assert_allclose(numbers(vector), np.array(weights) * BATCH, rtol=1e-6)
        assert float(rgd(losses, tau, divergence, surrogate=True)) == pytest.approx(MEAN_PHI[case], rel=1e-6)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@pytest.mark.parametrize("case", GOLDEN, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_the_gradient_is_the_weighted_mean_of_per_example_gradients(case, framework, dtype, tolerance):
    tau, divergence = case
    losses, gradients, theta = problem()
    weights = RGD(tau=tau, divergence=divergence).weight(losses(theta))
    expected = (weights[:, None] * gradients).mean(0)

    def in_dtype(parameters):
        if framework is JAX:
            return losses(parameters, jnp).astype(dtype)
        return losses(parameters, torch).to(getattr(torch, dtype))

    for surrogate in (False, True):
        found = gradient(lambda p: rgd(in_dtype(p), tau, divergence, surrogate=surrogate), theta, framework)  # noqa: B023
        np.testing.assert_allclose(found, expected, rtol=tolerance * 4, atol=tolerance)


def test_a_weight_with_gradient_would_be_noticed():
    """The check above tells apart the method from the usual mistake of not detaching the weight."""
    losses, gradients, theta = problem()
    weights = reweigh.KL(tau=1.0)(losses(theta))
    expected = (weights[:, None] * gradients).mean(0)

    def not_detached(parameters):
        values = losses(parameters, torch)
        return (torch.exp(values.clip(0, 1) / 2) * values).mean()

    found = gradient(not_detached, theta, TORCH)
    assert np.abs(found - expected).max() > 1e-2


def test_only_the_multiplied_loss_carries_gradient():
    """Perturbing the copy that the weight sees changes the value's slope and not the graph."""
    losses = torch.tensor(BATCH, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(rgd(losses), losses)
    np.testing.assert_allclose(slope.numpy() * 4, GOLDEN[1.0, "kl"][0], rtol=1e-6)


@given(st.floats(0.1, 2.0), st.integers(0, 1000))
def test_without_clipping_it_is_tilted_risk(gamma, seed):
    """Gradient of mean exp(g l)/g; divided by the mean weight, that of (1/g) log mean exp(g l)."""
    losses, _, theta = problem(seed)
    tau = 1.0 / gamma * 0.9  # a level the losses are scaled below
    scale = tau / (losses(theta).max() + 1e-9)

    def scaled(parameters):
        return scale * losses(parameters, torch)

    found = gradient(lambda p: rgd(scaled(p), tau=tau, gamma=gamma), theta, TORCH)
    inner = gradient(lambda p: torch.exp(gamma * scaled(p)).mean() / gamma, theta, TORCH)
    np.testing.assert_allclose(found, inner, rtol=1e-9, atol=1e-12)
    tilted = gradient(lambda p: torch.logsumexp(gamma * scaled(p), 0) / gamma, theta, TORCH)
    mean_weight = np.exp(gamma * scale * losses(theta)).mean()
    np.testing.assert_allclose(found / mean_weight, tilted, rtol=1e-9, atol=1e-12)
    normalised = gradient(lambda p: rgd(scaled(p), tau=tau, gamma=gamma, normalize="mean"), theta, TORCH)
    np.testing.assert_allclose(normalised, tilted, rtol=1e-9, atol=1e-12)


@given(batches, taus, divergences, st.randoms(use_true_random=False))
def test_order_of_units_and_the_rest_of_the_batch_do_not_matter(losses, tau, divergence, random):
    vector = rgd(losses, tau, divergence, reduction="none")
    order = list(range(len(losses)))
    random.shuffle(order)
    np.testing.assert_allclose(rgd(losses[order], tau, divergence, reduction="none"), vector[order], rtol=1e-14)
    changed = losses.copy()
    changed[1:] = changed[1:] * 2 + 1
    assert rgd(changed, tau, divergence, reduction="none")[0] == pytest.approx(vector[0], rel=1e-14)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@settings(max_examples=12)  # JAX compiles every new length
@given(losses=batches, tau=taus, divergence=divergences, data=st.data())
def test_micro_batches_are_one_batch(framework, losses, tau, divergence, data):
    cut = data.draw(st.integers(0, len(losses)))
    n = len(losses)

    def pieces(x):
        parts = [part for part in (x[:cut], x[cut:]) if part.shape[0]]
        return sum(rgd(part, tau, divergence, count=n) for part in parts)

    whole = gradient(lambda x: rgd(x, tau, divergence), losses, framework)
    np.testing.assert_allclose(gradient(pieces, losses, framework), whole, rtol=1e-12)
    assert float(pieces(framework.array(losses, "float64"))) == pytest.approx(float(rgd(losses, tau, divergence)))


@given(st.floats(0.0, 30.0), taus, divergences)
def test_equal_and_saturated_losses_only_change_the_rate(k, tau, divergence):
    objective = RGD(tau=tau, divergence=divergence)
    losses, gradients, theta = problem()
    flat = losses(theta)

    def equal(parameters):  # all values k, per-example gradients untouched
        values = losses(parameters, torch)
        return values - values.detach() + k

    found = gradient(lambda p: objective(equal(p)), theta, TORCH)
    np.testing.assert_allclose(found, objective.weight(np.array([k]))[0] * gradients.mean(0), rtol=1e-9, atol=1e-12)
    largest = objective.weight(np.array([1e9]))[0]
    saturated = gradient(lambda p: objective(losses(p, torch) + tau), theta, TORCH)
    np.testing.assert_allclose(saturated, largest * gradients.mean(0), rtol=1e-9, atol=1e-12)
    assert flat.min() >= 0


@given(st.sampled_from(["kl", "revkl"]), batches)
def test_both_ends_of_tau_have_the_plain_gradient(divergence, losses):
    plain = np.full(len(losses), 1.0 / len(losses))
    for tau in (1e-9, 1e9):
        np.testing.assert_allclose(gradient(lambda x: rgd(x, tau, divergence), losses, TORCH), plain, rtol=1e-6)  # noqa: B023
    free = gradient(lambda x: rgd(x, tau=5.0, gamma=1e-12), losses, TORCH)
    np.testing.assert_allclose(free, plain, rtol=1e-9)
    scaled = gradient(lambda x: rgd(x, 1e9, "chi2", scaled=True), losses, TORCH)
    np.testing.assert_allclose(scaled, plain, rtol=1e-6)


def test_adam_walks_the_same_path_under_both_scalings_of_chi2():
    losses, _, theta = problem(3, 12)
    paths = []
    for scaled in (False, True):
        parameters = torch.tensor(theta, requires_grad=True)
        adam = torch.optim.Adam([parameters], lr=0.05, eps=1e-12)
        for _ in range(30):
            adam.zero_grad()
            rgd(losses(parameters, torch), tau=3.0, divergence="chi2", scaled=scaled).backward()
            adam.step()
        paths.append(parameters.detach().numpy())
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-7)
    assert np.abs(paths[0] - theta).max() > 0.1


@pytest.mark.parametrize(
    ("options", "rare"),
    [
        ({"tau": 1.0}, {10: 1.7801, 50: 0.8749, 100: 0.3889, 200: 0.0796}),
        ({"tau": 3.0}, {10: 1.8294, 50: 0.9318, 100: 0.4177, 200: 0.0857}),
        ({"tau": 9.0}, {10: 1.8574, 50: 0.9696, 100: 0.4375, 200: 0.0899}),
        ({"tau": 1.0, "divergence": "revkl"}, {10: 1.759, 50: 0.8616, 100: 0.3831, 200: 0.0785}),
        ({"tau": 1.0, "divergence": "chi2"}, {10: 1.722, 50: 0.8063, 100: 0.3540, 200: 0.0723}),
        ({"tau": 1.0, "gamma": 0.0}, {10: 1.8753, 50: 0.9963, 100: 0.4519, 200: 0.0930}),  # plain descent
    ],
    ids=str,
)
def test_regression_with_rare_features_follows_its_known_path(options, rare):
    """Ten one-hot features, five of them fifty times as frequent; full batch, half squares, step size 4."""
    counts = torch.tensor([50] * 5 + [1] * 5)
    target = torch.tensor(np.random.default_rng(0).standard_normal(10))
    theta = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    errors = {}
    for step in range(1, 201):
        losses = 0.5 * torch.repeat_interleave(theta - target, counts) ** 2
        (slope,) = torch.autograd.grad(rgd(losses, **options), theta)
        with torch.no_grad():
            theta -= 4 * slope
        errors[step] = float((theta - target).detach()[5:].norm())
    assert {step: errors[step] for step in rare} == pytest.approx(rare, abs=6e-4 if "divergence" in options else 6e-5)


# --- mask, sample weights, denominators ---


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_a_mask_leaves_units_out_before_weighting(framework):
    padded = framework.array([[0.2, 0.7, 9.0], [1.5, 4.0, np.nan]], "float64")
    mask = framework.array([[1, 1, 0], [1, 1, 0]], "bool")
    assert float(rgd(padded, mask=mask)) == pytest.approx(2.570587, rel=1e-6)
    vector = numbers(rgd(padded, mask=mask, reduction="none"))
    assert vector.shape == (2, 3)
    assert vector[:, 2].tolist() == [0.0, 0.0]
    for kind in ("int64", "float32"):
        assert float(rgd(padded, mask=framework.array([[1, 1, 0], [1, 1, 0]], kind))) == pytest.approx(
            2.570587, rel=1e-6
        )


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_no_gradient_reaches_masked_units(framework):
    losses = np.array([0.2, np.nan, 0.7, np.inf])
    mask = framework.array([True, False, True, False], "bool")
    found = gradient(lambda x: rgd(x, mask=mask), losses, framework)
    np.testing.assert_allclose(found, [np.exp(0.1) / 2, 0, np.exp(0.35) / 2, 0], rtol=1e-12)


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_sample_weights_multiply_after_and_divide_by_their_sum(framework):
    losses, own = framework.array([0.5, 2.0], "float64"), framework.array([3.0, 1.0], "float64")
    # weights e^0.25 and e^0.5; (3 * 0.5 e^0.25 + 1 * 2 e^0.5) / 4
    assert float(rgd(losses, sample_weight=own)) == pytest.approx((1.5 * np.exp(0.25) + 2 * np.exp(0.5)) / 4)
    assert float(rgd(losses, sample_weight=own, reduction="sum")) == pytest.approx(1.5 * np.exp(0.25) + 2 * np.exp(0.5))
    assert float(rgd(losses, sample_weight=own, count=10)) == pytest.approx((1.5 * np.exp(0.25) + 2 * np.exp(0.5)) / 10)
    masked = rgd(losses, sample_weight=own, mask=framework.array([True, False], "bool"))
    assert float(masked) == pytest.approx(0.5 * np.exp(0.25))
    with_surrogate = rgd(losses, sample_weight=own, surrogate=True)
    phi = 3 * 2 * np.expm1(0.25) + 2 * np.expm1(0.5) + np.exp(0.5)
    assert float(with_surrogate) == pytest.approx(phi / 4)


@given(batches, st.lists(st.integers(1, 3), min_size=10, max_size=10))
def test_a_whole_sample_weight_is_repetition(losses, times):
    repeats = np.array(times[: len(losses)])
    weighted = rgd(losses, sample_weight=repeats.astype(float))
    assert weighted == pytest.approx(float(rgd(np.repeat(losses, repeats))))
    normalised = rgd(losses, sample_weight=repeats.astype(float), normalize="mean")
    assert normalised == pytest.approx(float(rgd(np.repeat(losses, repeats), normalize="mean")))


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("options", [{}, {"normalize": "mean"}, {"surrogate": True}])
def test_a_batch_in_which_nothing_counts_is_zero(framework, options):
    losses, mask = framework.array(BATCH, "float64"), framework.array([False] * 4, "bool")
    assert float(rgd(losses, mask=mask, **options)) == 0.0
    assert float(rgd(losses, sample_weight=framework.array([0.0] * 4, "float64"), **options)) == 0.0


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_normalised_weights_have_mean_one(framework):
    losses = framework.array(BATCH, "float64")
    vector = numbers(rgd(losses, normalize="mean", reduction="none"))
    assert (vector / BATCH).mean() == pytest.approx(1.0)
    weights = np.array(GOLDEN[1.0, "kl"][0])
    assert float(rgd(losses, normalize="mean")) == pytest.approx((weights / weights.mean() * BATCH).mean(), rel=1e-6)
    assert not RGD(normalize="mean").separable
    assert RGD().separable


def test_count_scales_the_honest_value_too():
    half = rgd(np.array(BATCH), surrogate=True, count=8)
    assert float(half) == pytest.approx(MEAN_PHI[1.0, "kl"] / 2, rel=1e-6)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_arrays_beside_the_losses_may_come_from_numpy_or_lists(framework):
    losses = framework.array([0.5, 2.0], "float32")
    for mask in ([True, False], np.array([1, 0])):
        assert float(rgd(losses, mask=mask)) == pytest.approx(0.5 * np.exp(0.25), rel=1e-6)
    value = rgd(losses, sample_weight=[3.0, 1.0])
    assert float(value) == pytest.approx((1.5 * np.exp(0.25) + 2 * np.exp(0.5)) / 4, rel=1e-6)
    assert value.dtype == losses.dtype


def test_a_list_of_losses_is_taken_as_numpy():
    assert float(rgd(BATCH)) == pytest.approx(2.570587, rel=1e-6)


# --- losses that are no numbers, or negative ---


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_skip_drops_units_and_divides_by_the_number_kept(framework):
    losses = framework.array([0.2, np.nan, 0.7, np.inf, 1.5, 4.0, -np.inf], "float64")
    assert float(rgd(losses, nonfinite="skip")) == pytest.approx(2.570587, rel=1e-6)
    if framework is not ALL[0]:
        found = gradient(lambda x: rgd(x, nonfinite="skip"), numbers(losses), framework)
        assert np.isfinite(found).all()
        assert (found[[1, 3, 6]] == 0).all()


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_raise_says_how_many_and_where(framework):
    losses = framework.array([0.2, np.nan, 0.7, np.inf], "float64")
    options = {} if framework is ALL[0] else {"nonfinite": "raise"}  # the default on NumPy
    with pytest.raises(
        ValueError, match=r"got 2 of 4 that are NaN or infinite, the first at index 1.*nonfinite='skip'"
    ):
        rgd(losses, **options)
    assert np.isfinite(float(rgd(losses, mask=framework.array([True, False, True, False], "bool"), **options)))


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_the_default_propagates_where_looking_would_stall(framework):
    assert np.isnan(float(rgd(framework.array([0.2, np.nan], "float32"))))


def test_raise_cannot_work_under_a_tracer():
    with pytest.raises(ValueError, match="do not exist while a program is traced"):
        jax.jit(lambda x: rgd(x, nonfinite="raise"))(jnp.array(BATCH))


def test_mostly_negative_losses_are_reported_on_numpy():
    with pytest.warns(UserWarning, match="75% of the losses are negative.*`offset`") as caught:
        rgd(np.array([-1.0, -2.0, -3.0, 1.0]))
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="67% of the losses are negative"):
        RGD()(np.array([-1.0, -2.0, 9.0, 1.0]), mask=np.array([True, True, False, True]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rgd(np.array([-1.0, -2.0, 3.0, 1.0]))
        rgd(np.array([-1.0, -2.0, -3.0]), tau=None, gamma=0.5)  # not clipped below
        rgd(np.array([-1.0, -2.0, -3.0]), offset=-4.0)
        rgd(torch.tensor([-1.0, -2.0, -3.0]))


# --- warm-up and state ---


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("surrogate", [False, True])
def test_warm_up_starts_with_the_plain_mean(framework, surrogate):
    objective = RGD(warmup=2, surrogate=surrogate)
    losses, state, values = framework.array(BATCH, "float64"), objective.init(), []
    for _ in range(4):
        loss, state = objective.apply(losses, state)
        values.append(float(loss))
    later = MEAN_PHI[1.0, "kl"] if surrogate else 2.570587
    assert values == pytest.approx([1.6, 1.6, later, later], rel=1e-6)
    assert int(state["step"]) == 4


def test_warm_up_under_jit_and_scan():
    objective = RGD(warmup=2)

    def step(state, losses):
        loss, state = objective.apply(losses, state)
        return state, loss

    start = jax.tree.map(jnp.asarray, objective.init())
    _, values = jax.lax.scan(step, start, jnp.tile(jnp.array(BATCH), (4, 1)))
    assert values.tolist() == pytest.approx([1.6, 1.6, 2.570587, 2.570587], rel=1e-6)


def test_a_stateful_objective_refuses_the_short_form():
    with pytest.raises(TypeError, match=r"RGD\(.*warmup=2.*remembers something.*objective\.apply\(losses, state\)"):
        RGD(warmup=2)(np.array(BATCH))


# --- errors ---


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_an_averaged_loss_is_refused(framework):
    for call in (rgd, RGD()):
        with pytest.raises(ValueError, match=r"already averaged or summed.*reduction='none'"):
            call(framework.array(1.5, "float64"))
    with pytest.raises(ValueError, match="already averaged"):
        rgd(1.5)


@pytest.mark.parametrize("framework", ALL, ids=str)
def test_integers_are_refused(framework):
    with pytest.raises(TypeError, match=r"floating-point numbers, got dtype .*int64"):
        rgd(framework.array([1, 2], "int64"))


@pytest.mark.parametrize("framework", ALL, ids=str)
@pytest.mark.parametrize("name", ["mask", "sample_weight", "groups"])
def test_shapes_beside_the_losses_are_not_broadcast(framework, name):
    losses = framework.array(BATCH, "float64")
    for wrong in ([[1.0], [1.0], [1.0], [1.0]], [1.0]):
        with pytest.raises(ValueError, match=rf"`{name}` must have the shape of the losses, \(4,\), got"):
            RGD()(losses, **{name: framework.array(wrong, "float64")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": -1.0}, r"`tau` must be a positive number, got -1\.0"),
        ({"tau": float("nan")}, r"`tau` must be a positive number, got nan"),
        (
            {"divergence": "ch2"},
            r"`divergence` must be one of 'kl', 'chi2', 'revkl', got 'ch2'\. Did you mean 'chi2'\?",
        ),
        ({"normalize": "sum"}, r"`normalize` must be one of None, 'mean', got 'sum'"),
        ({"reduction": "avg"}, r"`reduction` must be one of 'mean', 'sum', 'none', got 'avg'"),
        ({"nonfinite": "drop"}, r"`nonfinite` must be one of 'raise', 'skip', 'propagate', got 'drop'"),
        (
            {"gamma": 0.5, "divergence": "chi2"},
            r"ChiSquare has no parameter `gamma`, got gamma=0\.5\. It has: offset, scaled, tau\.",
        ),
        ({"scaled": True}, r"KL has no parameter `scaled`, got scaled=True\. It has: gamma, offset, tau\."),
        ({"tau": None}, r"`gamma` is required when `tau` is None"),
        ({"surrogate": True, "normalize": "mean"}, r"`surrogate` and `normalize` exclude each other.*Drop one"),
        ({"count": 4, "reduction": "sum"}, r"`count` is the denominator of the mean, got it with reduction='sum'"),
        ({"count": 0}, r"`count` must be a positive number, got 0"),
        ({"count": np.array([4, 4])}, r"`count` must be a positive number, got an array of shape \(2,\)"),
    ],
    ids=str,
)
def test_misuse_names_the_fix(options, message):
    with pytest.raises(ValueError, match=message):
        rgd(np.array(BATCH), **options)


def test_other_misuse():
    with pytest.raises(ValueError, match="`warmup` must be a whole number of at least 0, got -1"):
        RGD(warmup=-1)
    with pytest.raises(TypeError, match="`tau` must be a positive number, got None"):
        rgd(np.array(BATCH), tau=None, divergence="revkl")
    with pytest.raises(TypeError, match="`surrogate` must be True or False, got 'no'"):
        RGD(surrogate="no")
    with pytest.raises(TypeError, match="`tau` must be a positive number, got True"):
        rgd(np.array(BATCH), tau=True)
    with pytest.raises(TypeError, match="expected a NumPy array, torch tensor or JAX array, got dict"):
        rgd({})
    with pytest.raises(ValueError, match="at least one entry, got none"):
        rgd(np.array([]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        rgd(np.array(BATCH), temperature=1.0)


@pytest.mark.parametrize(
    "objective",
    [RGD(), RGD(tau=3.0, divergence="chi2", scaled=True), RGD(tau=None, gamma=-1), RGD(warmup=5, normalize="mean")],
    ids=repr,
)
def test_repr_evaluates_back(objective):
    names = {"RGD": RGD, "KL": reweigh.KL, "ReverseKL": reweigh.ReverseKL, "ChiSquare": reweigh.ChiSquare}
    assert eval(repr(objective), names) == objective
    assert hash(eval(repr(objective), names)) == hash(objective)


# --- the weight function inside ---


@pytest.mark.parametrize(
    ("short", "weight"),
    [
        ({}, reweigh.KL(tau=1.0)),
        ({"tau": 3.0, "offset": 0.5}, reweigh.KL(tau=3.0, offset=0.5)),
        ({"tau": None, "gamma": -1.0}, reweigh.KL(tau=None, gamma=-1.0)),
        ({"tau": 2.0, "divergence": "revkl"}, reweigh.ReverseKL(tau=2.0)),
        ({"divergence": "revkl", "gamma": None, "scaled": False}, reweigh.ReverseKL()),
        ({"tau": 2.0, "divergence": "chi2", "scaled": True}, reweigh.ChiSquare(tau=2.0, scaled=True)),
    ],
    ids=str,
)
def test_the_short_form_is_the_weight_function(short, weight):
    objective = RGD(weight=weight, warmup=2)
    assert objective == RGD(**short, warmup=2)
    assert objective.weight is weight
    for name, value in short.items():
        assert getattr(objective, name) == value
    assert reweigh.method(str(reweigh.Method(objective=objective))).objective == objective


def test_a_short_form_beside_a_weight_function_replaces_its_parameters():
    objective = RGD(weight=reweigh.ReverseKL(tau=1.0, offset=0.5), normalize="mean")
    changed = dataclasses.replace(objective, tau=3.0)
    assert changed == RGD(weight=reweigh.ReverseKL(tau=3.0, offset=0.5), normalize="mean")
    with pytest.raises(ValueError, match=r"`divergence` names a weight function and `weight` is one.*Give one"):
        RGD(weight=reweigh.KL(), divergence="revkl")
    with pytest.raises(ValueError, match="ReverseKL has no parameter `gamma`"):
        dataclasses.replace(objective, gamma=0.5)
    with pytest.raises(
        TypeError, match=r"`weight` must be a weight function, got <class .*KL.*reweigh\.KL\(tau=1\.0\)"
    ):
        RGD(weight=reweigh.KL)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tua'\. Did you mean 'tau'\?"):
        RGD(tua=1.0)


@pytest.mark.parametrize(
    ("objective", "level"),
    [
        (RGD(tau=3.0, offset=0.5), 3.5),
        (RGD(tau=3.0, divergence="chi2", offset=-1.0), 2.0),
        (RGD(tau=None, gamma=0.5), None),
        (Redescending(tau=2.0), None),
        (Redescending(tau=2.0, power=0.0), 2.0),
    ],
    ids=repr,
)
def test_the_clip_level_is_where_weights_stop_changing(objective, level):
    assert objective.clip_level == level
    at = 2.0 if level is None else level
    below, here, above = objective.weigh(np.array([at - 0.1, at, at + 5.0]), ()).weights
    assert (here == pytest.approx(above, rel=1e-12)) == (level is not None)
    assert below != here


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@pytest.mark.parametrize("options", [{}, {"divergence": "revkl"}, {"divergence": "chi2", "offset": 0.1}], ids=str)
def test_the_surrogate_has_the_second_derivative_of_phi(framework, options):
    """Against finite differences of the gradient; without `surrogate` the weights are constants."""
    theta, step = np.array([0.4, 0.9, 1.3]), 1e-5

    def loss(x, surrogate=True):
        return rgd(x**2, tau=2.0, surrogate=surrogate, **options)

    def slope(at, surrogate=True):
        return gradient(lambda x: loss(x, surrogate), at, framework)

    np.testing.assert_allclose(slope(theta), slope(theta, False), rtol=1e-12)
    wanted = np.stack([(slope(theta + step * e) - slope(theta - step * e)) / (2 * step) for e in np.eye(3)])
    if framework is JAX:
        hessian = numbers(jax.hessian(loss)(jnp.asarray(theta)))
    else:
        hessian = numbers(torch.autograd.functional.hessian(loss, torch.tensor(theta)))
    np.testing.assert_allclose(hessian, wanted, rtol=1e-6, atol=1e-9)


def test_what_is_searched_can_be_built():
    for tau in RGD.search["tau"]:
        assert RGD(tau=tau).weight == reweigh.KL(tau=tau)
