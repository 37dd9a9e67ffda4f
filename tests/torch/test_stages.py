"""Steps with two stages: against the authors' formulas worked out in NumPy, a convex solver, and by hand."""

from __future__ import annotations

import copy
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

import reweigh
from reweigh.bench.train.copies import CopiedRows
from reweigh.torch.losses import CrossEntropy
from reweigh.torch.steps import AFR, DFR, JTT, Closure, Projected, TrainingRows, dfr
from reweigh.torch.steps._stages import Passed
from reweigh.torch.steps.afr import weights_of


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2)).to(dtype)


def rows(n=80, dtype=torch.float64):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=draw, dtype=dtype)
    y = (x[:, 0] + 0.5 * torch.randn(n, generator=draw, dtype=dtype) > 0).long()
    return TrainingRows(inputs=x, targets=y, groups=torch.arange(n) % 4)


def closure_of(model, training, size=None):
    batch = training.inputs[:size], training.targets[:size]
    return Closure(model=model, batch=batch, losses=CrossEntropy(), training_rows=training)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


# --- AFR ---


def test_afr_weights_by_hand():
    """Probabilities 0.9, 0.5 and 0.2 of the right class; the first two rows share a class of two."""
    outputs = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.8, 0.2]], dtype=torch.float64).log()
    seen = Passed(outputs, outputs, torch.tensor([0, 0, 1]), None)
    raw = [math.exp(-1.8) / 2, math.exp(-1.0) / 2, math.exp(-0.4)]
    expected = [value / sum(raw) for value in raw]
    assert weights_of(seen, 2.0).tolist() == pytest.approx(expected, rel=1e-12)
    # gamma 0: every class weighs the same
    assert weights_of(seen, 0.0).tolist() == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize(("pull", "lr"), [(0.0, 0.01), (0.3, 0.5)])
def test_afr_is_the_authors_second_stage(pull, lr):
    """Their loop in NumPy: fixed weights, gradients worked out by hand and cut to length one, and the pull."""
    model, training = network(), rows()
    stepper = AFR(gamma=4.0, pull=pull, lr=lr, iterations=40, held_out=0.25, seed=3, steps=2, n=80).start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper.step(optimizer, closure_of(model, training))
    other = copy.deepcopy(model)  # takes the second step without the second stage
    torch.manual_seed(5)
    stepper.step(optimizer, closure_of(model, training))
    torch.manual_seed(5)
    own = torch.optim.SGD(other.parameters(), lr=0.1)
    nn.functional.cross_entropy(other(training.inputs), training.targets).backward()
    own.step()
    for name, value in other[0].state_dict().items():  # the trunk is the first stage's
        torch.testing.assert_close(model[0].state_dict()[name], value)

    other.eval()
    held = (stepper.copies == 0).numpy()
    assert held.sum() == 20
    z = other[:-1](training.inputs).detach().numpy()[held]
    y = np.eye(2)[training.targets.numpy()[held]]
    w0, b0 = other[-1].weight.detach().numpy().copy(), other[-1].bias.detach().numpy().copy()

    def probabilities(w, b):
        e = np.exp(z @ w.T + b)
        return e / e.sum(1, keepdims=True)

    weights = np.exp(-4.0 * (probabilities(w0, b0) * y).sum(1)) * len(y) / (y @ y.sum(0))
    weights /= weights.sum()
    w, b = w0.copy(), b0.copy()
    for _ in range(40):
        error = weights[:, None] * (probabilities(w, b) - y)
        dw, db = error.T @ z + 2 * pull * (w - w0), error.sum(0) + 2 * pull * (b - b0)
        length = math.sqrt((dw**2).sum() + (db**2).sum())
        cut = min(1.0, 1.0 / (length + 1e-6))
        w, b = w - lr * cut * dw, b - lr * cut * db
    np.testing.assert_allclose(model[-1].weight.detach().numpy(), w, rtol=1e-9)
    np.testing.assert_allclose(model[-1].bias.detach().numpy(), b, rtol=1e-9)


def test_a_strong_pull_keeps_the_first_stages_layer():
    moved = []
    for pull in (0.0, 10.0):
        model, training = network(), rows()
        start = snapshot(model)["3.weight"]
        stepper = AFR(pull=pull, lr=0.04, steps=1, n=80).start(model)
        stepper.step(torch.optim.SGD(model.parameters(), lr=1e-9), closure_of(model, training))
        moved.append(float((model[3].weight.detach() - start).norm()))
    assert moved[1] < 0.1 * moved[0]


# --- DFR ---


def test_dfr_solves_the_authors_problem():
    """With groups of one size every balanced set is the whole held-out set: one convex problem, solved by another."""
    model, training = network(), rows(80)
    stepper = DFR(strength=0.5, repeats=2, held_out=0.5, steps=1, n=80, seed=2).start(model)
    held = stepper.held
    groups = torch.full((80,), -1)
    groups[held] = torch.arange(40) % 4
    training = TrainingRows(inputs=training.inputs, targets=training.targets, groups=groups)
    stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure_of(model, training))
    model.eval()
    z = model[:-1](training.inputs).detach().numpy()
    standard = ((z - z.mean(0)) / z.std(0))[held.numpy()]
    sign = 2.0 * training.targets.numpy()[held.numpy()] - 1
    w, b = cp.Variable(5), cp.Variable()
    # liblinear's intercept is the weight of a constant feature, and is penalised with the others
    losses = cp.sum(cp.logistic(-cp.multiply(sign, standard @ w + b)))
    cp.Problem(cp.Minimize(cp.norm1(w) + cp.abs(b) + 0.5 * losses)).solve()
    outputs = model(training.inputs).detach().numpy()[held.numpy()]
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], standard @ w.value + b.value, atol=2e-2)


def test_dfr_is_the_authors_pipeline_on_the_rows_it_drew(monkeypatch):
    """A scaler of all training rows, a solution per balanced set, the mean of these applied to scaled features."""
    model, training = network(), rows(200)
    training = TrainingRows(
        inputs=training.inputs, targets=training.targets, groups=(torch.arange(200) % 5 == 0).long()
    )
    drawn, balanced = [], dfr._balanced
    monkeypatch.setattr(dfr, "_balanced", lambda *args: drawn.append(balanced(*args)) or drawn[-1])
    stepper = DFR(strength=0.3, repeats=4, held_out=0.5, steps=1, n=200).start(model)
    stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure_of(model, training))
    model.eval()
    features, targets = model[:-1](training.inputs).detach().numpy(), training.targets.numpy()
    scaler = StandardScaler().fit(features)
    # scikit-learn 1.8 has renamed the penalty.
    penalty = {"penalty": "l1"} if LogisticRegression().penalty == "l2" else {"l1_ratio": 1.0}
    solutions = [
        LogisticRegression(C=0.3, solver="liblinear", random_state=0, **penalty).fit(
            scaler.transform(features[chosen]), targets[chosen]
        )
        for chosen in drawn
    ]
    weight, bias = (np.mean([getattr(one, name) for one in solutions], axis=0) for name in ("coef_", "intercept_"))
    outputs = model(training.inputs).detach().numpy()
    theirs = scaler.transform(features) @ weight[0] + bias
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0], theirs, rtol=1e-6, atol=1e-6)
    assert len(drawn) == 4
    assert len({tuple(np.sort(chosen)) for chosen in drawn}) == 4


def test_dfr_draws_as_many_rows_of_each_group(monkeypatch):
    model, training = network(), rows(200)
    groups = (torch.arange(200) % 10 == 0).long()
    seen = []
    stepper = DFR(repeats=3, held_out=0.5, steps=1, n=200).start(model)
    solve = stepper._solve
    monkeypatch.setattr(stepper, "_solve", lambda x, y, classes: seen.append(len(x)) or solve(x, y, classes))
    training = TrainingRows(inputs=training.inputs, targets=training.targets, groups=groups)
    stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure_of(model, training))
    assert seen == [2 * int(groups[stepper.held].sum())] * 3


def test_dfr_with_three_classes_and_a_dead_feature():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight[5], model[0].bias[5] = 0.0, -1.0
    x = torch.randn(300, 3)
    y = x.argmax(1)
    training = TrainingRows(inputs=x, targets=y, groups=torch.arange(300) % 2)
    stepper = DFR(held_out=0.5, steps=1, n=300).start(model)
    stepper.step(torch.optim.SGD(model.parameters(), lr=0.01), closure_of(model, training))
    assert not model[2].weight[:, 5].any()
    assert float((model(x).argmax(1) == y).float().mean()) > 0.85


# --- JTT ---


def test_jtt_is_the_authors_two_trainings():
    """Errors are appended `up` times to the data, and a model that starts as the first did is trained on all of it."""
    training = rows(40)
    model = network()
    start = snapshot(model)
    stepper = JTT(first=0.5, up=3, steps=20).start(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(9):
        stepper.step(optimizer, closure_of(model, training))
        assert stepper.copies is None
    first = copy.deepcopy(model)
    buffers = [copy.deepcopy(optimizer.state[p]["momentum_buffer"]) for p in model.parameters()]
    torch.manual_seed(9)
    stepper.step(optimizer, closure_of(model, training))
    # the tenth step of the first stage, on the copy
    torch.manual_seed(9)
    own = torch.optim.SGD(first.parameters(), lr=0.3, momentum=0.9)
    for p, buffer in zip(first.parameters(), buffers, strict=True):
        own.state[p]["momentum_buffer"] = buffer
    own.zero_grad()
    nn.functional.cross_entropy(first(training.inputs), training.targets).backward()
    own.step()
    first.eval()
    errors = np.flatnonzero((first(training.inputs).argmax(1) != training.targets).numpy())
    assert 0 < len(errors) < 40

    augmented = np.concatenate([np.arange(40), *[errors] * 3])
    np.testing.assert_array_equal(stepper.copies.numpy(), np.bincount(augmented, minlength=40))
    drawn = CopiedRows(len(augmented), 1, seed=0).batch(stepper.copies, 0)
    np.testing.assert_array_equal(drawn.sort().values.numpy(), np.sort(augmented))
    for name, value in start.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    assert not optimizer.state


def test_jtt_goes_on_from_a_state_of_either_stage():
    training, ends = rows(40), []
    for stop in (None, 3, 8):
        torch.manual_seed(4)
        model = network()
        model[2].p = 0.0
        stepper, optimizer = JTT(first=0.5, steps=10).start(model), torch.optim.SGD(model.parameters(), lr=0.3)
        for k in range(10):
            if k == stop:
                saved = copy.deepcopy((model.state_dict(), stepper.state_dict()))
                model = network()
                model[2].p = 0.0
                with torch.no_grad():
                    model[0].weight.add_(1.0)  # another start, which the state replaces
                stepper, optimizer = JTT(first=0.5, steps=10).start(model), torch.optim.SGD(model.parameters(), lr=0.3)
                model.load_state_dict(saved[0])
                stepper.load_state_dict(saved[1])
            stepper.step(optimizer, closure_of(model, training, 10 + k))
        ends.append((snapshot(model), stepper.copies))
    for state, copies in ends[1:]:
        assert torch.equal(copies, ends[0][1])
        for name, value in state.items():
            torch.testing.assert_close(value, ends[0][0][name], rtol=0, atol=0)


# --- what they share ---


def test_copies_are_drawn_in_whole_passes_that_follow_from_the_epoch():
    copies = torch.tensor([0, 1, 3, 0, 1])
    drawn = CopiedRows(2, 5, seed=7)
    epoch = torch.cat([drawn.batch(copies, step) for step in range(5)])
    assert len(epoch) == 10
    for start in (0, 5):
        assert epoch[start : start + 5].bincount(minlength=5).tolist() == copies.tolist()
    again = CopiedRows(2, 5, seed=7)
    assert torch.equal(again.batch(copies, 3), epoch[6:8])
    assert not torch.equal(torch.cat([again.batch(copies, 5 + step) for step in range(5)]), epoch)
    with pytest.raises(ValueError, match="leave rows"):
        again.batch(torch.zeros(5, dtype=torch.int64), 0)


CONTEXT = reweigh.Context(n=80, steps=10, class_counts=[40, 40], groups=torch.zeros(80, dtype=torch.int64))


@pytest.mark.parametrize("text", ["jtt", "afr", "dfr"])
def test_what_two_stages_need_and_refuse(text):
    step = reweigh.method(text).build(CONTEXT).step
    model = network()
    with pytest.raises(ValueError, match=r"`training_rows` must be given.*draw batches by the live step's `copies`"):
        step.start(model).step(
            torch.optim.SGD(model.parameters(), lr=0.1),
            Closure(model=model, batch=(torch.zeros(1, 3).double(), torch.zeros(1).long()), losses=CrossEntropy()),
        )
    with pytest.raises(ValueError, match="decides which rows are drawn, so 'hardness' would be ignored"):
        reweigh.method(f"hardness+{text}").build(CONTEXT)
    if text == "jtt":
        reweigh.method("jtt+ema").build(CONTEXT)
    else:
        with pytest.raises(ValueError, match="replaces the last layer after the last step, so 'ema' would be ignored"):
            reweigh.method(f"{text}+ema").build(CONTEXT)
    with pytest.raises(ValueError, match=r"`steps` must be known to .*Give the steps of the whole training"):
        type(step)(**({} if text == "jtt" else {"n": 80})).start(model)


def test_dfr_needs_groups_and_holding_out_needs_rows():
    with pytest.raises(ValueError, match="'dfr' needs to know groups"):
        reweigh.method("dfr").build(reweigh.Context(n=80, steps=10))
    with pytest.raises(ValueError, match="`n` must be at least 2 to hold training rows out, got None"):
        AFR(steps=3).start(network())
    model, training = network(), rows()
    without = TrainingRows(inputs=training.inputs, targets=training.targets)
    stepper = DFR(steps=1, n=80).start(model)
    with pytest.raises(ValueError, match="`groups` must be among the training rows"):
        stepper.step(torch.optim.SGD(model.parameters(), lr=0.1), closure_of(model, without))


def test_targets_that_are_no_classes_are_refused():
    model, training = network(), rows()
    training = TrainingRows(inputs=training.inputs, targets=training.inputs[:, 0])
    closure = Closure(
        model=model,
        batch=(training.inputs, training.targets),
        losses=lambda output, target: (output[:, 0] - target) ** 2,
        training_rows=training,
    )
    with pytest.raises(ValueError, match="jtt needs one class and one vector of features per row"):
        JTT(steps=2).start(model).step(torch.optim.SGD(model.parameters(), lr=0.1), closure)


def test_a_broken_training_keeps_its_last_layer():
    model, training = network(), rows()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    stepper = AFR(steps=1, n=80).start(model)
    before = snapshot(model[3])
    optimizer = torch.optim.SGD([model[0].bias], lr=0.1)
    stepper.step(optimizer, closure_of(model, training))
    for name, value in before.items():
        torch.testing.assert_close(model[3].state_dict()[name], value, rtol=0, atol=0)


def test_projection_hands_the_copies_on():
    model = network()
    stepper = Projected(radius=1.0, base=AFR(steps=2, n=80)).start(model)
    assert stepper.copies is not None
    assert int(stepper.copies.sum()) == 64
    drawn = reweigh.Method(sampler=reweigh.method("hardness").sampler, step=Projected(radius=1.0, base=JTT()))
    with pytest.raises(ValueError, match="decides which rows"):
        drawn.build(CONTEXT)
