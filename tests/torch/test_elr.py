"""Early-learning regularisation against its authors' gradient, worked out in NumPy, and by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import reweigh
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import ELR, Closure, Plain

BATCHES = ([0, 3, 5, 6], [1, 2, 3], [5, 0, 4], [6, 3, 1])


def rows():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 3, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(4, (7,), generator=draw)


def linear(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Linear(3, 4, bias=False).to(dtype)


def closure_of(model, index, **more):
    inputs, target = rows()
    index = torch.as_tensor(index)
    batch = inputs[index].to(model.weight.dtype), target[index]
    return Closure(model=model, batch=batch, losses=CrossEntropy(), index=index, **more)


@pytest.mark.parametrize(("lam", "beta"), [(3.0, 0.7), (7.0, 0.9), (1.0, 0.0)])
def test_the_authors_gradient(lam, beta):
    """Lemma 2 of the paper: p - y + lam g, with g_c = p_c / (1 - <p, t>) times the sum of (t_k - t_c) p_k."""
    model = linear()
    stepper = ELR(lam=lam, beta=beta, n=7).start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x, y = rows()[0].numpy(), np.eye(4)[rows()[1].numpy()]
    w, t = model.weight.detach().numpy().copy(), np.zeros((7, 4))
    for index in BATCHES:
        p = np.exp(x[index] @ w.T)
        p /= p.sum(1, keepdims=True)
        t[index] = beta * t[index] + (1 - beta) * p
        own = t[index]
        agreement = (own * p).sum(1)
        value = -np.log((p * y[index]).sum(1)).mean() + lam * np.log(1 - agreement).mean()
        g = p / (1 - agreement)[:, None] * (agreement[:, None] - own)
        w = w - 0.3 * (p - y[index] + lam * g).T @ x[index] / len(index)
        loss = stepper.step(optimizer, closure_of(model, index))
        assert loss.item() == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(model.weight.detach(), w, rtol=1e-9)
        np.testing.assert_allclose(stepper.averages, t, rtol=1e-9)


def test_sure_predictions_are_held_off_their_limits():
    """Softmax of (90, 0): held to (1 - 1e-4, 1e-4), so that the term is finite and has no gradient."""
    model = linear(torch.float32)
    with torch.no_grad():
        model.weight.zero_()[0] = 90.0
    stepper = ELR(lam=1.0, beta=0.5, n=2).start(model)
    closure = Closure(
        model=model, batch=(torch.ones(1, 3), torch.tensor([0])), losses=CrossEntropy(), index=torch.tensor([1])
    )
    before = model.weight.detach().clone()
    loss = stepper.step(torch.optim.SGD(model.parameters(), lr=1.0), closure)
    held = np.array([1 - 1e-4, 1e-4, 1e-4, 1e-4])
    assert loss.item() == pytest.approx(np.log(1 - (0.5 * held / held.sum() * held).sum()), rel=1e-5)
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)


def test_parts_of_a_batch_are_one_batch_and_the_objective_sees_plain_losses():
    seen = []

    def rgd(losses):
        seen.append(losses.detach())
        return reweigh.RGD(tau=3.0)(losses, count=4)

    models = [linear() for _ in range(2)]
    for model, parts in zip(models, ([[0, 3, 5, 6]], [[0, 3], [5, 6]]), strict=True):
        stepper, optimizer = ELR(n=7).start(model), torch.optim.SGD(model.parameters(), lr=0.1)
        stepper.step(optimizer, [closure_of(model, index, objective=rgd) for index in parts])
    torch.testing.assert_close(models[0].weight, models[1].weight)
    plain = closure_of(linear(), [0, 3, 5, 6]).unit_losses()
    torch.testing.assert_close(seen[0], plain.detach())


def test_it_goes_on_from_a_state():
    models = [linear(torch.float32) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    whole, cut = (ELR(n=7).start(model) for model in models)
    for index in BATCHES[:2]:
        whole.step(optimizers[0], closure_of(models[0], index))
    models[1].load_state_dict(models[0].state_dict())
    cut.load_state_dict(copy.deepcopy(whole.state_dict()))
    for stepper, model, optimizer in zip((whole, cut), models, optimizers, strict=True):
        stepper.step(optimizer, closure_of(model, BATCHES[2]))
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=0, atol=0)


def test_without_strength_it_is_the_plain_step():
    models = [linear() for _ in range(2)]
    for config, model in zip((ELR(lam=0.0, n=7), Plain()), models, strict=True):
        config.start(model).step(torch.optim.SGD(model.parameters(), lr=0.1), closure_of(model, BATCHES[0]))
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_what_is_missing_is_named():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"`n` must be known .* got None\. Give len\(dataset\)"):
        ELR().start(model)
    with pytest.raises(ValueError, match="needs to know n"):
        reweigh.method("elr").build(reweigh.Context())
    with pytest.raises(ValueError, match=r"`index` must be given in the closure for ELR.*index=indices"):
        ELR(n=7).start(model).step(optimizer, Closure(model=model, batch=rows(), losses=CrossEntropy()))
    with pytest.raises(TypeError, match="`closure` must be a"):
        ELR(n=7).start(model).step(optimizer, lambda: model.weight.sum())
    for wrong in ({"lam": -1.0}, {"beta": 1.0}, {"n": 0}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be"):
            ELR(**wrong)
    image = nn.Conv2d(1, 2, 1)
    pixels = Closure(
        model=image,
        batch=(torch.ones(1, 1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)),
        losses=CrossEntropy(),
        index=torch.tensor([0]),
    )
    with pytest.raises(ValueError, match=r"one logit per class and row, \(B, C\), got shape \(1, 2, 2, 2\)"):
        ELR(n=7).start(image).step(torch.optim.SGD(image.parameters(), lr=0.1), pixels)


def test_it_holds_a_network_back_from_wrong_labels():
    """Two classes apart, three tenths of the labels wrong: plainly learnt by heart, with the term they are not."""
    draw = torch.Generator().manual_seed(0)
    right = torch.arange(100) % 2
    inputs = torch.randn(100, 50, generator=draw)
    inputs[:, 0] += 12.0 * right - 6.0
    labels = torch.where(torch.arange(100) % 10 < 3, 1 - right, right)
    learnt = []
    for config in (Plain(), ELR(lam=5.0, beta=0.7, n=100)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, 2))
        stepper, optimizer = config.start(model), torch.optim.SGD(model.parameters(), lr=0.05)
        closure = Closure(model=model, batch=(inputs, labels), losses=CrossEntropy(), index=torch.arange(100))
        for _ in range(300):
            stepper.step(optimizer, closure)
        learnt.append(float((model(inputs).argmax(1) == right).float().mean()))
    assert learnt[0] < 0.8
    assert learnt[1] > 0.95
