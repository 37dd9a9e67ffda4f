"""Steps against hand-worked numbers, double loops, brute force and finite differences."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.multiprocessing as mp
from children import ended
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reweigh
from reweigh.torch.losses import MSE, CrossEntropy
from reweigh.torch.steps import (
    CRT,
    ELR,
    L2RW,
    RECOVER,
    SAM,
    Closure,
    Coteaching,
    FineTune,
    MetaWeightNet,
    Plain,
    Projected,
    WeightDecay,
)


def point(*values, dtype=torch.float64):
    """A model that is nothing but a vector."""
    model = nn.Module()
    model.theta = nn.Parameter(torch.tensor(values, dtype=dtype))
    return model


def sgd(model, lr=1.0, **settings):
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def network(seed=0, dtype=torch.float32, norm=True):
    torch.manual_seed(seed)
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Tanh(), nn.Linear(5, 4)]
    return nn.Sequential(*layers).to(dtype)


def data(n=8, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 3, generator=generator, dtype=dtype)
    return inputs, torch.randint(0, 4, (n,), generator=generator)


def closure_of(model, batch, objective=torch.mean, meta=None):
    return Closure(model=model, batch=batch, losses=CrossEntropy(), objective=objective, meta_batch=meta)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(first, second, **tolerance):
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


EXACT = {"rtol": 0, "atol": 0}


# --- plain ---


def test_plain_is_the_optimizers_own_step():
    model = network()
    other = copy.deepcopy(model)
    inputs, target = data()
    optimizer, reference = sgd(model, 0.1, momentum=0.9), sgd(other, 0.1, momentum=0.9)
    stepper = Plain().start(model)
    for _ in range(3):
        loss = stepper.step(optimizer, closure_of(model, (inputs, target)))
        reference.zero_grad()
        expected = nn.functional.cross_entropy(other(inputs), target)
        expected.backward()
        reference.step()
        torch.testing.assert_close(loss, expected.detach())
        assert not loss.requires_grad
    assert_same(snapshot(other), snapshot(model))


@pytest.mark.parametrize("step", [Plain(), SAM(rho=0.1), SAM(rho=0.5, adaptive=True)], ids=repr)
def test_accumulation_of_two_micro_batches_equals_one_batch(step):
    inputs, target = data(8, dtype=torch.float64)
    whole, parts = network(dtype=torch.float64, norm=False), network(dtype=torch.float64, norm=False)
    one, two = step.start(whole), step.start(parts)
    objective = reweigh.RGD(tau=1.0)
    first, second = sgd(whole, 0.5), sgd(parts, 0.5)
    for _ in range(3):
        a = one.step(first, closure_of(whole, (inputs, target), objective))
        b = two.step(
            second,
            [
                closure_of(parts, (inputs[half], target[half]), lambda losses: objective(losses, count=8))
                for half in (slice(0, 4), slice(4, 8))
            ],
        )
        torch.testing.assert_close(a, b)
    assert_same(snapshot(whole), snapshot(parts))


@pytest.mark.parametrize(
    "step",
    [
        CRT(share=0.9, steps=3, class_counts=(3, 3, 1, 1)),
        Coteaching(forget=0.0, steps=3),
        ELR(n=8),
        FineTune(share=0.9, steps=3),
    ],
    ids=lambda step: type(step).__name__,
)
def test_micro_batches_count_by_their_rows(step):
    (inputs, target), clean = data(8, dtype=torch.float64), data(4, seed=1, dtype=torch.float64)
    whole, parts = network(dtype=torch.float64, norm=False), network(dtype=torch.float64, norm=False)
    one, two = step.start(whole), step.start(parts)
    first, second = sgd(whole, 0.5), sgd(parts, 0.5)

    def closure(model, rows, clean_rows):
        return Closure(
            model=model,
            batch=(inputs[rows], target[rows]),
            losses=CrossEntropy(),
            objective=lambda losses: losses.sum() / 8,
            meta_batch=(clean[0][clean_rows], clean[1][clean_rows]),
            index=torch.arange(8)[rows],
        )

    for _ in range(3):
        a = one.step(first, closure(whole, slice(8), slice(4)))
        b = two.step(second, [closure(parts, slice(5), slice(1)), closure(parts, slice(5, 8), slice(1, 4))])
        torch.testing.assert_close(a, b)
    assert_same(snapshot(whole), snapshot(parts))


def test_vectors_and_nothing_are_refused():
    model = point(1.0)
    stepper = Plain().start(model)
    with pytest.raises(ValueError, match="one number"):
        stepper.step(sgd(model), lambda: model.theta)
    with pytest.raises(ValueError, match="empty"):
        stepper.step(sgd(model), [])
    with pytest.raises(ValueError, match="remembers nothing"):
        stepper.load_state_dict({"net": 1})


# --- SAM ---

CURVATURE = torch.tensor([2.0, 4.0], dtype=torch.float64)


def quadratic(model):
    return lambda: 0.5 * (CURVATURE * model.theta**2).sum()


def test_sam_on_a_quadratic_by_hand():
    # theta (1.5, 1), gradient (3, 4) of length 5; climb 0.5 * (0.6, 0.8) to (1.8, 1.4); gradient there (3.6, 5.6)
    model = point(1.5, 1.0)
    loss = SAM(rho=0.5).start(model).step(sgd(model, 0.25), quadratic(model))
    assert loss.item() == pytest.approx(0.5 * (2 * 2.25 + 4))
    assert model.theta.tolist() == pytest.approx([1.5 - 0.9, 1.0 - 1.4])
    assert model.theta.grad.tolist() == pytest.approx([3.6, 5.6])


def test_adaptive_sam_on_a_quadratic_by_hand():
    # theta (2, -1), gradient (4, -4); |theta| g = (8, -4) of length sqrt(80); e = 0.5 (16, -4) / sqrt(80)
    model = point(2.0, -1.0)
    SAM(rho=0.5, adaptive=True).start(model).step(sgd(model, 0.0), quadratic(model))
    climbed = [2 + 8 / math.sqrt(80), -1 - 2 / math.sqrt(80)]
    assert model.theta.grad.tolist() == pytest.approx([2 * climbed[0], 4 * climbed[1]])


def test_sam_default_radius_depends_on_the_form():
    assert SAM().radius == 0.05
    assert SAM(adaptive=True).radius == 2.0
    assert SAM(rho=0.3, adaptive=True).radius == 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sam_puts_parameters_back_bit_for_bit(dtype):
    model = network(dtype=dtype, norm=False)
    before = snapshot(model)
    inputs, target = data()
    SAM(rho=0.7).start(model).step(sgd(model, 0.0), closure_of(model, (inputs.to(dtype), target)))
    assert_same(before, snapshot(model), **EXACT)


def test_sam_puts_parameters_back_when_the_second_pass_fails():
    model = point(1.5, 1.0)
    calls = []

    def fails_later():
        calls.append(model.theta.detach().clone())
        if len(calls) == 2:
            raise RuntimeError("on purpose")
        return quadratic(model)()

    with pytest.raises(RuntimeError, match="on purpose"):
        SAM(rho=0.5).start(model).step(sgd(model), fails_later)
    assert calls[1].tolist() == pytest.approx([1.8, 1.4])
    assert torch.equal(model.theta.detach(), calls[0])


def test_sam_at_a_flat_point_stays():
    model = point(0.0, 0.0)
    SAM().start(model).step(sgd(model), quadratic(model))
    assert model.theta.tolist() == [0.0, 0.0]


def test_sam_updates_running_statistics_once():
    plain, sharp = network(), network()
    batch = data()
    Plain().start(plain).step(sgd(plain, 0.0), closure_of(plain, batch))
    SAM(rho=1.0).start(sharp).step(sgd(sharp, 0.0), closure_of(sharp, batch))
    assert_same(snapshot(plain), snapshot(sharp), **EXACT)
    assert sharp[1].num_batches_tracked == 1


def test_sam_with_rgd_against_a_double_loop():
    model, other = network(norm=False, dtype=torch.float64), network(norm=False, dtype=torch.float64)
    inputs, target = data(dtype=torch.float64)
    stepper, optimizer = SAM(rho=0.3).start(model), sgd(model, 0.2)
    for _ in range(3):
        stepper.step(optimizer, closure_of(model, (inputs, target), reweigh.RGD(tau=1.0)))
    for _ in range(3):

        def gradient():
            losses = nn.functional.cross_entropy(other(inputs), target, reduction="none")
            total = 0.0
            for loss in losses:
                weight = math.exp(min(max(loss.item(), 0.0), 1.0) / 2)
                total = total + weight * loss / len(losses)
            return torch.autograd.grad(total, list(other.parameters()))

        slopes = gradient()
        length = math.sqrt(sum(float((g**2).sum()) for g in slopes))
        with torch.no_grad():
            for p, g in zip(other.parameters(), slopes, strict=True):
                p.add_(0.3 * g / length)
        uphill = gradient()
        with torch.no_grad():
            for p, g, u in zip(other.parameters(), slopes, uphill, strict=True):
                p.sub_(0.3 * g / length).sub_(0.2 * u)
    assert_same(snapshot(other), snapshot(model), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("step", [Plain(), SAM(rho=0.3), SAM(rho=0.5, adaptive=True)], ids=repr)
def test_gradient_scaler_changes_nothing_in_float32(step):
    model, scaled = network(), network()
    batch = data()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    one, two = step.start(model), step.start(scaled)
    first, second = sgd(model, 0.1, momentum=0.9), sgd(scaled, 0.1, momentum=0.9)
    for _ in range(4):
        a = one.step(first, closure_of(model, batch))
        b = two.step(second, closure_of(scaled, batch), scaler=scaler)
        assert torch.equal(a, b)
    assert_same(snapshot(model), snapshot(scaled))
    assert scaler.get_scale() == 2.0**12  # it grew, so its update was called each step


@pytest.mark.parametrize("bad_pass", [1, 2])
def test_overflow_in_either_pass_skips_the_update(bad_pass):
    model = point(1.5, 1.0, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    calls = []

    def overflows():
        calls.append(model.theta.detach().clone())
        factor = float("inf") if len(calls) == bad_pass else 1.0
        return factor * model.theta.square().sum()

    SAM(rho=0.5).start(model).step(sgd(model), overflows, scaler=scaler)
    assert model.theta.tolist() == [1.5, 1.0]
    assert len(calls) == 2
    assert calls[1].isfinite().all()
    assert scaler.get_scale() == 2.0
    # and the next step is a sound one
    SAM(rho=0.5).start(model).step(sgd(model, 0.1), overflows, scaler=scaler)
    assert model.theta.isfinite().all()
    assert model.theta.tolist() != [1.5, 1.0]


def test_sam_unscales_before_it_measures():
    # The gradient is 1e16 and fits; times the scale it fits too, but its square does not.
    model, scaled = point(1.0, 1.0, dtype=torch.float32), point(1.0, 1.0, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    SAM(rho=0.5).start(model).step(sgd(model, 1e-17), lambda: 5e15 * model.theta.square().sum())
    SAM(rho=0.5).start(scaled).step(sgd(scaled, 1e-17), lambda: 5e15 * scaled.theta.square().sum(), scaler=scaler)
    assert model.theta[0] < 1.0
    assert torch.equal(model.theta, scaled.theta)


def test_sam_clipping_hook_sees_true_gradients():
    model = point(1.5, 1.0, dtype=torch.float32)
    optimizer = sgd(model, 0.0)
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(model.theta.grad.tolist()))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    SAM(rho=0.5).start(model).step(optimizer, lambda: 0.5 * (CURVATURE.float() * model.theta**2).sum(), scaler=scaler)
    assert seen == [pytest.approx([3.6, 5.6])]


def test_sam_keeps_the_state_of_a_module_objective():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, losses):
            self.calls += 1
            return losses.mean()

    model, objective = network(), Counting()
    SAM().start(model).step(sgd(model, 0.1), closure_of(model, data(), objective))
    assert objective.calls == 1


def test_sam_without_gradient_is_refused():
    model = point(1.0)
    other = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="needs a gradient"):
        SAM().start(model).step(sgd(model), lambda: other.sum())


# --- RECOVER ---


def linear(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Linear(3, 1).to(dtype)


def regression(n=6, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 3, generator=generator, dtype=dtype)
    return inputs, scale * torch.randn(n, 1, generator=generator, dtype=dtype)


def squares(model, batch, meta=None):
    return Closure(model=model, batch=batch, losses=MSE(), meta_batch=meta)


@pytest.mark.parametrize("a", [1.0, 0.3])
def test_recover_on_a_full_batch_is_the_gradient_of_the_tilted_loss(a):
    # On the same batch each step the corrections cancel exactly, whatever a is.
    model, batch, lam = linear(), regression(), 0.7
    stepper, optimizer = RECOVER(lam=lam, a=a).start(model), sgd(model, 0.05)
    for _ in range(4):
        other = copy.deepcopy(model)
        losses = (other(batch[0]) - batch[1]).square().squeeze(1)
        expected = lam * (losses / lam).exp().mean().log()
        expected.backward()
        value = stepper.step(optimizer, squares(model, batch))
        torch.testing.assert_close(value, expected.detach())
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_recover_on_changing_batches_against_the_written_out_recursion():
    model, lam, a = linear(), 2.0, 0.4
    batches = [regression(seed=s, scale=0.5) for s in range(5)]
    stepper, optimizer = RECOVER(lam=lam, a=a).start(model), sgd(model, 0.05)
    theta = [p.detach().clone() for p in model.parameters()]
    previous, u, v = None, None, None

    def h(parameters, batch):
        parameters = [p.clone().requires_grad_() for p in parameters]
        value = ((nn.functional.linear(batch[0], *parameters) - batch[1]).square().squeeze(1) / lam).exp().mean()
        return value.detach(), torch.autograd.grad(value, parameters)

    for batch in batches:
        stepper.step(optimizer, squares(model, batch))
        value, slope = h(theta, batch)
        if previous is None:
            u, v = value, slope
        else:
            old_value, old_slope = h(previous, batch)
            u = value + (1 - a) * (u - old_value)
            v = [s + (1 - a) * (w - o) for s, w, o in zip(slope, v, old_slope, strict=True)]
        previous = theta
        theta = [p - 0.05 * lam * w / u for p, w in zip(theta, v, strict=True)]
        for ours, expected in zip(model.parameters(), theta, strict=True):
            torch.testing.assert_close(ours.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("a", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("there", [0.5, 1.5, 1.9, 2.1, 2.5, 50.0])
def test_recover_starts_again_where_the_carried_past_is_not_positive(there, a):
    """The batch's mean of exponentials falls from `there` to 1 between two steps, and the old estimate is 1."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    stepper, still = RECOVER(lam=1.0, a=a).start(model), sgd(model, 0.0)
    for weight, slope in ((1.0, 0.0), (0.0, math.log(there))):
        nn.init.constant_(model.weight, weight)
        inputs = torch.full((1, 1), slope, dtype=torch.float64)
        closure = Closure(model=model, batch=(inputs, inputs), losses=lambda output, _: output[:, 0])
        stepper.step(still, closure)
    carried = 1.0 + 1.0 - there
    u = math.exp(stepper.state_dict()["value"].item())
    assert u == pytest.approx(a + (1 - a) * carried if carried > 0 else 1.0)
    assert u > a  # what v is divided by


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3])
def test_recover_stays_finite_for_large_and_jumping_losses(scale):
    model = linear(dtype=torch.float32)
    stepper, optimizer = RECOVER(lam=0.5, a=0.1).start(model), sgd(model, 1e-3 / scale)
    for step in range(30):
        size = scale if step % 3 else 0.1
        stepper.step(optimizer, squares(model, regression(seed=step, dtype=torch.float32, scale=size)))
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert gradients.isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())


def test_recover_micro_batches_equal_the_batch():
    whole, parts = linear(), linear()
    one, two = RECOVER(lam=0.5, a=0.4).start(whole), RECOVER(lam=0.5, a=0.4).start(parts)
    for seed in range(4):
        inputs, target = regression(7, seed)
        a = one.step(sgd(whole, 0.02), squares(whole, (inputs, target)))
        pieces = [squares(parts, (inputs[s], target[s])) for s in (slice(0, 2), slice(2, 7))]
        b = two.step(sgd(parts, 0.02), pieces)
        torch.testing.assert_close(a, b)
    assert_same(snapshot(whole), snapshot(parts), rtol=1e-9, atol=1e-9)


def test_recover_updates_running_statistics_once():
    plain, model = network(), network()
    stepper = RECOVER(lam=5.0, a=0.5).start(model)
    for seed in range(3):
        Plain().start(plain).step(sgd(plain, 0.0), closure_of(plain, data(seed=seed)))
        stepper.step(sgd(model, 0.0), closure_of(model, data(seed=seed)))
    assert_same(snapshot(plain), snapshot(model), **EXACT)


def test_recover_state_dict_round_trip():
    model = linear()
    stepper = RECOVER(lam=1.0, a=0.3).start(model)
    assert stepper.state_dict() == {}
    for seed in range(2):
        stepper.step(sgd(model, 0.05), squares(model, regression(seed=seed)))
    twin = copy.deepcopy(model)
    resumed = RECOVER(lam=1.0, a=0.3).start(twin)
    resumed.load_state_dict(copy.deepcopy(stepper.state_dict()))
    for seed in range(2, 5):
        stepper.step(sgd(model, 0.05), squares(model, regression(seed=seed)))
        resumed.step(sgd(twin, 0.05), squares(twin, regression(seed=seed)))
    assert_same(snapshot(model), snapshot(twin), **EXACT)


# --- learning weights from a meta set ---


def brute_force_slopes(model, batch, meta, lr, size=1e-6):
    """Central differences of the meta loss after a virtual step, one unit's weight at a time."""
    weight, bias = model.weight.detach(), model.bias.detach()

    def after(eps):
        parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        losses = (nn.functional.linear(batch[0], *parameters) - batch[1]).square().squeeze(1)
        slopes = torch.autograd.grad((eps * losses).sum(), parameters)
        stepped = [p.detach() - lr * s for p, s in zip(parameters, slopes, strict=True)]
        return (nn.functional.linear(meta[0], *stepped) - meta[1]).square().mean().item()

    slopes = []
    for i in range(len(batch[0])):
        eps = torch.zeros(len(batch[0]), dtype=torch.float64)
        eps[i] = size
        slopes.append((after(eps) - after(-eps)) / (2 * size))
    return slopes


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_l2rw_weights_by_brute_force(seed):
    model, batch, meta = linear(seed), regression(6, seed), regression(4, seed + 10)
    slopes = brute_force_slopes(model, batch, meta, lr=0.1)
    raw = [max(0.0, -slope) for slope in slopes]
    assert 0 < sum(r > 0 for r in raw) < 6  # some help and some harm
    expected = torch.tensor([r / sum(raw) for r in raw], dtype=torch.float64)
    losses = (model(batch[0]) - batch[1]).square().squeeze(1)
    gradients = torch.autograd.grad((expected * losses).sum(), list(model.parameters()))
    moved = [p.detach() - 0.1 * g for p, g in zip(model.parameters(), gradients, strict=True)]
    stepper = L2RW().start(model)
    loss = stepper.step(sgd(model, 0.1), squares(model, batch, meta))
    torch.testing.assert_close(stepper.weights, expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(loss, (expected * losses).sum().detach(), rtol=1e-6, atol=1e-8)
    for ours, theirs in zip(model.parameters(), moved, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-8)


def test_l2rw_where_nothing_helps_all_weights_are_zero():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    batch = torch.ones(3, 1), -torch.ones(3, 1)
    stepper = L2RW().start(model)
    stepper.step(sgd(model, 0.1), squares(model, batch, (torch.ones(1, 1), torch.ones(1, 1))))
    assert stepper.weights.tolist() == [0.0, 0.0, 0.0]
    assert model.weight.item() == 0.0


def test_l2rw_micro_batches_equal_the_batch():
    whole, parts, meta = linear(), linear(), regression(4, 9)
    inputs, target = regression(6)
    L2RW().start(whole).step(sgd(whole, 0.1), squares(whole, (inputs, target), meta))
    pieces = [squares(parts, (inputs[s], target[s]), meta) for s in (slice(0, 2), slice(2, 6))]
    L2RW().start(parts).step(sgd(parts, 0.1), pieces)
    assert_same(snapshot(whole), snapshot(parts))


@pytest.mark.parametrize("step", [L2RW(), MetaWeightNet()], ids=repr)
def test_bilevel_steps_update_running_statistics_once(step):
    plain, model = network(), network()
    batch, meta = data(), data(seed=7)
    Plain().start(plain).step(sgd(plain, 0.0), closure_of(plain, batch))
    step.start(model).step(sgd(model, 0.0), closure_of(model, batch, meta=meta))
    assert_same(snapshot(plain), snapshot(model), **EXACT)


@pytest.mark.parametrize("normalize", [False, True])
def test_meta_weight_net_gradient_against_finite_differences(normalize):
    model, batch, meta = linear(), regression(5), regression(4, 9)
    stepper = MetaWeightNet(hidden=3, normalize=normalize).start(model)
    closure, optimizer = squares(model, batch, meta), sgd(model, 0.3)
    parameters = list(stepper.net.parameters())
    gradients = torch.autograd.grad(stepper.meta_loss(optimizer, closure), parameters)
    weight, bias = model.weight.detach(), model.bias.detach()

    def after():
        """The same written out: weights from the net, one gradient step, meta loss."""
        theta = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        losses = (nn.functional.linear(batch[0], *theta) - batch[1]).square().squeeze(1)
        (w1, b1), (w2, b2) = ([*layer.parameters()] for layer in (stepper.net[0], stepper.net[2]))
        hidden = (losses.detach()[:, None] * w1.T + b1).clamp_min(0)
        v = torch.sigmoid(hidden @ w2.T + b2).squeeze(1).detach()
        total = (v * losses).sum() / (v.sum() if normalize else len(v))
        slopes = torch.autograd.grad(total, theta)
        stepped = [p.detach() - 0.3 * s for p, s in zip(theta, slopes, strict=True)]
        return (nn.functional.linear(meta[0], *stepped) - meta[1]).square().mean().item()

    assert stepper.meta_loss(optimizer, closure).item() == pytest.approx(after())
    size = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in range(parameter.numel()):
            entry = parameter.detach().view(-1)[index]
            entry += size
            up = after()
            entry -= 2 * size
            down = after()
            entry += size
            assert gradient.view(-1)[index].item() == pytest.approx((up - down) / (2 * size), rel=1e-4, abs=1e-8)


def test_meta_weight_net_learns_to_distrust_wrong_labels():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    inputs, _ = regression(60, dtype=torch.float32)
    truth = inputs.sum(1, keepdim=True)
    noisy = truth.clone()
    noisy[:20] = -3 * truth[:20] + 5
    meta_inputs = regression(20, 5, dtype=torch.float32)[0]
    closure = squares(model, (inputs, noisy), (meta_inputs, meta_inputs.sum(1, keepdim=True)))
    stepper, optimizer = MetaWeightNet(hidden=20, lr=1e-2).start(model), sgd(model, 0.05)
    for _ in range(300):
        stepper.step(optimizer, closure)
    weights = stepper.weights
    assert weights[:20].mean() < 0.5 * weights[20:].mean()


def test_meta_weight_net_settings():
    model = linear()
    noise, imbalance = MetaWeightNet().start(model), MetaWeightNet(setting="imbalance").start(model)
    group = noise._optimizer.param_groups[0]
    assert isinstance(noise._optimizer, torch.optim.Adam)
    assert (group["lr"], group["weight_decay"]) == (1e-3, 1e-4)
    group = imbalance._optimizer.param_groups[0]
    assert isinstance(imbalance._optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (1e-5, 0.9, True, 5e-4)
    losses = torch.tensor([0.1, 2.0, 9.0], dtype=torch.float64)
    assert imbalance.weigh(losses).sum().item() == pytest.approx(1.0)
    assert noise.weigh(losses).sum().item() < 1.0
    assert [layer.out_features for layer in noise.net if isinstance(layer, nn.Linear)] == [100, 1]


def test_meta_weight_net_seed_is_its_own():
    model = linear()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = MetaWeightNet(seed=3).start(model)
    assert torch.equal(torch.rand(1), expected)
    assert_same(snapshot(first.net), snapshot(MetaWeightNet(seed=3).start(model).net), **EXACT)
    assert not torch.equal(first.net[0].weight, MetaWeightNet(seed=4).start(model).net[0].weight)


def test_meta_weight_net_state_dict_round_trip():
    model, meta = linear(), regression(4, 9)
    stepper = MetaWeightNet(lr=0.05).start(model)
    for seed in range(3):
        stepper.step(sgd(model, 0.05), squares(model, regression(seed=seed), meta))
    twin = copy.deepcopy(model)
    resumed = MetaWeightNet(lr=0.05, seed=9).start(twin)
    resumed.load_state_dict(copy.deepcopy(stepper.state_dict()))
    for seed in range(3, 6):
        stepper.step(sgd(model, 0.05), squares(model, regression(seed=seed), meta))
        resumed.step(sgd(twin, 0.05), squares(twin, regression(seed=seed), meta))
    assert_same(snapshot(model), snapshot(twin), **EXACT)
    assert_same(snapshot(stepper.net), snapshot(resumed.net), **EXACT)


# --- projection ---


@given(theta=st.lists(st.floats(-5, 5), min_size=2, max_size=2), radius=st.floats(0.1, 4))
def test_ball_projection_by_brute_force(theta, radius):
    model = point(*theta)
    Projected(radius=radius).project(list(model.parameters()))
    ours = model.theta.detach()
    assert ours.norm() <= radius * (1 + 1e-9)
    angles = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
    radii = torch.linspace(0, radius, 41, dtype=torch.float64)[:, None]
    grid = torch.stack([radii * angles.cos(), radii * angles.sin()], -1).reshape(-1, 2)
    start = torch.tensor(theta, dtype=torch.float64)
    assert (ours - start).norm() <= (grid - start).norm(dim=1).min() + 1e-9


@given(
    theta=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    bounds=st.tuples(st.floats(-3, 3), st.floats(-3, 3)).map(sorted),
)
def test_box_projection_by_brute_force(theta, bounds):
    model = point(*theta)
    Projected(low=bounds[0], high=bounds[1]).project(list(model.parameters()))
    grid = torch.linspace(bounds[0], bounds[1], 1001, dtype=torch.float64)
    for ours, start in zip(model.theta.tolist(), theta, strict=True):
        assert bounds[0] <= ours <= bounds[1]
        assert abs(ours - start) <= (grid - start).abs().min().item() + 1e-12


def test_ball_spans_all_parameters():
    model = nn.ParameterList([nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([4.0]))])
    optimizer = sgd(model, 0.0)
    Projected(radius=1.0, base=SAM()).start(model).step(optimizer, lambda: model[0].sum() + model[1].sum())
    assert [p.item() for p in model] == pytest.approx([0.6, 0.8])


def test_projection_leaves_what_is_inside_and_zero():
    model = point(0.0, 0.0)
    Projected(radius=1.0).project(list(model.parameters()))
    assert model.theta.tolist() == [0.0, 0.0]
    model = point(-3.0, 3.0)
    Projected(low=-1.0).project(list(model.parameters()))
    assert model.theta.tolist() == [-1.0, 3.0]


@pytest.mark.parametrize("base", [Plain(), SAM(), RECOVER(), L2RW(), MetaWeightNet()], ids=repr)
def test_projected_needs_what_its_base_needs(base):
    step = Projected(radius=1.0, base=base)
    for name in ("needs", "needs_losses", "own_objective"):
        assert getattr(step, name) == getattr(base, name)
    assert Projected(radius=1.0).needs == ()


def test_projected_takes_a_step_and_not_its_name():
    with pytest.raises(TypeError, match=r"`base` must be a step, got 'sam'.*base=SAM\(\)"):
        Projected(radius=1.0, base="sam")


def test_projected_passes_state_to_its_base():
    model = linear()
    stepper = Projected(radius=10.0, base=RECOVER()).start(model)
    stepper.step(sgd(model, 0.1), squares(model, regression()))
    assert set(stepper.state_dict()) == {"value", "gradient", "previous"}
    again = Projected(radius=10.0, base=RECOVER()).start(model)
    again.load_state_dict(stepper.state_dict())
    assert again.state_dict()["value"] == stepper.state_dict()["value"]


# --- what is refused, and what is kept ---


@pytest.mark.parametrize("step", [RECOVER(), L2RW(), MetaWeightNet()], ids=repr)
def test_steps_that_need_unit_losses_say_so(step):
    model = linear()
    stepper = step.start(model)
    assert step.needs_losses
    with pytest.raises(TypeError, match="plain function"):
        stepper.step(sgd(model), lambda: model.weight.sum())
    with pytest.raises(ValueError, match="bfloat16"):
        stepper.step(sgd(model), squares(model, regression()), scaler=torch.amp.GradScaler("cpu"))
    if "meta_loader" in step.needs:
        with pytest.raises(ValueError, match="meta_batch"):
            stepper.step(sgd(model), squares(model, regression()))


def test_meta_weight_net_refuses_micro_batches():
    model = linear()
    one = squares(model, regression(), regression())
    with pytest.raises(ValueError, match="whole batch"):
        MetaWeightNet().start(model).step(sgd(model), [one, one])


@pytest.mark.parametrize("step", [Plain(), SAM(), RECOVER(), L2RW(), MetaWeightNet(), Projected(radius=9.0)], ids=repr)
def test_no_graph_is_kept_and_the_repr_evaluates_back(step):
    model = network()
    stepper = step.start(model)
    closure = closure_of(model, data(), meta=data(seed=3))
    for _ in range(2):
        assert not stepper.step(sgd(model, 0.01), closure).requires_grad
    kept = [value for value in vars(stepper).values() if isinstance(value, torch.Tensor)]
    assert all(value.grad_fn is None for value in kept)
    assert eval(repr(step)) == step
    assert step.cost


@pytest.mark.parametrize("step", [Plain(), SAM(), RECOVER(), L2RW(), MetaWeightNet()], ids=repr)
def test_forward_passes_run_in_the_context_of_the_closure(step):
    model = network()
    inputs, target = data()
    context = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    seen = []

    def losses(output, labels):
        seen.append(output.dtype)
        return CrossEntropy()(output, labels)

    closure = Closure(model=model, batch=(inputs, target), losses=losses, meta_batch=data(seed=1), context=context)
    step.start(model).step(sgd(model, 0.1), closure)
    assert set(seen) == {torch.bfloat16}
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAM(rho=0.0), "rho"),
        (lambda: RECOVER(lam=0.0), "lam"),
        (lambda: RECOVER(a=0.0), "`a`"),
        (lambda: MetaWeightNet(setting="noisy"), "'noise'"),
        (lambda: Projected(), "radius"),
        (lambda: Projected(radius=1.0, low=0.0), "not both"),
        (lambda: Projected(low=1.0, high=0.0), "above"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- data parallel ---

PARALLEL = {"plain": Plain(), "sam": SAM(rho=0.3), "recover": RECOVER(lam=0.5, a=0.4), "l2rw": L2RW()}


def train(step, model, wrapped, rows):
    stepper, optimizer, meta = step.start(wrapped), sgd(model, 0.1), regression(4, 9)
    for seed in range(3):
        inputs, target = regression(8, seed)
        stepper.step(optimizer, squares(wrapped, (inputs[rows], target[rows]), meta))
    return snapshot(model)


def worker(rank, store, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = slice(0, 4) if rank == 0 else slice(4, 8)
    found = {}
    for name, step in PARALLEL.items():
        model = linear()
        found[name] = train(step, model, DistributedDataParallel(model), rows)
    model = linear()
    wrapped = DistributedDataParallel(model)
    stepper = MetaWeightNet(lr=0.1).start(wrapped)
    for seed in range(3):
        inputs, target = regression(8, seed)
        stepper.step(sgd(model, 0.1), squares(wrapped, (inputs[rows], target[rows]), regression(4, 9)))
    found["net"] = snapshot(stepper.net)
    torch.save(found, f"{results}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.processes
def test_two_ranks_equal_the_whole_batch(tmp_path):
    ranks = mp.spawn(worker, args=(tmp_path / "store", tmp_path), nprocs=2, join=False)
    with ended(ranks.processes):
        while not ranks.join():
            pass
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, step in PARALLEL.items():
        model = linear()
        assert_same(train(step, model, model, slice(0, 8)), first[name])
    for name in first:
        assert_same(first[name], second[name], **EXACT)


# --- classifier re-training ---


def test_crt_trains_a_new_classifier_on_frozen_features():
    model, (inputs, target) = network(norm=False), data(16)
    counts = torch.bincount(target, minlength=4)
    optimizer = sgd(model, lr=0.1, momentum=0.9, weight_decay=0.1)
    stepper = CRT(share=0.5, steps=4, class_counts=tuple(counts.tolist())).start(model)
    for _ in range(2):
        stepper.step(optimizer, closure_of(model, (inputs, target)))
    trunk = snapshot(model[0])
    features = model[:-1](inputs).detach()
    for _ in range(2):
        stepper.step(optimizer, closure_of(model, (inputs, target)))
    assert_same(trunk, snapshot(model[0]), **EXACT)
    # The same two steps on a layer of its own: from zero, every class counting the same.
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    own = sgd(layer, lr=0.1, momentum=0.9, weight_decay=0.1)
    weights = (len(target) / (4 * counts.float()))[target]
    for _ in range(2):
        own.zero_grad()
        (weights * CrossEntropy()(layer(features), target)).mean().backward()
        own.step()
    assert_same(snapshot(layer), snapshot(model[-1]), rtol=1e-5, atol=1e-6)


def test_crt_goes_on_from_a_state():
    batch, steppers, models = data(16), [], []
    for _ in range(2):
        model = network(norm=False)
        models.append((model, sgd(model, lr=0.1)))
        steppers.append(CRT(share=0.5, steps=4, class_counts=(4, 4, 4, 4)).start(model))
    (model, optimizer), (other, _) = models
    for _ in range(3):
        steppers[0].step(optimizer, closure_of(model, batch))
    other.load_state_dict(model.state_dict())
    steppers[1].load_state_dict(steppers[0].state_dict())
    for stepper, (one, its_optimizer) in zip(steppers, models, strict=True):
        stepper.step(its_optimizer, closure_of(one, batch))
    assert_same(snapshot(model), snapshot(other), **EXACT)


def test_crt_names_what_it_needs():
    with pytest.raises(ValueError, match="needs to know class_counts"):
        reweigh.method("crt").build(reweigh.Context(steps=10))
    built = reweigh.method("crt").build(reweigh.Context(steps=10, class_counts=[3, 1]))
    assert (built.step.steps, built.step.class_counts) == (10, (3, 1))
    with pytest.raises(ValueError, match=r"last layer is an nn\.Linear, got no parameters"):
        built.step.start(nn.Flatten())


# --- co-teaching ---


def test_coteaching_against_the_authors_code():
    """Three steps of Han et al.: each network on the other's smallest losses, at a rate that rises."""
    model, batch = network(norm=False), data(10)
    stepper = Coteaching(forget=0.4, gradual=0.5, steps=4).start(model)
    first, second = copy.deepcopy(model), copy.deepcopy(stepper.twin)
    assert not torch.equal(model[0].weight, stepper.twin[0].weight)
    optimizer = sgd(model, lr=0.1, momentum=0.9)
    optimizers = [sgd(net, lr=0.1, momentum=0.9) for net in (first, second)]
    for step in range(3):
        stepper.step(optimizer, closure_of(model, batch))
        inputs, target = batch
        kept = int((1 - 0.4 * min(step / 2, 1.0)) * 10 + 1e-9)
        losses = [nn.functional.cross_entropy(net(inputs), target, reduction="none") for net in (first, second)]
        chosen = [torch.sort(values.detach()).indices[:kept] for values in losses]
        for its, mine, theirs in zip(optimizers, losses, reversed(chosen), strict=True):
            its.zero_grad()
            mine[theirs].mean().backward()
            its.step()
        assert int((stepper.weights > 0).sum()) == kept
    assert_same(snapshot(first), snapshot(model), rtol=1e-6, atol=1e-6)
    assert_same(snapshot(second), snapshot(stepper.twin), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_coteaching_makes_a_second_optimizer_of_every_kind(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=0.03, weight_decay=0.2)
    stepper = Coteaching(forget=0.4, steps=4).start(model)
    stepper.step(optimizer, Closure(model=model, batch=data(), losses=CrossEntropy()))
    (ours,), (theirs,) = optimizer.param_groups, stepper.twin_optimizer.param_groups
    assert {name: value for name, value in theirs.items() if name != "params"} == {
        name: value for name, value in ours.items() if name != "params"
    }


def test_coteaching_goes_on_from_a_state():
    batch, whole, cut = data(10), network(norm=False), network(norm=False)
    config = Coteaching(forget=0.4, steps=4)
    whole_optimizer, cut_optimizer = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (whole, cut))
    one, two = config.start(whole), config.start(cut)
    for _ in range(2):
        one.step(whole_optimizer, closure_of(whole, batch))
    cut.load_state_dict(whole.state_dict())
    cut_optimizer.load_state_dict(copy.deepcopy(whole_optimizer.state_dict()))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for stepper, net, optimizer in ((one, whole, whole_optimizer), (two, cut, cut_optimizer)):
        stepper.step(optimizer, closure_of(net, batch))
    assert_same(snapshot(whole), snapshot(cut), **EXACT)
    with pytest.raises(ValueError, match="would be ignored"):
        reweigh.method("rgd+coteaching").build(reweigh.Context(steps=4))


def test_weight_decay_is_the_optimizers_own():
    batch, models = data(), [network(norm=False) for _ in range(2)]
    optimizers = [sgd(models[0], lr=0.1, momentum=0.9), sgd(models[1], lr=0.1, momentum=0.9, weight_decay=0.01)]
    for _ in range(3):
        for config, model, optimizer in zip((WeightDecay(strength=0.01), Plain()), models, optimizers, strict=True):
            config.start(model).step(optimizer, closure_of(model, batch))
    assert_same(snapshot(models[0]), snapshot(models[1]), **EXACT)
