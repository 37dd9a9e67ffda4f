"""`Reweighted` against plain torch where it must be plain, and against written-out loops where it weighs."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import reweigh
from reweigh import RGD
from reweigh.objectives.cvar import CVaR
from reweigh.objectives.scdro import SCDRO
from reweigh.objectives.superloss import SuperLoss
from reweigh.objectives.term import TERM
from reweigh.torch import Reweighted, global_count
from reweigh.torch.losses import ClassBalanced, CrossEntropy, Focal

torch.manual_seed(0)
B, C = 6, 4
LOGITS = torch.randn(B, C, dtype=torch.float64) * 0.7  # losses on both sides of tau = 1
LABELS = torch.tensor([0, 1, 2, 3, 1, 0])
IGNORING = torch.tensor([0, -100, 2, 3, -100, 0])
SOFT = torch.softmax(torch.randn(B, C, dtype=torch.float64), 1)
CLASS_WEIGHT = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
IMAGE = torch.randn(2, C, 3, 5, dtype=torch.float64)
PIXELS = torch.randint(0, C, (2, 3, 5))
MULTI = (torch.rand(B, C) > 0.5).double()
VALUES = torch.randn(B, dtype=torch.float64)
TARGETS = torch.randn(B, dtype=torch.float64)
LOG_PROBABILITY = torch.log_softmax(LOGITS, 1)
# Log-probabilities over time, labels, and the lengths of both; one target is empty.
SPEECH = torch.randn(12, 3, C, dtype=torch.float64).log_softmax(2)
SPOKEN = torch.randint(1, C, (3, 5)), torch.tensor([12, 12, 9]), torch.tensor([5, 2, 0])

# A criterion and its inputs. In evaluation, and with all weights one, each must be what torch's own mean says.
CRITERIA = {
    "cross entropy": (nn.CrossEntropyLoss(), LOGITS, LABELS),
    "class weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHT), LOGITS, LABELS),
    "ignored": (nn.CrossEntropyLoss(), LOGITS, IGNORING),
    "ignored and weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHT, ignore_index=1), LOGITS, LABELS),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), LOGITS, IGNORING),
    "smoothed and weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHT, label_smoothing=0.1), LOGITS, IGNORING),
    "soft": (nn.CrossEntropyLoss(), LOGITS, SOFT),
    "soft and weights": (nn.CrossEntropyLoss(weight=CLASS_WEIGHT), LOGITS, SOFT),
    "soft and smoothed": (nn.CrossEntropyLoss(label_smoothing=0.2), LOGITS, SOFT),
    "segmentation": (nn.CrossEntropyLoss(), IMAGE, PIXELS),
    "soft segmentation": (nn.CrossEntropyLoss(label_smoothing=0.1), IMAGE, torch.softmax(IMAGE.flip(0), 1)),
    "nll": (nn.NLLLoss(weight=CLASS_WEIGHT), LOG_PROBABILITY, LABELS),
    "bce": (nn.BCELoss(weight=CLASS_WEIGHT), torch.sigmoid(LOGITS), MULTI),
    "bce logits": (nn.BCEWithLogitsLoss(), LOGITS, MULTI),
    "bce weights": (nn.BCEWithLogitsLoss(weight=CLASS_WEIGHT, pos_weight=CLASS_WEIGHT + 1), LOGITS, MULTI),
    "mse": (nn.MSELoss(), VALUES, TARGETS),
    "mse of rows": (nn.MSELoss(), LOGITS, LOGITS.flip(0)),
    "l1": (nn.L1Loss(), VALUES, TARGETS),
    "huber": (nn.HuberLoss(delta=0.5), VALUES, TARGETS),
    "smooth l1": (nn.SmoothL1Loss(), VALUES, TARGETS),
    "kl divergence": (nn.KLDivLoss(reduction="batchmean"), LOG_PROBABILITY, SOFT),
    "gaussian": (nn.GaussianNLLLoss(), VALUES, TARGETS, torch.rand(B, dtype=torch.float64) + 0.1),
    "poisson": (nn.PoissonNLLLoss(), VALUES, TARGETS.abs()),
    "multi margin": (nn.MultiMarginLoss(weight=CLASS_WEIGHT), LOGITS, LABELS),
    "multi label": (nn.MultiLabelSoftMarginLoss(weight=CLASS_WEIGHT), LOGITS, MULTI),
    "function": (F.cross_entropy, LOGITS, LABELS),
    "partial": (partial(F.cross_entropy, label_smoothing=0.1, weight=CLASS_WEIGHT), LOGITS, LABELS),
    "function of rows": (F.mse_loss, LOGITS, LOGITS.flip(0)),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), LOGITS, LABELS),
    "sum of rows": (nn.BCEWithLogitsLoss(reduction="sum"), LOGITS, MULTI),
    "partial sum": (partial(F.l1_loss, reduction="sum"), VALUES, TARGETS),
    "unlisted partial sum": (partial(F.soft_margin_loss, reduction="sum"), VALUES, TARGETS.sign()),
    "unlisted partial mean": (partial(F.soft_margin_loss, reduction="mean"), VALUES, TARGETS.sign()),
    "sum by default": (lambda x, y, reduction="sum": F.l1_loss(x, y, reduction=reduction), VALUES, TARGETS),
    "ctc": (nn.CTCLoss(), SPEECH, *SPOKEN),
    "ctc with tuples": (nn.CTCLoss(), SPEECH, SPOKEN[0], (12, 12, 9), (5, 2, 0)),
    "ctc sum": (nn.CTCLoss(reduction="sum"), SPEECH, *SPOKEN),
    "ctc function": (F.ctc_loss, SPEECH, *SPOKEN),
}


def weight(loss: float, tau: float = 1.0) -> float:
    return math.exp(min(max(loss, 0.0), tau) / (tau + 1))


@pytest.mark.parametrize("name", CRITERIA)
def test_evaluation_is_the_plain_criterion(name):
    criterion, *inputs = CRITERIA[name]
    reweighted = Reweighted(criterion, tau=1.0)
    expected = criterion(*inputs)
    torch.testing.assert_close(reweighted.eval()(*inputs), expected, rtol=1e-12, atol=0)
    assert reweighted.weights is None
    with torch.no_grad():
        torch.testing.assert_close(reweighted.train()(*inputs), expected, rtol=1e-12, atol=0)
    # The reduction in training is the same one: with a vanishing gamma every weight is one.
    torch.testing.assert_close(Reweighted(criterion, tau=1.0, gamma=0.0)(*inputs), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CRITERIA)
def test_the_callers_criterion_is_left_alone(name):
    criterion = CRITERIA[name][0]
    if not isinstance(criterion, nn.Module):
        pytest.skip("functions have no state")
    before = copy.deepcopy(criterion.__dict__)
    Reweighted(criterion, tau=1.0)(*CRITERIA[name][1:])
    assert repr(criterion.__dict__) == repr(before)


def softmax_losses(logits: torch.Tensor, labels: torch.Tensor) -> list[float]:
    return [float(torch.logsumexp(row, 0) - row[label]) for row, label in zip(logits, labels.clamp(min=0), strict=True)]


def test_class_weights_and_ignored_labels_written_out():
    """The weight sees the loss without class weights; the mean divides by the class weights of real labels."""
    losses = softmax_losses(LOGITS, IGNORING)
    above = below = plain = 0.0
    for loss, label in zip(losses, IGNORING.tolist(), strict=True):
        if label != -100:
            class_weight = float(CLASS_WEIGHT[label])
            above += weight(loss) * class_weight * loss
            below += class_weight
            plain += weight(loss) * loss
    found = Reweighted(nn.CrossEntropyLoss(weight=CLASS_WEIGHT), tau=1.0)(LOGITS, IGNORING)
    assert float(found) == pytest.approx(above / below, rel=1e-12)
    found = Reweighted(nn.CrossEntropyLoss(), tau=1.0)(LOGITS, IGNORING)
    assert float(found) == pytest.approx(plain / 4, rel=1e-12)


@pytest.mark.parametrize("labels", [LABELS.to(torch.uint8), LABELS])
def test_labels_of_one_byte(labels):
    criterion = nn.CrossEntropyLoss(weight=CLASS_WEIGHT, ignore_index=3)
    found = Reweighted(criterion, tau=1.0)(LOGITS, labels)
    assert float(found) == pytest.approx(float(Reweighted(criterion, tau=1.0)(LOGITS, LABELS)), rel=1e-12)
    assert Reweighted(nn.CrossEntropyLoss()).eval()(LOGITS, labels) == nn.CrossEntropyLoss()(LOGITS, LABELS)


def test_positive_weights_written_out():
    """Multi-label: a sample's weight comes from its mean loss without any class weight."""
    criterion = nn.BCEWithLogitsLoss(weight=CLASS_WEIGHT, pos_weight=CLASS_WEIGHT + 1)
    total = 0.0
    for logits, targets in zip(LOGITS.tolist(), MULTI.tolist(), strict=True):
        plain = weighted = 0.0
        for c, (z, t) in enumerate(zip(logits, targets, strict=True)):
            positive, negative = t * math.log1p(math.exp(-z)), (1 - t) * math.log1p(math.exp(z))
            plain += (positive + negative) / C
            weighted += float(CLASS_WEIGHT[c]) * (positive * float(CLASS_WEIGHT[c] + 1) + negative) / C
        total += weight(plain) * weighted / B
    assert float(Reweighted(criterion, tau=1.0)(LOGITS, MULTI)) == pytest.approx(total, rel=1e-10)


def test_regression_weight_is_of_the_square_without_a_half():
    squares = [(float(v) - float(t)) ** 2 for v, t in zip(VALUES, TARGETS, strict=True)]
    expected = sum(weight(s) * s for s in squares) / B
    assert float(Reweighted(nn.MSELoss(), tau=1.0)(VALUES, TARGETS)) == pytest.approx(expected, rel=1e-12)


# --- levels: (2, 3) tokens of which one is ignored ---

TOKENS = torch.tensor([[0.5, 3.0, 0.2], [2.0, 0.1, 0.0]], dtype=torch.float64)


def token_inputs():
    """Logits of two classes whose cross entropy against label 0 is TOKENS."""
    other = torch.log(torch.expm1(TOKENS).clamp(min=1e-300))
    logits = torch.stack([torch.zeros_like(other), other], dim=1)
    labels = torch.zeros(2, 3, dtype=torch.int64)
    labels[1, 2] = -100
    return logits, labels


LEVELS = {
    # each token on its own, over five real tokens
    "token": sum(weight(x) * x for x in (0.5, 3.0, 0.2, 2.0, 0.1)) / 5,
    # sequence means 3.7/3 and 2.1/2; sums over five real tokens
    "sequence": (weight(3.7 / 3) * 3.7 + weight(2.1 / 2) * 2.1) / 5,
    # means over the rest, then over the two samples
    "sample": (weight(3.7 / 3) * 3.7 / 3 + weight(2.1 / 2) * 2.1 / 2) / 2,
}
PLAIN = 5.8 / 5  # the criterion's own, whatever the level


@pytest.mark.parametrize("level", LEVELS)
def test_levels_written_out(level):
    logits, labels = token_inputs()
    reweighted = Reweighted(nn.CrossEntropyLoss(), tau=1.0, level=level)
    assert float(reweighted(logits, labels)) == pytest.approx(LEVELS[level], rel=1e-9)
    assert float(reweighted.eval()(logits, labels)) == pytest.approx(PLAIN, rel=1e-9)
    saturating = Reweighted(nn.CrossEntropyLoss(), tau=1.2, level=level)  # the two sequence means differ in weight
    assert float(saturating(logits, labels)) != pytest.approx(LEVELS[level], rel=1e-3)


def test_a_callable_level():
    def largest(losses):
        return losses.amax(1)

    reweighted = Reweighted(nn.CrossEntropyLoss(), tau=1.0, level=largest)
    assert float(reweighted(*token_inputs())) == pytest.approx((weight(3.0) * 3.0 + weight(2.0) * 2.0) / 2, rel=1e-9)
    assert "level='largest'" in repr(reweighted)


@pytest.mark.parametrize("weights", [None, CLASS_WEIGHT], ids=["plain", "class weights"])
@pytest.mark.parametrize("rule", [torch.flatten, lambda x: x.flatten(1).mean(1), lambda x: x.flatten(1).sum(1)])
def test_a_callable_level_keeps_masks_and_class_weights(rule, weights):
    """Against the named level of the same units; sums over pixels weigh by fifteen times the mean."""
    summed = rule(torch.ones(1, 15)).item() == 15 if rule is not torch.flatten else False
    level = "token" if rule is torch.flatten else "sequence"
    criterion = nn.CrossEntropyLoss(weight=weights, ignore_index=2)
    ours, named = Reweighted(criterion, tau=30.0, level=rule), Reweighted(criterion, tau=30.0, level=level)
    loss, expected = ours(IMAGE, PIXELS), named(IMAGE, PIXELS)
    torch.testing.assert_close(ours.losses, named.losses * (15 if summed else 1), rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.mask, named.mask)
    if not summed:
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.eval()(IMAGE, PIXELS), criterion(IMAGE, PIXELS), rtol=1e-12, atol=0)


@pytest.mark.parametrize("level", ["sample", "token", "sequence", lambda x: x.flatten(1).mean(1)])
def test_evaluation_with_sample_weights_of_one_is_the_criterion(level):
    criterion = nn.CrossEntropyLoss(weight=CLASS_WEIGHT, ignore_index=2)
    reweighted = Reweighted(criterion, level=level).eval()
    units = 30 if level == "token" else 2
    for own in (torch.ones(units), torch.ones(2, 3, 5)):
        found = reweighted(IMAGE, PIXELS, sample_weight=own)
        torch.testing.assert_close(found, criterion(IMAGE, PIXELS), rtol=1e-12, atol=0)
    own = torch.rand(2, 3, 5, dtype=torch.float64)  # of each element: their weighted mean
    amounts = own * torch.where(PIXELS == 2, 0.0, CLASS_WEIGHT[PIXELS])
    losses = F.cross_entropy(IMAGE, PIXELS, reduction="none")
    expected = (amounts * losses).sum() / amounts.sum()
    torch.testing.assert_close(reweighted(IMAGE, PIXELS, sample_weight=own), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("level", ["sample", "token", "sequence"])
def test_token_levels_with_class_weights_keep_torchs_denominator(level):
    criterion = nn.CrossEntropyLoss(weight=CLASS_WEIGHT, ignore_index=2)
    found = Reweighted(criterion, tau=1.0, level=level).eval()(IMAGE, PIXELS)
    torch.testing.assert_close(found, criterion(IMAGE, PIXELS), rtol=1e-12, atol=0)


def test_a_sequence_of_pads_only_counts_for_nothing():
    logits, labels = token_inputs()
    labels[1] = -100
    for level in LEVELS:
        reweighted = Reweighted(nn.CrossEntropyLoss(), tau=2.0, level=level)
        found = float(reweighted(logits, labels))
        alone = float(Reweighted(nn.CrossEntropyLoss(), tau=2.0, level=level)(logits[:1], labels[:1]))
        assert found == pytest.approx(alone, rel=1e-12)


# --- floors ---


def test_smoothing_over_many_classes_does_not_switch_re_weighting_off():
    classes, smoothing = 1000, 0.1
    logits = torch.zeros(4, classes, dtype=torch.float64)
    logits[torch.arange(4), torch.arange(4)] = torch.tensor([16.0, 12.0, 9.0, 0.0], dtype=torch.float64)
    labels = torch.arange(4)
    with_floor = Reweighted(nn.CrossEntropyLoss(label_smoothing=smoothing), tau=1.0)
    without = Reweighted(nn.CrossEntropyLoss(label_smoothing=smoothing), tau=1.0, floor=False)
    without(logits, labels)
    assert without.weights is not None
    assert without.weights.tolist() == pytest.approx([math.exp(0.5)] * 4)  # ERM in disguise
    with_floor(logits, labels)
    assert with_floor.losses is not None
    top, rest = 1 - smoothing + smoothing / classes, smoothing / classes
    entropy = -top * math.log(top) - (classes - 1) * rest * math.log(rest)
    assert entropy > 1.0
    raw = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(with_floor.losses, raw - entropy)
    assert with_floor.weights is not None
    assert with_floor.weights.max() / with_floor.weights.min() > 1.2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_floor_is_the_smallest_loss_the_target_allows(smoothing):
    """At the best possible output the weight sees exactly zero."""
    mixed = 0.3 * F.one_hot(LABELS, C).double() + 0.7 * F.one_hot(LABELS.flip(0), C).double()
    smoothed = mixed * (1 - smoothing) + smoothing / C
    best = torch.log(smoothed.clamp(min=1e-300))
    reweighted = Reweighted(nn.CrossEntropyLoss(label_smoothing=smoothing), tau=1.0)
    reweighted(best, mixed)
    torch.testing.assert_close(reweighted.losses, torch.zeros(B, dtype=torch.float64), atol=1e-12, rtol=0)
    reweighted(LOGITS, mixed)
    assert reweighted.losses is not None
    assert (reweighted.losses > 0).all()


def test_the_floor_of_soft_binary_targets():
    targets = torch.tensor([[0.2, 0.9], [1.0, 0.0]], dtype=torch.float64)
    best = torch.logit(targets, eps=1e-15)
    reweighted = Reweighted(nn.BCEWithLogitsLoss(), tau=1.0)
    reweighted(best, targets)
    torch.testing.assert_close(reweighted.losses, torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_floor_leaves_the_loss_itself_alone():
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    gradients = []
    for floor in (True, False):
        logits = LOGITS.clone().requires_grad_()
        Reweighted(criterion, tau=1e-9, floor=floor)(logits, LABELS).backward()  # every weight is one
        gradients.append(logits.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_ignored_labels_have_loss_zero_for_the_objective():
    reweighted = Reweighted(nn.CrossEntropyLoss(label_smoothing=0.1), tau=1.0, level="token")
    reweighted(LOGITS, IGNORING)
    assert reweighted.losses is not None
    assert reweighted.losses[IGNORING == -100].tolist() == [0.0, 0.0]


# --- gradients, options per call ---


def test_gradient_is_that_of_the_weighted_sum():
    logits = LOGITS.clone().requires_grad_()
    Reweighted(nn.CrossEntropyLoss(), tau=1.0)(logits, LABELS).backward()
    losses = softmax_losses(LOGITS, LABELS)
    softmax = torch.softmax(LOGITS, 1) - F.one_hot(LABELS, C)
    expected = torch.stack([weight(loss) * row / B for loss, row in zip(losses, softmax, strict=True)])
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-15)


def test_gradcheck_of_the_honest_value():
    """With `surrogate` the returned value is what is minimised: finite differences agree with backward."""
    reweighted = Reweighted(nn.CrossEntropyLoss(), RGD(tau=1.0, surrogate=True))
    base = LOGITS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(reweighted(base, LABELS), base)
    step = 1e-6
    for i, j in ((0, 0), (3, 2), (5, 1)):
        up, down = LOGITS.clone(), LOGITS.clone()
        up[i, j] += step
        down[i, j] -= step
        difference = (reweighted(up, LABELS) - reweighted(down, LABELS)) / (2 * step)
        assert float(difference) == pytest.approx(float(slope[i, j]), abs=1e-8)


def test_count_and_sample_weight():
    losses = softmax_losses(LOGITS, LABELS)
    own = torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 1.0])
    reweighted = Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    above = sum(float(o) * weight(x) * x for o, x in zip(own, losses, strict=True))
    assert float(reweighted(LOGITS, LABELS, sample_weight=own)) == pytest.approx(above / 8, rel=1e-12)
    total = sum(weight(x) * x for x in losses)
    assert float(reweighted(LOGITS, LABELS, count=50)) == pytest.approx(total / 50, rel=1e-12)
    parts = reweighted(LOGITS[:4], LABELS[:4], count=6) + reweighted(LOGITS[4:], LABELS[4:], count=6)
    assert float(parts) == pytest.approx(total / 6, rel=1e-12)
    assert float(global_count(7)) == 7.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_counts_every_token(dtype):
    """70,000 tokens are infinitely many in float16: the mean must not become zero."""
    logits, labels = torch.zeros(70_000, 2, dtype=dtype), torch.zeros(70_000, dtype=torch.int64)
    labels[-100:] = -100
    loss = Reweighted(nn.CrossEntropyLoss(), tau=1.0)(logits, labels)
    assert loss.dtype == dtype
    assert float(loss) == pytest.approx(weight(math.log(2)) * math.log(2), rel=2**-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    torch.manual_seed(0)
    model, x = nn.Linear(5, C), torch.randn(B, 5)
    reweighted = Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    with torch.autocast("cpu", dtype):
        output = model(x)
        loss = reweighted(output, LABELS)
    loss.backward()
    assert output.dtype == dtype
    assert loss.dtype == torch.float32
    expected = sum(weight(x) * x for x in softmax_losses(output.detach().double(), LABELS)) / B
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["ignored and weights", "smoothed and weights", "soft and weights", "bce weights"])
@pytest.mark.parametrize("level", ["sample", "token", "sequence"])
def test_nothing_is_made_on_another_device(name, level):
    """The meta device holds no values: a look at one would fail, and so would a tensor made on the CPU."""
    criterion, *inputs = CRITERIA[name]
    reweighted = Reweighted(criterion, RGD(warmup=1), level=level).to("meta")
    output, target = (x.to("meta") for x in inputs)
    loss = reweighted(output.requires_grad_(), target, count=global_count(torch.ones((), device="meta")))
    loss.backward()
    assert loss.device.type == "meta"
    assert output.grad is not None
    assert reweighted.weights is not None
    assert reweighted.weights.device.type == "meta"
    assert reweighted.state_step.device.type == "meta"


def test_nonfinite():
    outputs = torch.tensor([0.5, float("nan"), 1.0, float("inf")], dtype=torch.float64, requires_grad=True)
    targets = torch.zeros(4, dtype=torch.float64)
    assert torch.isnan(Reweighted(nn.L1Loss())(outputs, targets))
    skipping = Reweighted(nn.L1Loss(), nonfinite="skip")
    loss = skipping(outputs, targets)
    assert float(loss.detach()) == pytest.approx((weight(0.5) * 0.5 + weight(1.0)) / 2)
    loss.backward()
    assert outputs.grad is not None
    assert outputs.grad[[1, 3]].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="got 2 of 4 that are NaN or infinite, the first at index 1"):
        Reweighted(nn.L1Loss(), nonfinite="raise")(outputs, targets)


@pytest.mark.filterwarnings("ignore")  # torch's tracer looks at what torch warns of
@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.HuberLoss(delta=100.0)], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_skipped_unit_leaves_no_trace_in_the_gradient(criterion, compiled):
    """Zero times the gradient of a NaN target would be NaN in every parameter."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(5, 3)
    targets = torch.tensor([0.3, float("nan"), -1.0, float("inf"), 0.9])
    skipping = Reweighted(criterion, tau=1.0, nonfinite="skip")
    called = torch.compile(skipping, fullgraph=True, backend="aot_eager") if compiled else skipping
    called(model(x).squeeze(-1), targets).backward()
    found = model.weight.grad
    model.weight.grad = None
    real = torch.isfinite(targets)
    Reweighted(criterion, tau=1.0)(model(x[real]).squeeze(-1), targets[real]).backward()
    torch.testing.assert_close(found, model.weight.grad)


def test_skipping_hides_no_overflow_from_a_gradient_scaler():
    outputs = torch.ones(2, requires_grad=True)
    loss = Reweighted(nn.MSELoss(), nonfinite="skip")(outputs, torch.zeros(2))
    (loss * float("inf")).backward()
    assert outputs.grad is not None
    assert torch.isinf(outputs.grad).all()


# --- what it keeps ---


def test_losses_weights_and_statistics():
    reweighted = Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    assert reweighted.stats() == {}
    reweighted(LOGITS.clone().requires_grad_(), LABELS)
    losses = softmax_losses(LOGITS, LABELS)
    assert reweighted.losses is not None
    assert reweighted.weights is not None
    assert not reweighted.losses.requires_grad
    assert not reweighted.weights.requires_grad
    assert reweighted.losses.tolist() == pytest.approx(losses)
    assert reweighted.weights.tolist() == pytest.approx([weight(x) for x in losses])
    assert reweighted.stats()["clip_share"] == sum(x >= 1 for x in losses) / B
    assert reweighted.stats()["loss"] == pytest.approx(sum(losses) / B)


def test_state_lives_in_buffers():
    reweighted = Reweighted(nn.CrossEntropyLoss(), RGD(warmup=2))
    plain = float(nn.CrossEntropyLoss()(LOGITS, LABELS))
    weighed = float(Reweighted(nn.CrossEntropyLoss())(LOGITS, LABELS))
    assert list(reweighted.state_dict()) == ["state_step"]
    assert float(reweighted(LOGITS, LABELS)) == pytest.approx(plain)
    assert float(reweighted.eval()(LOGITS, LABELS)) == pytest.approx(plain)  # evaluation is no step
    restored = Reweighted(nn.CrossEntropyLoss(), RGD(warmup=2))
    restored.load_state_dict(reweighted.state_dict())
    values = [float(restored(LOGITS, LABELS)) for _ in range(3)]
    assert values == pytest.approx([plain, weighed, weighed])
    assert int(restored.state_step) == 4


def test_accumulation_moves_the_state_once_a_step():
    reweighted = Reweighted(nn.CrossEntropyLoss(), RGD(warmup=2), accumulation=3)
    steps = []
    for _ in range(7):
        reweighted(LOGITS, LABELS)
        steps.append(int(reweighted.state_step))
    assert steps == [0, 0, 1, 1, 1, 2, 2]


def test_a_shorter_step_moves_the_state_when_told():
    reweighted = Reweighted(nn.CrossEntropyLoss(), RGD(warmup=2), accumulation=3)
    reweighted(LOGITS, LABELS)
    reweighted.flush()
    assert int(reweighted.state_step) == 1
    reweighted.flush()  # nothing is left
    assert int(reweighted.state_step) == 1
    for _ in range(3):
        reweighted(LOGITS, LABELS)
    reweighted.flush()
    assert int(reweighted.state_step) == 2


def test_micro_batches_with_and_without_weights_are_pooled_alike():
    """The average loss that SuperLoss remembers: one of the two micro-batches has units that do not count."""
    superloss = Reweighted(nn.L1Loss(), SuperLoss(), accumulation=2)
    superloss(torch.tensor([1.0, 1.0]), torch.zeros(2))
    superloss(torch.tensor([1.0, 4.0]), torch.zeros(2), sample_weight=torch.tensor([1.0, 0.0]))
    assert float(superloss.state_mean) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_state_stays_wide(dtype):
    """In bfloat16 the small steps of a learnt temperature round away: it would never move."""
    wide, narrow = (Reweighted(nn.L1Loss(), SCDRO()) for _ in range(2))
    narrow.to(dtype)
    assert {name: value.dtype for name, value in narrow.state_dict().items()} == {
        name: value.dtype for name, value in wide.state_dict().items()
    }
    outputs = torch.tensor([0.5, 1.0, 2.0, 4.0])
    for _ in range(20):
        for reweighted in (wide, narrow):
            reweighted(outputs, torch.zeros(4))
    assert float(wide.state_lam) != SCDRO().lam
    torch.testing.assert_close(narrow.state_lam, wide.state_lam)


def test_class_weights_move_and_save_with_the_module():
    reweighted = Reweighted(nn.CrossEntropyLoss(weight=CLASS_WEIGHT.float()), tau=1.0)
    assert list(reweighted.state_dict()) == ["criterion.inner.weight"]
    reweighted.double()
    assert float(reweighted(LOGITS, LABELS)) == pytest.approx(
        float(Reweighted(nn.CrossEntropyLoss(weight=CLASS_WEIGHT), tau=1.0)(LOGITS, LABELS)), rel=1e-6
    )
    assert reweighted.to("meta")(LOGITS.to("meta"), LABELS.to("meta")).device.type == "meta"


def test_copies_and_pickles():
    reweighted = Reweighted(nn.CrossEntropyLoss(weight=CLASS_WEIGHT), RGD(tau=2.0, warmup=1))
    reweighted(LOGITS.clone().requires_grad_(), LABELS)
    expected = None
    for twin in (copy.deepcopy(reweighted), pickle.loads(pickle.dumps(reweighted))):
        assert int(twin.state_step) == 1
        value = float(twin(LOGITS, LABELS))
        expected = value if expected is None else expected
        assert value == expected
    assert int(reweighted.state_step) == 1


def test_a_criterion_that_learns_still_trains_the_callers_parameters():
    class Centres(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.zeros(C, 2))
            self.reduction = "mean"

        def forward(self, features, labels):
            distance = (features - self.centres[labels]).square().sum(1)
            return distance if self.reduction == "none" else distance.mean()

    own = Centres()
    reweighted = Reweighted(own, tau=1.0)
    reweighted(torch.ones(B, 2), LABELS).backward()
    assert own.centres.grad is not None
    assert own.reduction == "mean"
    assert [p is own.centres for p in reweighted.parameters()] == [True]


@pytest.mark.parametrize(
    "criterion",
    [
        lambda output, target: (output - target).abs(),
        lambda output, target, reduction="mean": F.l1_loss(output, target, reduction=reduction),
        nn.L1Loss(),
        partial(F.smooth_l1_loss, beta=1e-12),
    ],
)
def test_any_callable(criterion):
    found = Reweighted(criterion, tau=1.0)(VALUES, TARGETS)
    expected = sum(weight(abs(float(v - t))) * abs(float(v - t)) for v, t in zip(VALUES, TARGETS, strict=True)) / B
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_ctc_weighs_by_the_loss_of_a_label():
    losses = nn.CTCLoss(reduction="none")(SPEECH, *SPOKEN) / torch.tensor([5, 2, 1])
    expected = sum(weight(float(x), tau=3.0) * float(x) for x in losses) / 3
    assert float(Reweighted(nn.CTCLoss(), tau=3.0)(SPEECH, *SPOKEN)) == pytest.approx(expected, rel=1e-12)
    # Who averages the losses as they are has not divided them.
    summed = nn.CTCLoss(reduction="none")
    torch.testing.assert_close(Reweighted(summed).eval()(SPEECH, *SPOKEN), summed(SPEECH, *SPOKEN).mean())


def test_weights_of_units_belong_to_the_call():
    with pytest.raises(TypeError, match=r"mse_loss with weight averages in a way of its own.*as `sample_weight`"):
        Reweighted(partial(F.mse_loss, weight=torch.ones(B)))


# --- misuse ---


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.BCEWithLogitsLoss(), lambda a, b: (a - b) ** 2])
def test_outputs_with_a_spare_axis_are_refused(criterion):
    target = torch.rand(B, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"shape \(6, 1\) and the target \(6,\).*output\.squeeze\(-1\)"):
        Reweighted(criterion)(VALUES[:, None], target)


def test_broadcast_the_other_way_is_refused():
    with pytest.raises(ValueError, match=r"broadcast against each other: shapes \(6,\) and \(6, 1\) gave .*\(6, 6\)"):
        Reweighted(lambda a, b: (a - b) ** 2)(VALUES, TARGETS[:, None])


def test_a_criterion_without_units_is_refused():
    with pytest.raises(ValueError, match=r"returned a single number, so there is no unit axis.*reduction='none'"):
        Reweighted(lambda a, b: (a - b).pow(2).mean())(VALUES, TARGETS)
    with pytest.raises(ValueError, match="no unit axis"):
        Reweighted(nn.CrossEntropyLoss())(LOGITS[0], LABELS[0])
    with pytest.raises(TypeError, match="must return a tensor of losses, got dict"):
        Reweighted(lambda a, b: {"loss": a - b})(VALUES, TARGETS)
    with pytest.raises(TypeError, match="must be a module or a function, got 3"):
        Reweighted(3)


def test_errors_at_construction():
    with pytest.raises(TypeError, match=r"either an objective or hyper-parameters of RGD, got 'rgd' and tau"):
        Reweighted(nn.MSELoss(), RGD(), tau=1.0)
    with pytest.raises(
        ValueError, match=r"`level` must be one of 'sample', 'token', 'sequence', got 'tokens'\. Did you"
    ):
        Reweighted(nn.MSELoss(), level="tokens")
    with pytest.raises(ValueError, match="`nonfinite` must be one of"):
        Reweighted(nn.MSELoss(), nonfinite="drop")
    with pytest.raises(ValueError, match="`accumulation` must be a whole number of at least 1, got 0"):
        Reweighted(nn.MSELoss(), accumulation=0)
    with pytest.raises(ValueError, match="`tau` must be a positive number, got -1"):
        Reweighted(nn.MSELoss(), tau=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'temperature'"):
        Reweighted(nn.MSELoss(), temperature=1.0)
    with pytest.raises(TypeError, match="`floor` must be True or False, got 'no'"):
        Reweighted(nn.MSELoss(), floor="no")


# --- what may stand for criterion and objective ---


@pytest.mark.parametrize(
    ("given", "objective"),
    [
        ("cvar:alpha=0.1", CVaR(alpha=0.1)),
        (reweigh.method("term:t=2"), TERM(t=2.0)),
        (reweigh.ReverseKL(tau=2.0), RGD(weight=reweigh.ReverseKL(tau=2.0))),
        (CVaR(alpha=0.3), CVaR(alpha=0.3)),
    ],
    ids=str,
)
def test_anything_that_stands_for_an_objective(given, objective):
    found, expected = Reweighted(nn.CrossEntropyLoss(), given), Reweighted(nn.CrossEntropyLoss(), objective)
    assert found.objective == objective
    torch.testing.assert_close(found(LOGITS, LABELS), expected(LOGITS, LABELS))


def test_a_method_may_stand_for_both():
    for given in ("focal:gamma=1+rgd:tau=3", reweigh.method("focal:gamma=1+rgd:tau=3")):
        found = Reweighted(given)
        expected = Reweighted(Focal(gamma=1.0), tau=3.0)
        torch.testing.assert_close(found(LOGITS, LABELS), expected(LOGITS, LABELS))
    assert Reweighted("focal", tau=3.0).objective == RGD(tau=3.0)
    assert Reweighted("cvar").criterion.inner == CrossEntropy()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.MSELoss(), RGD), r"`objective` must be a value, got the class RGD\. Call it: RGD\(\)\."),
        ((nn.MSELoss(), reweigh.KL), r"got the class KL\. Call it: KL\(\)\."),
        ((nn.MSELoss,), r"got the class MSELoss\. Call it: MSELoss\(\)\."),
        ((None,), r"`criterion` must be a module, a function or a method, got None\."),
        ((nn.MSELoss(), 0.5), r"`objective` must be a method's text, .*got float\. For example \"rgd:tau=3\""),
        ((nn.MSELoss(), "rgf"), r"there is no method named 'rgf'\. Did you mean 'rgd'"),
        ((nn.MSELoss(), "focal+rgd"), r"'focal\+rgd' has a loss of its own, got MSELoss.*Reweighted\(method\)"),
        (
            (nn.MSELoss(), "rgd+sam"),
            r"got 'rgd\+sam' with the step 'sam': .*use `built\.step` of .*training loop",
        ),
        ((nn.MSELoss(), "rgd+ema"), r"with the average 'ema': .*`built\.average`"),
        (("hardness+focal",), r"with the sampler 'hardness': .*`built\.sampler`"),
        (("focal+rgd", RGD()), r"'focal\+rgd' has an objective of its own"),
    ],
    ids=str,
)
def test_what_cannot_stand_for_them_gets_one_sentence(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Reweighted(*arguments)


@pytest.mark.parametrize("name", ["cross_entropy", "focal", "poly", "large_margin", "label_smoothing", "gce"])
def test_a_label_that_is_no_class_is_named_with_the_way_to_ignore_it(name):
    labels = torch.tensor([0, -100, 2])
    message = rf"from 0 to 2, got -100\. .*'{name}:ignore_index=-100'"
    with pytest.raises(ValueError, match=message):
        Reweighted(name, tau=1.0)(torch.zeros(3, 3), labels)
    ignoring = Reweighted(f"{name}:ignore_index=-100", tau=1.0)
    torch.testing.assert_close(ignoring(torch.zeros(3, 3), labels), ignoring(torch.zeros(2, 3), labels[[0, 2]]))


COUNTS = [6, 3, 1, 2]


def test_class_counts_reach_the_loss():
    bound = Reweighted("class_balanced:beta=0.9+rgd:tau=3", class_counts=COUNTS)
    later = Reweighted("class_balanced:beta=0.9+rgd:tau=3", class_counts="auto")
    with pytest.raises(ValueError, match=r"class_counts='auto' leaves the counting .*criterion\.bind\(class_counts\)"):
        later(LOGITS, LABELS)
    later.bind(COUNTS)
    expected = Reweighted(ClassBalanced(beta=0.9, class_counts=tuple(COUNTS)), tau=3.0)(LOGITS, LABELS)
    for criterion in (bound, later):
        torch.testing.assert_close(criterion(LOGITS, LABELS), expected, rtol=0, atol=0)
    assert torch.isfinite(Reweighted("rgd:tau=3", class_counts="auto")(LOGITS, LABELS))  # nothing waits for counts
    with pytest.raises(ValueError, match="`class_counts` must be one of 'auto', got 'all'"):
        Reweighted("class_balanced", class_counts="all")


def test_the_correction_of_a_method_undoes_the_shares_of_the_classes():
    """Logits less the logarithm of each class's share, written out."""
    criterion = Reweighted(nn.CrossEntropyLoss(), "rgd:tau=3+prior", class_counts=COUNTS)
    corrected = criterion.correction(LOGITS, LABELS)(LOGITS)
    expected = [[z - math.log(n / 12) for z, n in zip(row, COUNTS, strict=True)] for row in LOGITS.tolist()]
    np.testing.assert_allclose(corrected, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="the method has no correction after training"):
        Reweighted("rgd").correction(LOGITS, LABELS)
    with pytest.raises(ValueError, match="`class_counts` must be given to prior, got None"):
        Reweighted("rgd+prior", class_counts="auto").correction(LOGITS, LABELS)


# --- inputs by name, weights of elements ---


def test_inputs_by_name():
    criterion = nn.CrossEntropyLoss()
    torch.testing.assert_close(
        Reweighted(criterion)(input=LOGITS, target=LABELS), Reweighted(criterion)(LOGITS, LABELS)
    )
    torch.testing.assert_close(Reweighted(criterion)(LOGITS, target=LABELS), Reweighted(criterion)(LOGITS, LABELS))
    spoken, frames, labels = SPOKEN
    found = Reweighted(nn.CTCLoss())(SPEECH, spoken, input_lengths=frames, target_lengths=labels)
    torch.testing.assert_close(found, Reweighted(nn.CTCLoss())(SPEECH, *SPOKEN))
    for names in ({"output": LOGITS}, {"input": LOGITS}):
        torch.testing.assert_close(Reweighted(Focal())(**names, target=LABELS), Reweighted(Focal())(LOGITS, LABELS))

    def scaled(output, target, *, scale=1.0):
        return scale * (output - target) ** 2

    own = (2.0 * (VALUES - TARGETS) ** 2).tolist()
    found = Reweighted(scaled)(VALUES, target=TARGETS, scale=2.0)
    assert float(found) == pytest.approx(sum(weight(x) * x for x in own) / B, rel=1e-12)
    with pytest.raises(TypeError, match="the criterion takes input, target, got targets as well"):
        Reweighted(criterion)(LOGITS, targets=LABELS)


@pytest.mark.parametrize("level", ["token", "sample", "sequence"])
def test_weights_of_elements(level):
    """Weights of zero and one are labels that are ignored."""
    kept = PIXELS != 2
    found = Reweighted(nn.CrossEntropyLoss(), level="token")(IMAGE, PIXELS, sample_weight=kept.double())
    ignored = Reweighted(nn.CrossEntropyLoss(ignore_index=2), level="token")(IMAGE, PIXELS)
    torch.testing.assert_close(found, ignored)
    own = 0.5 + torch.rand(2, 1, 1, dtype=torch.float64).expand(2, 3, 5)  # the same for all elements of a sample
    of_elements = Reweighted(nn.CrossEntropyLoss(), level=level)(IMAGE, PIXELS, sample_weight=own)
    of_units = own.flatten() if level == "token" else own[:, 0, 0]
    expected = Reweighted(nn.CrossEntropyLoss(), level=level)(IMAGE, PIXELS, sample_weight=of_units)
    torch.testing.assert_close(of_elements, expected)


def test_no_gradient_flows_through_sample_weights():
    """As in `rgd`: they are data."""
    own, logits = torch.ones(B, dtype=torch.float64, requires_grad=True), LOGITS.clone().requires_grad_()
    for loss in (
        Reweighted(nn.CrossEntropyLoss())(logits, LABELS, sample_weight=own),
        reweigh.rgd(F.cross_entropy(logits, LABELS, reduction="none"), sample_weight=own),
    ):
        assert torch.autograd.grad(loss, [logits, own], allow_unused=True)[1] is None


def test_errors_per_call():
    with pytest.raises(ValueError, match=r"`sample_weight` must have one entry per unit, shape \(6,\), got \(6, 1\)"):
        Reweighted(nn.MSELoss())(VALUES, TARGETS, sample_weight=torch.ones(6, 1))
    with pytest.raises(ValueError, match=r"`groups` must have one entry per unit, shape \(6,\), got \(5,\)"):
        Reweighted(nn.MSELoss())(VALUES, TARGETS, groups=torch.ones(5))


def test_repr_tells_the_options():
    text = repr(Reweighted(nn.CrossEntropyLoss(), tau=3.0, level="token", floor=False))
    assert "objective=RGD(weight=KL(tau=3.0" in text
    assert "level='token', floor=False" in text


# --- compiled ---


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


@pytest.mark.parametrize(
    "name", ["class weights", "smoothed and weights", "soft and weights", "segmentation", "bce weights"]
)
def test_compiled_without_a_graph_break(name, graphs):
    criterion, *inputs = CRITERIA[name]
    reweighted = Reweighted(criterion, tau=1.0)
    expected = reweighted(*inputs)
    weights = reweighted.weights
    compiled = torch.compile(reweighted, fullgraph=True, backend=graphs)
    torch.testing.assert_close(compiled(*inputs), expected)
    torch.testing.assert_close(reweighted.weights, weights)


def test_compiled_state_moves_on(graphs):
    reweighted = Reweighted(nn.CrossEntropyLoss(), RGD(warmup=2))
    compiled = torch.compile(reweighted, fullgraph=True, backend=graphs)
    plain, weighed = nn.CrossEntropyLoss()(LOGITS, LABELS), Reweighted(nn.CrossEntropyLoss())(LOGITS, LABELS)
    for expected in (plain, plain, weighed, weighed):
        torch.testing.assert_close(compiled(LOGITS, LABELS), expected)
    torch.testing.assert_close(compiled.eval()(LOGITS, LABELS), plain)
    assert int(reweighted.state_step) == 4


def test_progress_compiles_few_graphs(graphs):
    from reweigh.torch.losses import LDAM

    reweighted = Reweighted(LDAM().bind([1000, 100, 10, 10]))
    compiled = torch.compile(reweighted, fullgraph=True, backend=graphs)
    for epoch in range(10):
        reweighted.criterion.progress = epoch / 10
        torch.testing.assert_close(compiled(LOGITS.tanh(), LABELS), reweighted(LOGITS.tanh(), LABELS))
    assert graphs.frame_count <= 5


def test_a_schedule_of_tau_compiles_few_graphs(graphs):
    reweighted = Reweighted(nn.CrossEntropyLoss())
    compiled = torch.compile(reweighted, fullgraph=True, backend=graphs)
    for tau in np.linspace(0.5, 4.0, 10).tolist():
        reweighted.objective = RGD(tau=tau)
        expected = float(reweigh.rgd(np.array(softmax_losses(LOGITS, LABELS)), tau))
        assert float(compiled(LOGITS, LABELS)) == pytest.approx(expected, rel=1e-12)
    assert graphs.frame_count <= 3


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch, about torch
def test_a_whole_step_in_native_code():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = nn.Linear(5, C), torch.randn(B, 5)
    reweighted = Reweighted(nn.CrossEntropyLoss(label_smoothing=0.1), tau=1.0)

    def loss(inputs, labels):
        return reweighted(model(inputs), labels)

    loss(x, LABELS).backward()
    assert model.weight.grad is not None
    expected, model.weight.grad = model.weight.grad, None
    torch.compile(loss, fullgraph=True)(x, LABELS).backward()
    torch.testing.assert_close(model.weight.grad, expected, rtol=1e-5, atol=1e-6)


class TestLossesOfOurOwn:
    """Our losses carry what they ignore, their class weights and their floor as methods."""

    output = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.3, 0.2], [-2.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
    target = torch.tensor([0, 2, 1, -100])

    def test_ignored_labels_count_nowhere(self):
        from reweigh.torch.losses import CrossEntropy

        ours = Reweighted(CrossEntropy(ignore_index=-100), tau=1.0)
        theirs = Reweighted(nn.CrossEntropyLoss(), tau=1.0)
        output = self.output.clone().requires_grad_()
        assert torch.allclose(ours(output, self.target), theirs(output, self.target))
        assert torch.allclose(ours.eval()(output, self.target), F.cross_entropy(output, self.target))

    def test_class_weights_multiply_after_the_weight(self):
        from reweigh.torch.losses import ClassBalanced

        loss = ClassBalanced(beta=0.9).bind([100, 10, 3])
        output, target = self.output[:3].clone().requires_grad_(), self.target[:3]
        class_weight = loss.sample_weight(target)
        losses = F.cross_entropy(output, target, reduction="none")
        weights = torch.exp(losses.detach().clamp(0, 1) / 2)
        expected = (weights * class_weight * losses).sum() / class_weight.sum()
        assert torch.allclose(Reweighted(loss, tau=1.0)(output, target), expected)

    def test_deferred_class_weights_start_when_training_has_come_that_far(self):
        from reweigh.objectives import Mean
        from reweigh.torch.losses import LDAM

        loss = LDAM(defer=0.8).bind([1000, 10, 10])
        output, target = self.output[:3].tanh(), self.target[:3]
        losses, class_weight = loss(output, target), loss.sample_weight(target)
        weighted = (class_weight * losses).sum() / class_weight.sum()
        assert not torch.allclose(weighted, losses.mean())
        criterion = Reweighted(loss, Mean())
        assert torch.allclose(criterion(output, target), losses.mean())
        for progress, expected in [(0.79, losses.mean()), (0.8, weighted), (1.0, weighted)]:
            criterion.criterion.progress = progress
            assert torch.allclose(criterion(output, target), expected)

    def test_class_weights_that_are_not_deferred_act_at_once(self):
        from reweigh.torch.losses import ClassBalanced

        criterion = Reweighted(ClassBalanced(beta=0.9).bind([100, 10, 3]), tau=1.0)
        start = criterion(self.output[:3], self.target[:3])
        criterion.criterion.progress = 1.0
        assert criterion(self.output[:3], self.target[:3]) == start

    def test_the_floor_of_smoothed_labels_is_not_seen(self):
        from reweigh.torch.losses import LabelSmoothing

        output, target = self.output[:3].clone().requires_grad_(), self.target[:3]
        criterion = Reweighted(LabelSmoothing(eps=0.1), tau=1.0)
        loss = criterion(output, target)
        smoothed = F.one_hot(target, 3) * 0.9 + 0.1 / 3
        losses = -(smoothed * output.log_softmax(1)).sum(1)
        entropy = -(smoothed * smoothed.log()).sum(1)
        weights = torch.exp((losses - entropy).detach().clamp(0, 1) / 2)
        assert torch.allclose(loss, (weights * losses).mean(), atol=1e-6)


def test_statistics_leave_ignored_labels_out():
    criterion = Reweighted(nn.CrossEntropyLoss(), tau=1.0)
    output = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0]], requires_grad=True)
    criterion(output, torch.tensor([1, 1, -100]))
    assert criterion.mask.tolist() == [True, True, False]
    stats = criterion.stats()
    assert stats["units"] == 2
    assert stats["clip_share"] == 0.5
