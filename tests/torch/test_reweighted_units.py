"""`Reweighted` with an objective that remembers units by their number: as by hand, as `apply`, and as the bench."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reweigh.bench.train.objective import LiveObjective
from reweigh.objectives.gain import Gain
from reweigh.torch import Reweighted

N = 20
DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(N, 4, generator=DRAW), torch.randint(3, (N,), generator=DRAW)
#: Batches of units, some of which come again.
BATCHES = [torch.randperm(N, generator=DRAW)[:8] for _ in range(6)]
OBJECTIVE = Gain(beta=2.0, n=N)


def network() -> nn.Linear:
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        net.bias.zero_()
    return net


def by_hand(losses, index, last):
    """The weighted mean, where `last` is a dict from units to their last losses."""
    weights = []
    for i, now in zip(index.tolist(), losses.tolist(), strict=True):
        weights.append(2 / (1 + math.exp(OBJECTIVE.beta * (last.get(i, now) - now))))
        last[i] = now
    return (torch.tensor(weights) * losses).mean()


def train(loss_of, batches=BATCHES):
    """The weights of a network after a step per batch."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for index in batches:
        optimizer.zero_grad()
        loss_of(net(X[index]), Y[index], index).backward()
        optimizer.step()
    return net.weight.detach().clone()


def test_training_is_that_of_a_loop_by_hand_of_apply_and_of_the_bench():
    criterion, last, live = Reweighted(nn.CrossEntropyLoss(), OBJECTIVE), {}, LiveObjective(OBJECTIVE)
    state = OBJECTIVE.init()

    def by_apply(output, target, index):
        nonlocal state
        loss, state = OBJECTIVE.apply(F.cross_entropy(output, target, reduction="none"), state, index=index)
        return loss

    def in_the_bench(output, target, index):
        loss = live(F.cross_entropy(output, target, reduction="none"), index=index)
        live.advance()
        return loss

    expected = train(lambda output, target, i: by_hand(F.cross_entropy(output, target, reduction="none"), i, last))
    plain = train(lambda output, target, i: F.cross_entropy(output, target))
    assert not torch.allclose(expected, plain, rtol=1e-3)
    for loss_of in (lambda output, target, i: criterion(output, target, index=i), by_apply, in_the_bench):
        torch.testing.assert_close(train(loss_of), expected)
    remembered = torch.tensor([last.get(i, math.inf) for i in range(N)])
    torch.testing.assert_close(criterion.state_last, remembered)
    torch.testing.assert_close(criterion.state_last, live.state["last"])
    torch.testing.assert_close(criterion.state_last, state["last"])


def test_micro_batches_see_the_state_before_their_step():
    whole, parts = Reweighted(nn.L1Loss(), OBJECTIVE), Reweighted(nn.L1Loss(), OBJECTIVE, accumulation=2)
    for step, index in enumerate(BATCHES):
        losses = X[index, step % 4].abs()
        whole(losses, torch.zeros(8), index=index)
        before, weights = parts.state_last.clone(), []
        for part in (slice(0, 5), slice(5, 8)):
            assert torch.equal(parts.state_last, before)
            parts(losses[part], torch.zeros(len(losses[part])), index=index[part])
            weights.append(parts.weights)
        torch.testing.assert_close(torch.cat(weights), whole.weights)
        assert torch.equal(parts.state_last, whole.state_last)
        assert not torch.equal(parts.state_last, before)


def test_a_step_that_waits_for_its_rest_is_saved():
    first, second = (Reweighted(nn.L1Loss(), OBJECTIVE, accumulation=2) for _ in range(2))
    first(torch.tensor([1.0, 2.0]), torch.zeros(2), index=torch.tensor([3, 5]))
    second.load_state_dict(first.state_dict())
    for criterion in (first, second):
        criterion(torch.tensor([4.0]), torch.zeros(1), index=torch.tensor([7]))
    assert first.state_last[[3, 5, 7]].tolist() == [1.0, 2.0, 4.0]
    assert torch.equal(first.state_last, second.state_last)
    first(torch.tensor([9.0]), torch.zeros(1), index=torch.tensor([3]))
    first.flush()
    assert first.state_last[3] == 9.0


def test_memory_is_saved_and_of_the_size_of_the_data():
    first, second = (Reweighted(nn.CrossEntropyLoss(), OBJECTIVE) for _ in range(2))
    net = network()
    first(net(X), Y, index=torch.arange(N))
    second.load_state_dict(first.state_dict())
    for criterion in (first, second):
        criterion(0.5 * net(X), Y, index=torch.arange(N))
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights, torch.ones(N))
    with pytest.raises(RuntimeError, match="size mismatch for state_last"):
        Reweighted(nn.CrossEntropyLoss(), Gain(n=N + 1)).load_state_dict(first.state_dict())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_pass_that_activation_checkpointing_repeats_has_the_same_weights(reentrant):
    criterion = Reweighted(nn.CrossEntropyLoss(), OBJECTIVE)

    def checkpointed(output, target, index):
        return checkpoint(lambda o: criterion(o, target, index=index), output, use_reentrant=reentrant)

    bare = Reweighted(nn.CrossEntropyLoss(), OBJECTIVE)
    torch.testing.assert_close(train(checkpointed), train(lambda output, target, i: bare(output, target, index=i)))
    assert torch.equal(criterion.state_last, bare.state_last)


def test_all_closures_of_one_step_compare_with_the_step_before():
    net, criterion = network(), Reweighted(nn.CrossEntropyLoss(), OBJECTIVE)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    everything, kept = torch.arange(N), []

    def closure():
        optimizer.zero_grad()
        loss = criterion(net(X), Y, index=everything)
        loss.backward()
        kept.append(criterion.state_last.clone())
        return loss

    optimizer.step(closure)
    assert len(kept) > 1
    assert all(torch.equal(state, kept[0]) for state in kept)


def test_class_weights_masks_and_levels():
    """The memory is of what the weight sees: the loss without class weights, of units that count."""
    criterion = Reweighted(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 2.0]), ignore_index=-100), OBJECTIVE)
    target = Y.clone()
    target[4] = -100
    criterion(network()(X), target, index=torch.arange(N))
    expected = F.cross_entropy(network()(X), Y, reduction="none").detach()
    expected[4] = math.inf
    torch.testing.assert_close(criterion.state_last, expected)
    for level, units in (("sample", 2), ("sequence", 2), ("token", 6)):
        criterion = Reweighted(nn.L1Loss(), OBJECTIVE, level=level)
        output = torch.arange(6.0).view(2, 3)
        criterion(output, torch.zeros(2, 3), index=torch.arange(units).view(-1, 3 if units == 6 else 1))
        seen = output.flatten() if units == 6 else output.mean(1)
        torch.testing.assert_close(criterion.state_last[:units], seen)


def test_named_by_a_text_and_compiled():
    eager = Reweighted(f"focal+gain:beta=2,n={N}")
    compiled = torch.compile(Reweighted(f"focal+gain:beta=2,n={N}"), backend="aot_eager", fullgraph=True)
    for step, index in enumerate(BATCHES):
        gradients = []
        for criterion in (eager, compiled):
            output = (X[index, :3] * step).requires_grad_()
            criterion(output, Y[index], index=index).backward()
            gradients.append(output.grad)
        torch.testing.assert_close(*gradients)
    torch.testing.assert_close(compiled.state_last, eager.state_last)
    assert torch.isfinite(eager.state_last).sum() == len(set(torch.cat(BATCHES).tolist()))


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"`n` must be known before the first batch.*Give len\(dataset\)"):
        Reweighted(nn.CrossEntropyLoss(), "gain")
    criterion = Reweighted(nn.CrossEntropyLoss(), OBJECTIVE)
    with pytest.raises(ValueError, match=r"needs `index`, got None\. It is the number of each unit.*index=indices"):
        criterion(network()(X), Y)
    with pytest.raises(ValueError, match=r"`index` must have the shape of the losses, \(20,\), got \(3,\)"):
        criterion(network()(X), Y, index=torch.arange(3))
    with pytest.raises(ValueError, match=r"`groups` must have one entry per unit"):
        criterion(network()(X), Y, index=torch.arange(N), groups=torch.arange(3))
    value = criterion.eval()(network()(X), Y)  # evaluation is plain and needs no numbers
    torch.testing.assert_close(value, F.cross_entropy(network()(X), Y))
    assert torch.isinf(criterion.state_last).all()


@pytest.mark.parametrize("made", [list, np.asarray], ids=["list", "NumPy"])
def test_what_comes_beside_the_losses_need_not_be_tensors(made):
    output, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    weights, groups = [1.0, 2.0, 0.5, 3.0], [0, 1, 1, 0]
    for objective, beside in (("rgd", {"sample_weight": weights}), ("group_dro:n_groups=2", {"groups": groups})):
        expected = Reweighted(nn.CrossEntropyLoss(), objective)(
            output, target, **{name: torch.tensor(values) for name, values in beside.items()}
        )
        given = {name: made(values) for name, values in beside.items()}
        torch.testing.assert_close(Reweighted(nn.CrossEntropyLoss(), objective)(output, target, **given), expected)
