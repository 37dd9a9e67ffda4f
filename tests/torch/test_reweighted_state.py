"""The state of `Reweighted`: once per optimiser step, complete in checkpoints, alive after `torch.func`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import reweigh
from reweigh import RGD
from reweigh.objectives.superloss import SuperLoss
from reweigh.objectives.term_ema import TERMEma
from reweigh.torch import Reweighted

torch.manual_seed(0)
X, Y = torch.randn(8, 4), torch.randint(3, (8,))


def model() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(4, 3)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_activation_checkpointing_is_one_step(reentrant, accumulation):
    """Losses, gradients and states are those of training without it."""
    runs = []
    for checkpointed in (False, True):
        net, criterion = model(), Reweighted(nn.CrossEntropyLoss(), TERMEma(t=1.0), accumulation=accumulation)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)

        def loss_of(x, y, net=net, criterion=criterion):
            return criterion(net(x), y)

        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            for part in torch.arange(8).chunk(accumulation):
                x = X[part].requires_grad_()
                loss = checkpoint(loss_of, x, Y[part], use_reentrant=reentrant) if checkpointed else loss_of(x, Y[part])
                loss.backward()
                # The reentrant kind runs without gradients at first, where the criterion is plain.
                seen += [] if reentrant else [loss.detach()]
                seen += [net.weight.grad.clone(), criterion.state_step.clone()]
            optimizer.step()
        assert int(criterion.state_step) == 3
        runs.append([*seen, criterion.state_log_normaliser])
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_all_closures_of_one_step_see_one_state(accumulation):
    net, criterion = model(), Reweighted(nn.CrossEntropyLoss(), TERMEma(t=1.0), accumulation=accumulation)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    calls, at_start = [], []

    def closure():
        optimizer.zero_grad()
        loss = sum(criterion(net(X[part]), Y[part]) for part in torch.arange(8).chunk(accumulation))
        loss.backward()
        calls.append(float(criterion.state_log_normaliser))
        at_start.append(int(criterion.state_step))
        return loss

    for step in range(1, 4):
        before = len(calls)
        optimizer.step(closure)
        assert len(calls) - before > 1
        assert int(criterion.state_step) == step
        assert len(set(calls[before:])) == 1  # moved by the first closure, and by no other
    # The first two closures of a step evaluate one function: the same parameters give the same loss.
    loss = criterion(net(X), Y)
    assert torch.isfinite(loss)


def test_a_step_that_failed_does_not_hold_the_state_for_good():
    net, criterion = model(), Reweighted(nn.CrossEntropyLoss(), RGD(warmup=100))
    optimizer = torch.optim.LBFGS(net.parameters())

    def broken():
        criterion(net(X), Y)
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(broken)
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        criterion(net(X), Y).backward()
        plain.step()
    assert int(criterion.state_step) >= 3


# --- checkpoints ---


def test_micro_batches_that_wait_are_saved():
    def fresh():
        return Reweighted(nn.L1Loss(), SuperLoss(), accumulation=3)

    whole, first = fresh(), fresh()
    parts = [(torch.tensor([1.0, 2.0]), None), (torch.tensor([5.0]), torch.ones(1)), (torch.tensor([4.0]), None)]

    def feed(criterion, some):
        for values, own in some:
            criterion(values, torch.zeros_like(values), sample_weight=own)

    feed(whole, parts)
    feed(first, parts[:2])
    assert int(first.state_step) == 0
    resumed = fresh()
    resumed.load_state_dict(first.state_dict())
    feed(resumed, parts[2:])
    assert int(resumed.state_step) == 1
    torch.testing.assert_close(resumed.state_mean, whole.state_mean)
    assert float(whole.state_mean) == pytest.approx(3.0)
    assert not [name for name in whole.state_dict() if "pooled" in name]
    first.load_state_dict(whole.state_dict())  # what waited belongs to another training
    assert not [name for name in first.state_dict() if "pooled" in name]


class Net(nn.Module):
    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.body, self.criterion = nn.Linear(4, 3), criterion


@pytest.mark.parametrize("objective", [RGD(), TERMEma()], ids=repr)
def test_a_checkpoint_of_the_bare_criterion_loads(objective):
    weight = torch.tensor([1.0, 2.0, 3.0])
    bare = Net(nn.CrossEntropyLoss(weight=weight))
    wrapped = Net(Reweighted(nn.CrossEntropyLoss(weight=torch.ones(3)), objective))
    wrapped.load_state_dict(bare.state_dict())
    torch.testing.assert_close(wrapped.criterion.criterion.inner.weight, weight)
    again = Net(Reweighted(nn.CrossEntropyLoss(weight=torch.ones(3)), objective))
    again.load_state_dict(wrapped.state_dict())
    torch.testing.assert_close(again.criterion.criterion.inner.weight, weight)
    plain = Net(Reweighted(nn.CrossEntropyLoss(), objective))
    plain.load_state_dict(Net(nn.CrossEntropyLoss()).state_dict())


def test_strict_loading_still_notices_what_is_wrong():
    wrapped = Net(Reweighted(nn.CrossEntropyLoss(), TERMEma()))
    broken = wrapped.state_dict()
    del broken["criterion.state_step"]
    with pytest.raises(RuntimeError, match=r"Missing key.*criterion\.state_step"):
        wrapped.load_state_dict(broken)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Net(Reweighted(nn.CrossEntropyLoss())).load_state_dict(Net(nn.CrossEntropyLoss(torch.ones(3))).state_dict())


# --- statistics ---


@pytest.mark.parametrize("in_dims", [(0, None), (1, None)])
def test_statistics_after_vmap_are_those_of_all_members(in_dims):
    criterion, members = Reweighted(nn.CrossEntropyLoss(ignore_index=0), tau=1.0), torch.randn(5, 8, 3)
    logits = members if in_dims[0] == 0 else members.movedim(0, 1)
    torch.func.vmap(lambda x, y: criterion(x, y), in_dims=in_dims)(logits, Y)
    stats = criterion.stats()
    assert stats["units"] == 5 * int((Y != 0).sum())
    alone = reweigh.Monitor(tau=1.0)
    for member in members:
        criterion(member.requires_grad_(), Y)
        alone.update(criterion)
    assert stats == pytest.approx(alone.stats())


def test_statistics_after_grad_of_vmap():
    criterion, weights = Reweighted(nn.CrossEntropyLoss(), tau=1.0), torch.randn(5, 4, 3)
    torch.func.vmap(torch.func.grad(lambda w: criterion(X @ w, Y)))(weights)
    assert criterion.stats()["units"] == 40


def test_a_monitor_takes_the_criterion():
    criterion, monitor = Reweighted(nn.CrossEntropyLoss(), tau=1.0), reweigh.Monitor(tau=1.0)
    with pytest.raises(ValueError, match="has not been called in training"):
        monitor.update(criterion)
    target = Y.clone()
    target[:3] = -100
    criterion(model()(X), target)
    monitor.update(criterion, ids=range(8))
    assert monitor.stats() == pytest.approx(criterion.stats())
    assert monitor.stats()["units"] == 5
    assert len(monitor.hardest(8)) == 5
    with pytest.raises(TypeError, match="`weights` must be given with the losses, got Tensor alone"):
        monitor.update(torch.ones(3))


def test_the_plain_loss_is_the_criterions_own():
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), ignore_index=0)
    images, pixels = torch.randn(2, 3, 4, requires_grad=True), torch.tensor([[0, 1, 2, 0], [1, 1, 2, 1]])
    reweighted = Reweighted(criterion, tau=1.0)
    assert reweighted.plain is None
    reweighted(images, pixels)
    loss, amount = reweighted.plain
    torch.testing.assert_close(loss / amount, criterion(images, pixels).detach())


def test_the_plain_loss_counts_the_callers_weights():
    reweighted = Reweighted(nn.MSELoss(), tau=1.0)
    output = torch.tensor([1.0, 2.0, 3.0, 9.0], requires_grad=True)
    reweighted(output, torch.zeros(4), sample_weight=torch.tensor([1.0, 0.5, 1.0, 0.0]))
    loss, amount = reweighted.plain
    assert (loss / amount).item() == pytest.approx((1.0 + 0.5 * 4.0 + 9.0) / 2.5)
