"""Cross entropy of many logits, whose gradient is made by hand, against the same written out for autograd."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reweigh.torch import Reweighted, _fused

SHAPES = {"rows": (24, 7), "pixels": (4, 5, 3, 2)}


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices go the way of large ones."""
    for module in ("_fused", "reweighted"):
        monkeypatch.setattr(f"reweigh.torch.{module}.MANY", 1)
    monkeypatch.setattr(_fused, "VERY_MANY", 1)


def batch(shape: tuple[int, ...], *, ignored: bool = False, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    output = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    target = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=generator)
    if ignored:
        target.view(-1)[::5] = -100
    return output.requires_grad_(), target


def by_hand(output: Tensor, target: Tensor, level: str, weight: Tensor | None, smoothing: float) -> Tensor:
    """RGD with tau=1: weights from the loss without class weights above its floor, the criterion's mean with them."""
    real = target != -100
    own = F.cross_entropy(output, target, weight=weight, label_smoothing=smoothing, reduction="none")
    seen = F.cross_entropy(output, target, label_smoothing=smoothing, reduction="none").detach()
    if smoothing:
        k = output.shape[1]
        top, rest = 1 - smoothing + smoothing / k, smoothing / k
        seen = seen - (-top * math.log(top) - (k - 1) * rest * math.log(rest))
    seen = torch.where(real, seen, 0.0)
    measure = torch.where(real, 1.0 if weight is None else weight[target.clamp(min=0)], 0.0).to(own.dtype)
    if own.ndim > 1 and level != "token":
        own, seen, measure, real = own.flatten(1), seen.flatten(1), measure.flatten(1), real.flatten(1)
        length = real.sum(1).clamp(min=1)
        seen = seen.sum(1) / length
        weights = torch.exp(seen.clamp(0, 1) / 2)
        if level == "sequence":
            return (weights * own.sum(1)).sum() / measure.sum()
        return (weights * own.sum(1) / length).sum() / (measure.sum(1) / length).sum()
    return (torch.exp(seen.clamp(0, 1) / 2) * own).sum() / measure.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("level", ["sample", "token", "sequence"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_value_and_both_derivatives(shape, level, ignored, weighted, smoothing):
    output, target = batch(shape, ignored=ignored)
    weight = torch.linspace(0.5, 2.0, shape[1], dtype=torch.float64) if weighted else None
    criterion = Reweighted(nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing), level=level)
    direction = torch.linspace(-1.0, 1.0, output.numel(), dtype=torch.float64).view(shape)

    def derivatives(loss: Tensor) -> list[Tensor]:
        (first,) = torch.autograd.grad(3.0 * loss, output, create_graph=True)
        (second,) = torch.autograd.grad((first * direction).sum(), output, retain_graph=True)
        (again,) = torch.autograd.grad(3.0 * loss, output)
        return [loss, first, again, second]

    loss = criterion(output, target)
    assert "Descent" in type(loss.grad_fn).__name__
    for ours, reference in zip(
        derivatives(loss), derivatives(by_hand(output, target, level, weight, smoothing)), strict=True
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_losses_beyond_the_reach_of_probabilities(shape):
    output, target = batch(shape)
    output = (200.0 * output).detach().float().requires_grad_()
    loss = Reweighted(nn.CrossEntropyLoss(), level="token")(output, target)
    loss.backward()
    assert output.grad is not None
    reference = output.detach().double().requires_grad_()
    by_hand(reference, target, "token", None, 0.0).backward()
    torch.testing.assert_close(output.grad.double(), reference.grad, rtol=1e-4, atol=1e-6)
    assert loss.item() > 100


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float32_is_as_exact_as_torch(shape):
    output, target = batch(shape)
    exact = by_hand(output, target, "token", None, 0.0)
    narrow = output.detach().float().requires_grad_()
    loss = Reweighted(nn.CrossEntropyLoss(), level="token")(narrow, target)
    torch.testing.assert_close(loss.double(), exact, rtol=5e-7, atol=0.0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_may_change_after_the_loss_and_gradients_may_come_in_batches(shape):
    output, target = batch(shape)
    logits = output * 1.0
    loss = Reweighted(nn.CrossEntropyLoss())(logits, target)
    many = torch.tensor([1.0, 2.0], dtype=torch.float64)
    (together,) = torch.autograd.grad(loss, logits, many, is_grads_batched=True, retain_graph=True)
    with torch.no_grad():
        logits.zero_()
    loss *= 2.0  # accumulation divides in place
    (gradient,) = torch.autograd.grad(loss, output)
    torch.testing.assert_close(together[1], gradient)
    torch.testing.assert_close(together[0], gradient / 2)


def test_a_label_out_of_range_is_refused_as_by_torch():
    output, target = batch(SHAPES["rows"])
    target[3] = 7
    with pytest.raises(IndexError, match="out of bounds"):
        Reweighted(nn.CrossEntropyLoss())(output, target)


def test_hooks_of_the_criterion_are_called():
    output, target = batch(SHAPES["rows"])
    criterion = Reweighted(nn.CrossEntropyLoss())
    seen: list[Tensor] = []
    criterion.criterion.inner.register_forward_hook(lambda _module, _inputs, losses: seen.append(losses))
    criterion(output, target)
    assert len(seen) == 1


def test_what_is_kept_after_a_call():
    output, target = batch(SHAPES["rows"])
    weight = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)
    criterion = Reweighted(nn.CrossEntropyLoss(weight=weight))
    criterion(output, target)
    assert criterion.units is not None
    assert criterion.plain is not None
    losses = F.cross_entropy(output.detach(), target, reduction="none")
    torch.testing.assert_close(criterion.losses, losses)
    torch.testing.assert_close(criterion.weights, torch.exp(losses.clamp(0, 1) / 2))
    torch.testing.assert_close(criterion.units.own, losses * weight[target])
    own, amount = criterion.plain
    torch.testing.assert_close(own / amount, F.cross_entropy(output.detach(), target, weight=weight))
