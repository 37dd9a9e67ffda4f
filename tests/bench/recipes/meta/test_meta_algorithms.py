"""MAML, ProtoNet, Matching Networks and Reptile against finite differences, double backward and brute force."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from reweigh.bench import models
from reweigh.bench.recipes.algorithms import meta
from reweigh.bench.recipes.algorithms.meta import (
    MAML,
    Episodes,
    MatchingNetwork,
    ProtoNet,
    Reptile,
    squared_error,
)
from reweigh.bench.train.objective import LiveObjective
from reweigh.method import method
from reweigh.objectives import RGD

TASKS, WAYS, SHOTS, QUERIES = 3, 4, 2, 3


def episodes(seed=0, shape=(5,), dtype=torch.float64, tasks=TASKS):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(WAYS).repeat(tasks, 1)
    return Episodes(
        support_x=torch.randn(tasks, WAYS * SHOTS, *shape, generator=draw, dtype=dtype),
        support_y=labels.repeat_interleave(SHOTS, 1),
        query_x=torch.randn(tasks, WAYS * QUERIES, *shape, generator=draw, dtype=dtype),
        query_y=labels.repeat_interleave(QUERIES, 1),
    )


def smooth_model(seed=0):
    """Without kinks, so that finite differences converge."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, WAYS)).double()


def conv_model(dtype=torch.float32):
    torch.manual_seed(1)
    return models.build("conv4", (1, 8, 8), WAYS, width=16, downsample="stride", statistics="batch").to(dtype)


def meta_gradient(algorithm, model, tasks, objective=torch.mean):
    model.zero_grad(set_to_none=True)
    losses = algorithm.descend(model, tasks, WAYS, objective)
    used = [(name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None]
    return losses, {name: gradient.clone() for name, gradient in used}


def task_losses(algorithm, model, tasks):
    with torch.no_grad():
        return algorithm.losses(algorithm.outputs(model, tasks, WAYS), tasks.query_y)


def close(one, other, **tolerance):
    return all(torch.allclose(one[name], other[name], **tolerance) for name in one)


# --- MAML ---


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_meta_gradient_is_what_finite_differences_say(inner_steps):
    algorithm, model, tasks = MAML(inner_lr=0.5, inner_steps=inner_steps), smooth_model(), episodes()
    _, found = meta_gradient(algorithm, model, tasks)
    draw = torch.Generator().manual_seed(3)
    for _ in range(4):
        way = {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in model.named_parameters()}
        values = []
        for sign in (1.0, -1.0):
            moved = smooth_model()
            with torch.no_grad():
                for name, parameter in moved.named_parameters():
                    parameter += sign * 1e-5 * way[name]
            values.append(float(task_losses(algorithm, moved, tasks).mean()))
        slope = (values[0] - values[1]) / 2e-5
        assert float(sum((found[name] * way[name]).sum() for name in way)) == pytest.approx(slope, rel=1e-6)


def plain_double_backward(model, tasks, inner_lr, inner_steps, weights):
    """The meta-gradient by `autograd.grad(create_graph=True)`, task after task, with the weights as constants."""
    names, start = zip(*model.named_parameters(), strict=True)
    total = 0.0
    for k in range(len(tasks)):
        at = start
        for _ in range(inner_steps):
            outputs = functional_call(model, dict(zip(names, at, strict=True)), (tasks.support_x[k],))
            loss = nn.functional.cross_entropy(outputs, tasks.support_y[k])
            slopes = torch.autograd.grad(loss, at, create_graph=True)
            at = tuple(p - inner_lr * g for p, g in zip(at, slopes, strict=True))
        outputs = functional_call(model, dict(zip(names, at, strict=True)), (tasks.query_x[k],))
        total = total + weights[k] * nn.functional.cross_entropy(outputs, tasks.query_y[k]) / len(tasks)
    return dict(zip(names, torch.autograd.grad(total, start), strict=True))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("inner_steps", [1, 2])
def test_rgd_over_tasks_is_a_weighted_double_backward(batched, inner_steps):
    """Inner loop unweighted, weight of the query loss detached, second-order terms kept."""
    model, tasks = conv_model(torch.float64), episodes(shape=(1, 8, 8))
    algorithm = MAML(inner_lr=0.3, inner_steps=inner_steps, batched=batched)
    losses, found = meta_gradient(algorithm, model, tasks, RGD(tau=5.0))
    weights = [math.exp(min(max(loss, 0.0), 5.0) / 6.0) for loss in losses.tolist()]
    assert len({round(w, 6) for w in weights}) > 1
    assert close(found, plain_double_backward(model, tasks, 0.3, inner_steps, weights), rtol=1e-8, atol=1e-12)


def test_task_weights_are_the_golden_ones(monkeypatch):
    """Losses 0.2, 0.7, 1.5 and 4.0 at tau 1, whatever the model."""
    golden = torch.tensor([0.2, 0.7, 1.5, 4.0], dtype=torch.float64)
    model, tasks, live = smooth_model(), episodes(tasks=4), LiveObjective(RGD(tau=1.0))
    plain = MAML.losses

    def shifted(self, outputs, targets):
        losses = plain(self, outputs, targets)
        return losses + (golden - losses.detach())

    monkeypatch.setattr(MAML, "losses", shifted)
    losses, found = meta_gradient(MAML(), model, tasks, live)
    assert torch.allclose(losses, golden)
    expected = torch.tensor([1.105171, 1.419068, 1.648721, 1.648721], dtype=torch.float64)
    assert torch.allclose(live.weights, expected, atol=1e-6)
    assert float(live(golden)) == pytest.approx(2.570587, abs=1e-6)
    alone = [meta_gradient(MAML(), model, tasks, lambda losses, k=k: losses[k])[1] for k in range(4)]
    summed = {name: sum(w * one[name] for w, one in zip(expected, alone, strict=True)) / 4 for name in found}
    assert close(found, summed, rtol=1e-5, atol=1e-8)


FIELDS = dataclasses.fields(Episodes)


def test_first_order_equals_second_where_the_inner_loss_is_linear():
    """A linear model and a loss linear in its outputs have constant inner gradients: nothing is left out."""

    def linear_loss(outputs, targets):
        return outputs.gather(-1, targets[:, None])[:, 0]

    torch.manual_seed(0)
    model, tasks = nn.Linear(5, WAYS).double(), episodes()
    gradients = [
        meta_gradient(MAML(loss=linear_loss, inner_lr=0.7, inner_steps=2, first_order=first), model, tasks)[1]
        for first in (True, False)
    ]
    assert close(*gradients, rtol=1e-12)
    # And a loss that is not: they differ, or the test above would say nothing.
    gradients = [meta_gradient(MAML(inner_lr=0.7, first_order=first), model, tasks)[1] for first in (True, False)]
    assert not close(*gradients, rtol=1e-3)


def test_first_order_comes_close_as_the_inner_step_vanishes():
    model, tasks = smooth_model(), episodes()
    gaps = []
    for inner_lr in (1e-1, 1e-2, 1e-3):
        first, second = (
            meta_gradient(MAML(inner_lr=inner_lr, first_order=order), model, tasks)[1] for order in (True, False)
        )
        gaps.append(sum(float((first[name] - second[name]).norm()) for name in first))
    # The gap is linear in the step.
    assert gaps[1] / gaps[0] == pytest.approx(0.1, rel=0.1)
    assert gaps[2] / gaps[1] == pytest.approx(0.1, rel=0.02)


def test_first_order_is_the_gradient_at_the_adapted_parameters():
    model, tasks = smooth_model(), episodes(tasks=1)
    _, found = meta_gradient(MAML(inner_lr=0.5, first_order=True), model, tasks)
    moved = smooth_model()
    loss = nn.functional.cross_entropy(moved(tasks.support_x[0]), tasks.support_y[0])
    with torch.no_grad():
        for parameter, slope in zip(
            moved.parameters(), torch.autograd.grad(loss, list(moved.parameters())), strict=True
        ):
            parameter -= 0.5 * slope
    nn.functional.cross_entropy(moved(tasks.query_x[0]), tasks.query_y[0]).backward()
    assert close(found, {name: p.grad for name, p in moved.named_parameters()}, rtol=1e-10)


def test_no_inner_step_is_the_model_itself():
    model, tasks = smooth_model(), episodes()
    outputs = MAML(inner_steps=0).outputs(model, tasks, WAYS)
    assert torch.allclose(outputs, model(tasks.query_x))


@pytest.mark.parametrize("name", ["maml", "protonet", "matching", "reptile"])
def test_one_program_or_one_by_one_is_the_same(name):
    model, tasks = conv_model(torch.float64), episodes(shape=(1, 8, 8))
    one, other = (meta_gradient(meta.build(name, batched=batched), model, tasks) for batched in (True, False))
    assert torch.allclose(one[0], other[0], rtol=1e-10)
    assert one[1].keys() == other[1].keys()
    assert len(one[1]) == (14 if name in ("maml", "reptile") else 12)  # prototypes and attention have no last layer
    assert close(one[1], other[1], rtol=1e-8, atol=1e-12)


def running_model(dtype=torch.float64):
    """With statistics other than the initial zeros and ones."""
    torch.manual_seed(1)
    model = models.build("conv4", (1, 8, 8), WAYS, width=16, downsample="stride", statistics="running").to(dtype)
    model(torch.randn(40, 1, 8, 8, dtype=dtype))
    return model


@pytest.mark.parametrize("name", ["maml", "protonet", "matching"])
def test_a_tested_task_does_not_see_the_others(name):
    model = conv_model(torch.float64) if name == "maml" else running_model().eval()
    tasks = episodes(shape=(1, 8, 8))
    alone = Episodes(**{field.name: getattr(tasks, field.name)[1:2] for field in FIELDS})
    algorithm = meta.build(name)
    assert torch.allclose(task_losses(algorithm, model, tasks)[1:2], task_losses(algorithm, model, alone), rtol=1e-10)


def test_regression_needs_no_classes():
    torch.manual_seed(0)
    model = nn.Linear(1, 1).double()
    x, y = torch.randn(2, 6, 1, dtype=torch.float64), torch.randn(2, 6, 1, dtype=torch.float64)
    tasks = Episodes(support_x=x, support_y=y, query_x=x, query_y=y)
    algorithm = MAML(loss=squared_error, inner_lr=0.1)
    weight, bias = (p.detach() for p in model.parameters())
    expected = []
    for k in range(2):
        error = x[k] * weight + bias - y[k]
        adapted = weight - 0.1 * 2 * (error * x[k]).mean(), bias - 0.1 * 2 * error.mean()
        expected.append(float((x[k] * adapted[0] + adapted[1] - y[k]).square().mean()))
    assert task_losses(algorithm, model, tasks).tolist() == pytest.approx(expected)


# --- metric learning against brute force ---


def features(model, tasks, k):
    """Features of one task's images, of a meta-batch whose support is one batch and whose queries are another."""
    with torch.no_grad():
        support, query = (model.embed(torch.cat(list(part))).numpy() for part in (tasks.support_x, tasks.query_x))
    return support[k * WAYS * SHOTS : (k + 1) * WAYS * SHOTS], query[k * WAYS * QUERIES : (k + 1) * WAYS * QUERIES]


@pytest.mark.parametrize("name", ["protonet", "matching"])
def test_metric_methods_normalise_over_the_meta_batch_and_by_running_statistics_when_tested(name):
    """As nn.BatchNorm2d does, called once for the support of all tasks and once for all queries."""
    model, tasks = running_model(), episodes(shape=(1, 8, 8))
    seen = []
    model.embed[1].register_forward_hook(lambda layer, inputs, _: seen.append((layer.training, inputs[0].shape[0])))
    algorithm = meta.build(name)
    trained = algorithm.outputs(model.train(), tasks, WAYS)
    moved = copy.deepcopy(model.embed[1].running_mean)
    tested = algorithm.outputs(model.eval(), tasks, WAYS)
    sizes = [TASKS * WAYS * SHOTS, TASKS * WAYS * QUERIES]
    assert seen == [(True, sizes[0]), (True, sizes[1]), (False, sizes[0]), (False, sizes[1])]
    assert not torch.allclose(trained, tested)
    assert torch.equal(moved, model.embed[1].running_mean)  # testing leaves the statistics alone


def test_prototypes_by_hand():
    model, tasks = conv_model(torch.float64), episodes(shape=(1, 8, 8))
    with torch.no_grad():
        outputs = ProtoNet().outputs(model, tasks, WAYS)
    for k in range(TASKS):
        support, query = features(model, tasks, k)
        for i, point in enumerate(query):
            for c in range(WAYS):
                members = [support[j] for j in range(len(support)) if int(tasks.support_y[k, j]) == c]
                prototype = sum(members) / len(members)
                assert float(outputs[k, i, c]) == pytest.approx(-(math.dist(point, prototype) ** 2))


def test_attention_by_hand():
    model, tasks = conv_model(torch.float64), episodes(shape=(1, 8, 8))
    with torch.no_grad():
        outputs = MatchingNetwork(scale=3.0).outputs(model, tasks, WAYS)
    for k in range(TASKS):
        support, query = features(model, tasks, k)
        for i, point in enumerate(query):
            cosines = [point @ s / math.sqrt((point @ point) * (s @ s)) for s in support]
            total = sum(math.exp(3.0 * c) for c in cosines)
            for c in range(WAYS):
                mass = sum(math.exp(3.0 * v) for j, v in enumerate(cosines) if int(tasks.support_y[k, j]) == c)
                assert float(outputs[k, i, c].exp()) == pytest.approx(mass / total)
    assert torch.allclose(outputs.exp().sum(-1), torch.ones(TASKS, WAYS * QUERIES, dtype=torch.float64))


def test_the_floor_of_matching_networks_is_where_the_card_says():
    class Given(nn.Module):
        embed = nn.Identity()

    x = torch.cat([torch.eye(1, 5), -torch.eye(1, 5).repeat(4, 1)])[None]
    one = Episodes(support_x=x, support_y=torch.arange(5)[None], query_x=x[:, :1], query_y=torch.zeros(1, 1).long())
    algorithm = MatchingNetwork()
    loss = float(algorithm.losses(algorithm.outputs(Given(), one, 5), one.query_y))
    assert loss == pytest.approx(-math.log(math.e**2 / (math.e**2 + 4)))
    assert loss == pytest.approx(0.43, abs=0.005)


def test_a_model_without_features_is_refused():
    with pytest.raises(TypeError, match="Sequential has no `embed`"):
        ProtoNet().outputs(smooth_model(), episodes(), WAYS)


# --- Reptile ---


@pytest.mark.parametrize("batched", [True, False])
def test_reptile_moves_towards_where_descent_leads(batched):
    tasks, model = episodes(), smooth_model()
    algorithm = Reptile(inner_lr=0.1, inner_steps=3, inner_batch=5, batched=batched)
    _, found = meta_gradient(algorithm, model, tasks)
    ends = []
    for k in range(TASKS):
        walker = smooth_model()
        optimizer = torch.optim.SGD(walker.parameters(), lr=0.1)
        # Queries lie class after class; batches take the first of each class, then the second of each.
        order = [c * QUERIES + q for q in range(QUERIES) for c in range(WAYS)]
        for step in range(3):
            batch = [order[(step * 5 + i) % len(order)] for i in range(5)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(walker(tasks.query_x[k][batch]), tasks.query_y[k][batch]).backward()
            optimizer.step()
        ends.append({name: p.detach() for name, p in walker.named_parameters()})
    start = dict(model.named_parameters())
    expected = {name: start[name].detach() - sum(end[name] for end in ends) / TASKS for name in start}
    assert close(found, expected, rtol=1e-9, atol=1e-13)


def test_reptile_answers_after_descent_on_the_support_set():
    tasks, model = episodes(tasks=1), smooth_model()
    walker = smooth_model()
    optimizer = torch.optim.SGD(walker.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(walker(tasks.support_x[0]), tasks.support_y[0]).backward()
        optimizer.step()
    outputs = Reptile(inner_lr=0.1, inner_steps=4).outputs(model, tasks, WAYS)
    assert torch.allclose(outputs[0], walker(tasks.query_x[0]), rtol=1e-10)
    assert not outputs.requires_grad


# --- any objective of the family ---


@pytest.mark.parametrize("text", ["mean", "rgd:tau=3", "rgd:divergence=revkl", "term:t=1", "cvar:alpha=0.5", "absgd"])
def test_any_objective_weighs_tasks(text):
    """The gradient is the mean of the tasks' own gradients times the weights that the objective gives their losses."""
    model, tasks = smooth_model(), episodes()
    live = LiveObjective(method(text).objective)
    losses, found = meta_gradient(MAML(), model, tasks, live)
    assert torch.allclose(losses, task_losses(MAML(), model, tasks))
    alone = [meta_gradient(MAML(), model, tasks, lambda losses, k=k: losses[k])[1] for k in range(TASKS)]
    weights = np.asarray(live.weights.tolist())
    expected = {name: sum(w * one[name] for w, one in zip(weights, alone, strict=True)) / TASKS for name in found}
    assert close(found, expected, rtol=1e-6, atol=1e-10)


# --- the registry ---


def test_the_folder_is_the_registry():
    assert meta.names() == ["maml", "matching", "protonet", "reptile"]
    assert meta.build("maml", inner_lr=0.1) == MAML(inner_lr=0.1)
    with pytest.raises(ValueError, match=r"no algorithm named 'mamal'. Did you mean 'maml'"):
        meta.build("mamal")
    with pytest.raises(ValueError, match="'protonet' has no option 'inner_lr'"):
        meta.build("protonet", inner_lr=0.1)
    with pytest.raises(ValueError, match="`inner_lr` must be a positive number"):
        MAML(inner_lr=0.0)
    with pytest.raises(ValueError, match="`scale` must be a positive number"):
        MatchingNetwork(scale=-1.0)
    with pytest.raises(ValueError, match="`inner_batch` must be"):
        Reptile(inner_batch=0)
