"""JAX: the helper against gradients by hand, state under jit and scan, Optax, Flax and two devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import children
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import reweigh
from reweigh.integrations.jax import init, value_and_grad
from reweigh.objectives.absgd import ABSGD
from reweigh.objectives.group_dro import GroupDRO
from reweigh.objectives.term_ema import TERMEma

WORKERS = Path(__file__).parent / "workers"
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(12, 3)), RNG.normal(size=12)
BATCHES = RNG.normal(size=(5, 12, 3)), RNG.normal(size=(5, 12))
GROUPS = np.arange(12) % 3


def squares(w: Any, x: Any, y: Any) -> Any:
    return (x @ w - y) ** 2


@pytest.mark.shows("JAX, Optax", "objective")
def test_value_weights_and_gradient_by_hand() -> None:
    w = np.array([0.3, -0.2, 0.5])
    residual = X @ w - Y
    losses = residual**2
    weights = np.exp(np.clip(losses, 0, 1) / 2)
    (loss, step), gradient = value_and_grad(squares, reweigh.RGD(tau=1.0))((), w, X, Y)
    assert float(loss) == pytest.approx((weights * losses).mean())
    assert float(step.plain) == pytest.approx(losses.mean())
    np.testing.assert_allclose(step.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(step.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(gradient, 2 * (weights * residual) @ X / 12, rtol=1e-12)
    assert step.state == ()
    assert step.aux is None


@pytest.mark.parametrize("given", ["term_ema:t=0.5", reweigh.method("term_ema:t=0.5")])
def test_a_text_is_the_objective_it_names(given: Any) -> None:
    w = np.array([0.3, -0.2, 0.5])
    (loss, step), gradient = value_and_grad(squares, given)(init(given), w, X, Y)
    expected = TERMEma(t=0.5)
    (same_loss, same_step), same_gradient = value_and_grad(squares, expected)(init(expected), w, X, Y)
    assert float(loss) == float(same_loss)
    np.testing.assert_array_equal(gradient, same_gradient)
    assert {k: float(v) for k, v in step.state.items()} == {k: float(v) for k, v in same_step.state.items()}


@pytest.mark.refuses("JAX, Optax", "sampler", "step", "average")
@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("class_uniform", "sampler 'class_uniform': it sees batches that are drawn already"),
        ("sam", "step 'sam': it gives one gradient"),
        ("ema", "average 'ema': it gives gradients and keeps no parameters"),
    ],
)
def test_parts_without_a_place_are_refused(part: str, reason: str) -> None:
    carries = "value_and_grad carries loss, objective and post of a method"
    with pytest.raises(ValueError, match=f"{carries}, got .* with the {reason}"):
        value_and_grad(squares, f"rgd+{part}")


@pytest.mark.shows("JAX, Optax", "row weight")
def test_masks_weights_and_counts_by_hand() -> None:
    w = np.array([0.3, -0.2, 0.5])
    mask, own = np.arange(12) % 3 != 0, np.linspace(0.5, 2.0, 12)
    residual = X @ w - Y
    losses = residual**2
    weights = np.exp(np.clip(losses, 0, 1) / 2)
    evaluate = value_and_grad(squares, reweigh.RGD(tau=1.0))
    (_, step), gradient = evaluate((), w, X, Y, mask=mask, sample_weight=own)
    measure = mask * own
    np.testing.assert_allclose(gradient, 2 * (measure * weights * residual) @ X / measure.sum(), rtol=1e-12)
    assert float(step.plain) == pytest.approx((measure * losses).sum() / measure.sum())
    (_, _), of_count = evaluate((), w, X, Y, mask=mask, count=20)
    np.testing.assert_allclose(of_count, 2 * (mask * weights * residual) @ X / 20, rtol=1e-12)


def test_extra_outputs_and_other_arguments() -> None:
    def with_aux(w: Any, x: Any, y: Any) -> Any:
        return squares(w, x, y), {"prediction": x @ w}

    (_, step), (by_w, by_y) = value_and_grad(with_aux, reweigh.RGD(tau=1.0), has_aux=True, argnums=(0, 2))(
        (), jnp.ones(3), X, jnp.asarray(Y)
    )
    np.testing.assert_allclose(step.aux["prediction"], X.sum(1))
    assert by_w.shape == (3,)
    np.testing.assert_allclose(by_y, -2 * step.weights * (X.sum(1) - Y) / 12, rtol=1e-12)


def test_losses_that_are_no_numbers_can_be_skipped() -> None:
    y = Y.copy()
    y[4] = np.nan
    w = jnp.array([0.3, -0.2, 0.5])
    (loss, step), _ = value_and_grad(squares, reweigh.RGD(tau=1.0), nonfinite="skip")((), w, X, y)
    keep = np.arange(12) != 4
    (expected, _), _ = value_and_grad(squares, reweigh.RGD(tau=1.0))((), w, X[keep], Y[keep])
    assert float(loss) == pytest.approx(float(expected))
    np.testing.assert_allclose(step.plain, step.losses.sum() / 11)
    assert np.isfinite(step.weights).all()


@pytest.mark.shows("JAX, Optax", "compile")
@pytest.mark.parametrize(
    "objective",
    [TERMEma(t=0.5), ABSGD(), GroupDRO(n_groups=3), reweigh.RGD(tau=1.0, warmup=2)],
    ids=lambda o: type(o).__name__,
)
def test_a_scan_under_jit_is_a_loop(objective: Any) -> None:
    """The reference threads the state by hand and differentiates `apply` directly, step by step, without jit."""
    optimizer = optax.adam(0.1)
    evaluate = value_and_grad(squares, objective)

    @jax.jit
    def scanned(w: Any, batches: Any) -> Any:
        def body(carry: Any, batch: Any) -> Any:
            w, moments, state = carry
            (loss, step), gradient = evaluate(state, w, *batch, groups=GROUPS)
            updates, moments = optimizer.update(gradient, moments, w)
            return (optax.apply_updates(w, updates), moments, step.state), (loss, step.plain)

        return jax.lax.scan(body, (w, optimizer.init(w), init(objective)), batches)

    (w, _, state), (losses, plain) = scanned(jnp.zeros(3), tuple(map(jnp.asarray, BATCHES)))

    by_hand, memory = jnp.zeros(3), objective.init()
    moments = optimizer.init(by_hand)
    for index, (x, y) in enumerate(zip(*BATCHES, strict=True)):
        start = memory
        loss, memory = objective.apply(squares(by_hand, x, y), start, groups=GROUPS)
        gradient = jax.grad(lambda v, x=x, y=y, s=start: objective.apply(squares(v, x, y), s, groups=GROUPS)[0])(
            by_hand
        )
        assert float(plain[index]) == pytest.approx(float(squares(by_hand, x, y).mean()), rel=1e-5)
        assert float(losses[index]) == pytest.approx(float(loss), rel=1e-5)
        updates, moments = optimizer.update(gradient, moments, by_hand)
        by_hand = optax.apply_updates(by_hand, updates)
    np.testing.assert_allclose(w, by_hand, rtol=1e-5)
    for name, value in memory.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5)


@pytest.mark.shows("JAX, Optax", "accumulation")
def test_micro_batches_of_optax_are_the_whole_batch() -> None:
    evaluate = value_and_grad(squares, reweigh.RGD(tau=1.0))
    w = jnp.array([0.3, -0.2, 0.5])
    several = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=3)
    state, updated = several.init(w), w
    for rows in np.split(np.arange(12), 3):
        _, gradient = evaluate((), w, X[rows], Y[rows])
        updates, state = several.update(gradient, state, w)
        updated = optax.apply_updates(updated, updates)
    _, whole = evaluate((), w, X, Y)
    np.testing.assert_allclose(updated, w - 0.1 * whole, rtol=1e-6)


def test_flax_modules() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(3, 1, use_bias=False, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    kernel = model.kernel[...][:, 0]

    def losses_of(model: Any, x: Any, y: Any) -> Any:
        return (model(x)[:, 0] - y) ** 2

    evaluate = value_and_grad(losses_of, reweigh.RGD(tau=1.0), transform=nnx.value_and_grad)
    (loss, step), gradients = evaluate((), model, jnp.asarray(X), jnp.asarray(Y))
    (expected, _), by_hand = value_and_grad(squares, reweigh.RGD(tau=1.0))((), kernel, X, Y)
    assert float(loss) == pytest.approx(float(expected))
    np.testing.assert_allclose(gradients["kernel"][...][:, 0], by_hand, rtol=1e-6)
    assert step.weights.shape == (12,)


@pytest.mark.shows("JAX, Optax", "token weight")
def test_tokens_have_weights_of_their_own() -> None:
    x, y = BATCHES
    w = np.array([0.3, -0.2, 0.5])
    own, mask = RNG.uniform(0.2, 3.0, y.shape), RNG.random(y.shape) < 0.7
    residual = x @ w - y
    weights = np.exp(np.clip(residual**2, 0, 1) / 2) * own * mask
    _, gradient = value_and_grad(squares, reweigh.RGD(tau=1.0))((), w, x, y, mask=mask, sample_weight=own)
    np.testing.assert_allclose(
        gradient, 2 * np.einsum("bt,bt,btd->d", weights, residual, x) / (own * mask).sum(), rtol=1e-12
    )


@pytest.mark.shows("JAX, Optax", "packing")
def test_packed_sequences_are_sequences_of_their_own() -> None:
    """Four sequences in one row of twelve, each weighted by its mean loss, and counted by its tokens."""
    w, lengths = jnp.array([0.3, -0.2, 0.5]), (3, 2, 6, 1)
    numbers = np.repeat(np.arange(4), lengths)

    def sequences(w: Any, x: Any, y: Any) -> Any:
        return jax.ops.segment_sum(squares(w, x, y), numbers, num_segments=4) / np.array(lengths)

    evaluate = value_and_grad(sequences, reweigh.RGD(tau=1.0))
    (loss, _), gradient = evaluate((), w, X, Y, sample_weight=np.array(lengths, float))
    expected, slope = 0.0, 0.0
    for rows in np.split(np.arange(12), np.cumsum(lengths)[:-1]):
        residual = X[rows] @ np.asarray(w) - Y[rows]
        weight = np.exp(np.clip((residual**2).mean(), 0, 1) / 2)
        expected += weight * (residual**2).sum() / 12
        slope += 2 * weight * residual @ X[rows] / 12
    assert float(loss) == pytest.approx(expected)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10)


@pytest.mark.shows("JAX, Optax", "AMP")
def test_losses_in_half_precision_are_weighted_in_single() -> None:
    w = jnp.array([0.3, -0.2, 0.5])

    def halves(w: Any, x: Any, y: Any) -> Any:
        return squares(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))

    x, y = jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32)
    (loss, step), gradient = value_and_grad(halves, reweigh.RGD(tau=1.0))((), w, x, y)
    assert (loss.dtype, step.weights.dtype, gradient.dtype) == (jnp.bfloat16, jnp.float32, w.dtype)
    losses = np.asarray(halves(w, x, y), np.float64)
    np.testing.assert_allclose(step.weights, np.exp(np.clip(losses, 0, 1) / 2), rtol=1e-6)


@pytest.mark.shows("JAX, Optax", "DDP")
@pytest.mark.processes
def test_four_devices_are_one() -> None:
    done = children.run(
        [sys.executable, WORKERS / "jax_sharded.py"],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_ENABLE_X64": "0"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert sum(line.startswith("jit") for line in lines) == 4
    for check_vma in (True, False):
        assert sum(line.startswith(f"shard_map {check_vma}") for line in lines) == 13
