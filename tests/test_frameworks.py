"""The same numbers everywhere people train: NumPy, torch, JAX, traced, mapped, compiled, in half precision."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from frameworks import JAX, TORCH, gradient, numbers
from hypothesis import given, settings
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from reweigh import RGD, rgd

BATCH = [0.2, 0.7, 1.5, 4.0]
CALLS = {
    "kl": {},
    "chi2": {"tau": 3.0, "divergence": "chi2"},
    "revkl": {"tau": 3.0, "divergence": "revkl"},
    "unclipped": {"tau": None, "gamma": 0.5},
    "offset": {"tau": 2.0, "offset": 0.3},
    "normalised": {"normalize": "mean"},
    "surrogate": {"surrogate": True},
    "skip": {"nonfinite": "skip"},
    "count": {"count": 7},
}
# What torch.autograd says for weights of 1/4 e^(l/2), worked by hand.
KL_GRADIENT = np.exp(np.minimum(BATCH, 1.0) / 2) / 4


@settings(max_examples=20)
@given(
    # Few lengths: JAX compiles every new one.
    losses=st.sampled_from((1, 3, 8)).flatmap(
        lambda n: st.lists(st.floats(-2.0, 20.0, width=32), min_size=n, max_size=n).map(np.array)
    ),
    tau=st.floats(0.1, 10.0),
    name=st.sampled_from(sorted(CALLS)),
)
def test_values_and_gradients_agree(losses, tau, name):
    call = CALLS[name] | ({"tau": tau} if name != "unclipped" else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy alone says when most losses are negative
        expected = float(rgd(losses, **call))
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
        of_torch = float(rgd(TORCH.array(losses, dtype), **call))
        of_jax = float(rgd(JAX.array(losses, dtype), **call))
        scale = max(1.0, abs(expected), float(np.abs(losses).max() * 3))
        assert of_torch == pytest.approx(expected, abs=4 * tolerance * scale)
        assert of_jax == pytest.approx(expected, abs=4 * tolerance * scale)
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
        found = [gradient(lambda x: rgd(x, **call), losses, framework, dtype) for framework in (TORCH, JAX)]
        np.testing.assert_allclose(found[0], found[1], rtol=4 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CALLS)
def test_jit(name):
    call = CALLS[name]
    losses = jnp.array(BATCH)
    plain, traced = jax.value_and_grad(lambda x: rgd(x, **call)), jax.jit(jax.value_and_grad(lambda x: rgd(x, **call)))
    for eager, compiled in zip(plain(losses), traced(losses), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-12)


def test_one_jitted_program_serves_many_clip_levels():
    traces = []

    @jax.jit
    def loss(losses, tau):
        traces.append(tau)
        return RGD(tau=tau)(losses)

    for tau in (0.5, 1.0, 3.0):
        assert float(loss(jnp.array(BATCH), tau)) == pytest.approx(float(rgd(np.array(BATCH), tau)))
    assert len(traces) == 1


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_vmap_and_per_sample_gradients(framework):
    batches = np.stack([BATCH, BATCH[::-1], [0.0, 0.1, 8.0, 1.0]])
    vmap, grad = (torch.vmap, torch.func.grad) if framework is TORCH else (jax.vmap, jax.grad)
    many = framework.array(batches, "float64")
    np.testing.assert_allclose(numbers(vmap(rgd)(many)), [float(rgd(b)) for b in batches], rtol=1e-12)
    expected = np.exp(np.minimum(batches, 1.0) / 2) / 4
    np.testing.assert_allclose(numbers(vmap(grad(rgd))(many)), expected, rtol=1e-12)
    masks = framework.array(batches > 0.15, "bool")
    found = vmap(lambda x, m: rgd(x, mask=m))(many, masks)
    np.testing.assert_allclose(numbers(found), [float(rgd(b, mask=b > 0.15)) for b in batches], rtol=1e-12)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_the_second_derivative_has_no_term_through_the_weight(framework):
    """With losses l = t^2/2, d/dt mean(w t) = mean(w): the weight is a constant in every order."""
    t = np.sqrt(2 * np.array(BATCH))
    if framework is JAX:
        hessian = numbers(jax.hessian(lambda x: rgd(x**2 / 2))(jnp.array(t)))
    else:
        hessian = numbers(torch.func.jacrev(torch.func.grad(lambda x: rgd(x**2 / 2)))(TORCH.array(t)))
        x = TORCH.array(t).requires_grad_()
        (first,) = torch.autograd.grad(rgd(x**2 / 2), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        np.testing.assert_allclose(numbers(second), KL_GRADIENT, rtol=1e-12)
    np.testing.assert_allclose(hessian, np.diag(KL_GRADIENT), rtol=1e-12, atol=1e-15)


# --- torch.compile: no graph break anywhere, hence fullgraph=True ---


@pytest.fixture(autouse=True)
def _forget_graphs():
    """Graphs are cached by code object; the limit on their number is meant for one program, not for many tests."""
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["unclipped", "offset", "normalised", "surrogate", "skip"])
def test_compile(name):
    call = CALLS[name]
    compiled = torch.compile(lambda x: rgd(x, **call), fullgraph=True, backend="aot_eager")
    losses = TORCH.array(BATCH).requires_grad_()
    loss = compiled(losses)
    assert float(loss.detach()) == pytest.approx(float(rgd(TORCH.array(BATCH), **call)), rel=1e-12)
    (found,) = torch.autograd.grad(loss, losses)
    expected = gradient(lambda x: rgd(x, **call), BATCH, TORCH)
    np.testing.assert_allclose(numbers(found), expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch, about torch
def test_compile_to_native_code():
    objective = RGD(tau=1.0)

    @torch.compile(fullgraph=True)
    def loss(losses, mask, own):
        return objective(losses, mask=mask, sample_weight=own)

    losses = TORCH.array([*BATCH, 9.0], "float32").requires_grad_()
    value = loss(losses, torch.arange(5) < 4, torch.ones(5))
    assert float(value.detach()) == pytest.approx(2.570587, rel=1e-6)
    (found,) = torch.autograd.grad(value, losses)
    np.testing.assert_allclose(numbers(found)[:4], KL_GRADIENT, rtol=1e-6)


@pytest.mark.parametrize("divergence", ["kl", "chi2", "revkl"])
def test_a_schedule_of_tau_does_not_compile_a_graph_a_value(divergence):
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, t: rgd(x, tau=t, divergence=divergence), fullgraph=True, backend=graphs)
    losses = TORCH.array(BATCH)
    for tau in np.linspace(0.5, 4.0, 10).tolist():
        assert float(compiled(losses, tau)) == pytest.approx(float(rgd(np.array(BATCH), tau, divergence)), rel=1e-12)
    assert graphs.frame_count <= 2  # one for the first number, one for all others


def test_a_tensor_as_tau_does_not_compile_a_graph_a_value():
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, t: rgd(x, tau=t), fullgraph=True, backend=graphs)
    for tau in (0.5, 1.0, 1.5, 2.0, 3.0):
        found = compiled(TORCH.array(BATCH), torch.tensor(tau, dtype=torch.float64))
        assert float(found) == pytest.approx(float(rgd(np.array(BATCH), tau)), rel=1e-12)
    assert graphs.frame_count <= 2


def test_objectives_as_arguments_share_graphs():
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, objective: objective(x), fullgraph=True, backend=graphs)
    for tau in np.linspace(0.5, 4.0, 10).tolist():
        found = float(compiled(TORCH.array(BATCH), RGD(tau=tau)))
        assert found == pytest.approx(float(rgd(np.array(BATCH), tau)), rel=1e-12)
    assert graphs.frame_count <= 3


def test_lengths_may_vary_under_compile():
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(rgd, fullgraph=True, backend=graphs)
    for n in range(3, 9):
        losses = torch.linspace(0, 3, n)
        assert float(compiled(losses)) == pytest.approx(float(rgd(losses)), rel=1e-6)
    assert graphs.frame_count <= 2


# --- precision ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """Losses that autocast makes in half precision are weighed and averaged in float32."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 1), torch.randn(64, 8)
    with torch.autocast("cpu", dtype):
        losses = layer(x).squeeze(-1) ** 2
        loss = rgd(losses)
    losses.retain_grad()
    loss.backward()
    exact = losses.detach().double().numpy()
    weights = np.exp(np.clip(exact, 0, 1) / 2)
    assert float(loss.detach()) == pytest.approx((weights * exact).mean(), rel=2**-8)
    assert losses.grad is not None
    np.testing.assert_allclose(numbers(losses.grad), weights / 64, rtol=2**-7)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mean_over_many_half_precision_losses_is_right(framework, dtype):
    """100,000 units of loss 1: a sum in float16 would be infinite, a count in bfloat16 wrong."""
    losses = framework.array(np.ones(100_000), dtype)
    loss = rgd(losses, tau=1.0)
    assert loss.dtype == losses.dtype
    assert float(loss) == pytest.approx(np.exp(0.5), rel=2**-8)
    mask = framework.array(np.arange(100_000) % 2, "bool")
    assert float(rgd(losses, mask=mask)) == pytest.approx(np.exp(0.5), rel=2**-8)


@pytest.mark.parametrize("framework", [TORCH, JAX], ids=str)
def test_dtype_is_kept(framework):
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        losses = framework.array(BATCH, dtype)
        for call in CALLS.values():
            assert rgd(losses, **call).dtype == losses.dtype
            assert (
                rgd(losses, reduction="none", **{k: v for k, v in call.items() if k != "count"}).dtype == losses.dtype
            )


# --- devices: nothing may ask for values or make a tensor on the CPU ---


@pytest.mark.parametrize("name", CALLS)
def test_meta_device(name):
    losses = torch.empty(4, device="meta", requires_grad=True)
    mask = torch.empty(4, dtype=torch.bool, device="meta")
    loss = rgd(losses, mask=mask, sample_weight=torch.empty(4, device="meta"), **CALLS[name])
    loss.backward()
    assert loss.device.type == "meta"
    assert loss.shape == ()
    assert losses.grad is not None


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_of_another_device(name):
    with FakeTensorMode():
        losses = torch.empty(4, device="cuda", dtype=torch.float16)
        loss = rgd(losses, mask=torch.empty(4, dtype=torch.bool, device="cuda"), **CALLS[name])
        assert loss.device.type == "cuda"
        assert loss.dtype == torch.float16
        objective = RGD(warmup=3)
        _, state = objective.apply(losses, objective.init())
        assert state["step"].device.type == "cuda"


def test_no_graph_is_kept_between_steps():
    objective = RGD(warmup=1)
    losses = torch.rand(4, requires_grad=True)
    _, state = objective.apply(losses * 2, objective.init())
    _, state = objective.apply(losses * 2, state)
    assert not any(value.requires_grad for value in state.values())
