"""Losses against hand-worked numbers, sums written out in float64, and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reweigh
from reweigh.torch import Reweighted
from reweigh.torch.losses import (
    BCE,
    GCE,
    LDAM,
    MSE,
    SCE,
    VS,
    ClassBalanced,
    ClassLoss,
    ClassWeights,
    CosineLinear,
    CrossEntropy,
    Deferred,
    Focal,
    LabelSmoothing,
    LargeMargin,
    LogitAdjusted,
    Loss,
    Poly,
    effective_number_weights,
)

CLASSIFIERS = [
    CrossEntropy(),
    CrossEntropy(ignore_index=-100),
    Focal(gamma=0.5),
    Focal(gamma=2.0),
    Focal(gamma=2.0, form="sigmoid", alpha=0.25),
    ClassBalanced(class_counts=(5, 3, 1)),
    LDAM(class_counts=(5, 3, 1)),
    LargeMargin(),
    LabelSmoothing(),
    LabelSmoothing(over="C-1"),
    Poly(),
    ClassWeights(class_counts=(5, 3, 1)),
    Deferred(class_counts=(5, 3, 1)),
    LogitAdjusted(class_counts=(5, 3, 1)),
    VS(class_counts=(5, 3, 1)),
    GCE(),
    SCE(),
]
NAMES = [repr(loss) for loss in CLASSIFIERS]

logits_strategy = st.lists(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=3), min_size=1, max_size=4)


def softmax(row):
    """Probabilities in 60-digit decimal arithmetic: nothing rounds away."""
    getcontext().prec = 60
    powers = [Decimal(z).exp() for z in row]
    return [power / sum(powers) for power in powers]


def by_hand(loss, row, y):
    """The loss of one unit, summed term by term."""
    p = softmax(row)
    if isinstance(loss, Focal):
        return float((1 - p[y]) ** Decimal(loss.gamma) * -p[y].ln())
    if isinstance(loss, Poly):
        return float(-p[y].ln() + Decimal(loss.e1) * (1 - p[y]))
    if isinstance(loss, LabelSmoothing):
        eps, c = Decimal(loss.eps), len(row)
        q = [eps / c if loss.over == "C" else eps / (c - 1)] * c
        q[y] = 1 - eps + eps / c if loss.over == "C" else 1 - eps
        return float(-sum(a * b.ln() for a, b in zip(q, p, strict=True)))
    if isinstance(loss, LargeMargin):
        wrong = softmax([z for j, z in enumerate(row) if j != y])
        reg = sum((s - Decimal(1) / len(wrong)) * s.ln() for s in wrong) / 2
        return float(-p[y].ln() + Decimal(loss.lam) * reg)
    return float(-p[y].ln())


@pytest.mark.parametrize(
    "loss",
    [
        CrossEntropy(),
        Focal(gamma=0.5),
        Focal(gamma=2.0),
        Poly(e1=2.0),
        LabelSmoothing(eps=0.2),
        LabelSmoothing(eps=0.2, over="C-1"),
        LargeMargin(),
    ],
    ids=repr,
)
@given(rows=logits_strategy, y=st.integers(0, 2))
def test_against_decimal_arithmetic(loss, rows, y):
    losses = loss(torch.tensor(rows, dtype=torch.float64), torch.full((len(rows),), y))
    expected = [by_hand(loss, row, y) for row in rows]
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


def test_hand_worked_numbers():
    # softmax of (ln 3, 0) is (3/4, 1/4)
    output = torch.tensor([[math.log(3), 0.0]])
    right, wrong = torch.tensor([0]), torch.tensor([1])
    assert CrossEntropy()(output, right).item() == pytest.approx(math.log(4 / 3))
    assert Focal(gamma=2)(output, wrong).item() == pytest.approx(0.5625 * math.log(4))
    assert Poly(e1=1)(output, wrong).item() == pytest.approx(math.log(4) + 0.75)
    assert LabelSmoothing(eps=0.2)(output, right).item() == pytest.approx(0.9 * math.log(4 / 3) + 0.1 * math.log(4))
    assert LabelSmoothing(eps=0.2, over="C-1")(output, right).item() == pytest.approx(
        0.8 * math.log(4 / 3) + 0.2 * math.log(4)
    )


def test_focal_sigmoid_by_hand():
    # sigmoid(ln 3) = 3/4 for both logits: right answer 3/4 on class 0, 1/4 on class 1
    output = torch.tensor([[math.log(3), math.log(3)]])
    expected = 0.25 * (1 / 4) ** 2 * math.log(4 / 3) + 0.75 * (3 / 4) ** 2 * math.log(4)
    loss = Focal(gamma=2, form="sigmoid", alpha=0.25)
    assert loss(output, torch.tensor([0])).item() == pytest.approx(expected)
    assert loss(output, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(expected)


def test_sigmoid_focal_without_focus_is_summed_binary_cross_entropy():
    output = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, 2, 0])
    one_hot = torch.nn.functional.one_hot(target, 3)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output, one_hot.float(), reduction="none").sum(1)
    torch.testing.assert_close(Focal(gamma=0, form="sigmoid")(output, target), expected)


@pytest.mark.parametrize("over", ["C", "C-1"])
@pytest.mark.parametrize("soft", [False, True])
def test_label_smoothing_floor_is_the_smallest_loss(over, soft):
    loss = LabelSmoothing(eps=0.3, over=over).bind([1, 1, 1])
    target = torch.tensor([[0.2, 0.5, 0.3]]) if soft else torch.tensor([1])
    floor = loss.floor(target)
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12)

    def closure():
        optimizer.zero_grad()
        value = loss(logits, target).sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert loss(logits, target).item() == pytest.approx(float(floor[0]), abs=1e-6)
    assert floor.shape == (1,)


def test_label_smoothing_default_is_torchs():
    output = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([0, 3, 2, 1, 1])
    expected = torch.nn.functional.cross_entropy(output, target, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(LabelSmoothing(eps=0.1)(output, target), expected)


def test_label_smoothing_floor_needs_the_number_of_classes():
    with pytest.raises(ValueError, match="does not say how many"):
        LabelSmoothing().floor(torch.tensor([0]))


def test_soft_cross_entropy_floor_is_the_entropy():
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    torch.testing.assert_close(CrossEntropy().floor(target), torch.tensor([math.log(2), 0.0]))
    torch.testing.assert_close(CrossEntropy()(target.log().clamp_min(-1e4), target), torch.tensor([math.log(2), 0.0]))
    assert CrossEntropy().floor(torch.tensor([0, 1])) == 0.0


def test_ignored_labels_are_zero_and_masked():
    output = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, -100, 2], [-100, 0, 0, 1]])
    loss = CrossEntropy(ignore_index=-100)
    losses, mask = loss(output, target), loss.mask(target)
    assert losses.shape == (2, 4)
    assert losses[0, 2] == 0
    assert mask.tolist() == [[True, True, False, True], [False, True, True, True]]
    expected = torch.nn.functional.cross_entropy(output, target)  # torch's mean skips ignored labels
    torch.testing.assert_close(reweigh.rgd(losses, gamma=0.0, mask=mask), expected)


@pytest.mark.parametrize("ignored", [-100, 2, 255])
@pytest.mark.parametrize("loss", [loss for loss in CLASSIFIERS if isinstance(loss, ClassLoss)], ids=repr)
def test_every_class_loss_leaves_ignored_labels_out(loss, ignored):
    """Losses, gradients and re-weighting are those of the real units alone."""
    torch.manual_seed(0)
    loss = replace(loss, ignore_index=ignored)
    output, target = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, ignored, 1, 0, ignored])
    target = target.to(torch.uint8) if ignored == 255 else target
    real = target != ignored
    both = output.clone().requires_grad_()
    losses = loss(both, target)
    torch.testing.assert_close(losses[real], loss(output[real], target[real]))
    assert losses[~real].tolist() == [0.0, 0.0]
    assert loss.mask(target).tolist() == real.tolist()
    (slope,) = torch.autograd.grad(losses.sum(), both)
    assert slope[~real].abs().sum() == 0
    assert torch.isfinite(slope).all()
    found = reweigh.torch.Reweighted(loss, tau=2.0)(output, target)
    torch.testing.assert_close(found, reweigh.torch.Reweighted(loss, tau=2.0)(output[real], target[real]))


def test_an_ignored_label_in_place_of_the_bases_own():
    named = ClassBalanced(base="focal", ignore_index=-1).bind([3, 1])
    assert named.mask(torch.tensor([0, -1])).tolist() == [True, False]
    given = ClassBalanced(base=Focal(gamma=1.0, ignore_index=7), ignore_index=-1).bind([3, 1])
    assert given.mask(torch.tensor([7, -1])).tolist() == [True, False]
    with pytest.raises(ValueError, match=r"`ignore_index` marks class indices, got -1 with MSE"):
        ClassBalanced(base=MSE(), ignore_index=-1)


def test_nothing_is_ignored_silently():
    with pytest.raises(IndexError):
        CrossEntropy()(torch.zeros(1, 3), torch.tensor([-100]))


@pytest.mark.parametrize("loss", CLASSIFIERS, ids=NAMES)
def test_one_loss_a_position(loss):
    output = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).tanh()
    target = torch.randint(0, 3, (2, 4, 5), generator=torch.Generator().manual_seed(1))
    losses = loss(output, target)
    flat = loss(output.movedim(1, -1).reshape(-1, 3), target.reshape(-1))
    assert losses.shape == (2, 4, 5)
    torch.testing.assert_close(losses.reshape(-1), flat)


@pytest.mark.parametrize("loss", [*CLASSIFIERS, BCE()], ids=repr)
def test_finite_value_and_gradient_for_huge_logits(loss):
    output = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [1e4, 0.0, -1e4]], requires_grad=True)
    target = torch.tensor([0, 0, 2])
    if isinstance(loss, BCE):
        target = torch.nn.functional.one_hot(target, 3)
    losses = loss(output, target)
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()
    assert (losses[1:] > (1.4 if isinstance(loss, GCE) else 1e3)).all()  # GCE is bounded by 1/q


@pytest.mark.parametrize("loss", CLASSIFIERS, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(loss, dtype):
    output = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    target = torch.tensor([0, 1, 2, 0, 1, 2])
    losses = loss(output, target)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, loss(output.float(), target), rtol=0, atol=0)


@pytest.mark.parametrize("loss", CLASSIFIERS, ids=NAMES)
def test_gradient_against_finite_differences(loss):
    output = torch.randn(3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: loss(z, torch.tensor([0, 1, 2])), (output,))


@pytest.mark.parametrize("loss", [*CLASSIFIERS, MSE(half=True), BCE(pos_weight=(1.0, 2.0))], ids=repr)
def test_repr_evaluates_back(loss):
    assert eval(repr(loss)) == loss
    assert isinstance(loss, Loss)


@pytest.mark.parametrize("loss", CLASSIFIERS, ids=NAMES)
def test_shape_errors_name_the_fix(loss):
    with pytest.raises(ValueError, match=r"squeeze\(1\)"):
        loss(torch.zeros(3, 3), torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="bce"):
        loss(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="bce"):
        loss(torch.zeros(3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match="swapped"):
        loss(torch.zeros(3, 3, dtype=torch.long), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("loss", [MSE(), BCE()], ids=repr)
def test_pairs_are_not_broadcast(loss):
    with pytest.raises(ValueError, match="every pair"):
        loss(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(TypeError, match="floating-point"):
        loss(torch.zeros(4, dtype=torch.long), torch.zeros(4))
    with pytest.raises(ValueError, match="unit axis"):
        loss(torch.tensor(0.0), torch.tensor(0.0))


def test_float_labels_are_refused():
    with pytest.raises(ValueError, match=r"target\.long\(\)"):
        CrossEntropy()(torch.zeros(3, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"target\.long\(\)"):
        Poly()(torch.zeros(3, 3), torch.zeros(3, 3))


def test_mse_says_whether_the_half_is_included():
    output, target = torch.tensor([[1.0, 3.0], [0.0, 2.0]]), torch.zeros(2, 2)
    assert MSE()(output, target).tolist() == [5.0, 2.0]
    assert MSE(half=True)(output, target).tolist() == [2.5, 1.0]
    assert MSE()(torch.tensor([2.0, 0.0]), torch.tensor([0, 0])).tolist() == [4.0, 0.0]


def test_bce_by_hand():
    # sigmoid(ln 3) = 3/4
    output = torch.tensor([[math.log(3), math.log(3)], [0.0, math.log(3)]])
    target = torch.tensor([[1, 0], [1, 1]])
    losses = BCE(pos_weight=(1.0, 2.0))(output, target)
    first = (math.log(4 / 3) + math.log(4)) / 2
    second = (math.log(2) + 2 * math.log(4 / 3)) / 2
    torch.testing.assert_close(losses, torch.tensor([first, second]))
    assert BCE()(output[:, 0], target[:, 0]).shape == (2,)
    with pytest.raises(ValueError, match="one entry per label"):
        BCE(pos_weight=(1.0, 2.0, 3.0))(output, target)


@pytest.mark.parametrize("pos_weight", [None, 3.0])
def test_bce_floor_by_grid_search(pos_weight):
    target = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    loss = BCE(pos_weight=pos_weight)
    grid = torch.linspace(-30, 30, 60001, dtype=torch.float64)
    smallest = [loss(grid, torch.full_like(grid, float(q))).min().item() for q in target]
    torch.testing.assert_close(loss.floor(target), torch.tensor(smallest, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    assert loss.floor(torch.tensor([0, 1])) == 0.0


def test_losses_first_used_for_inference_can_be_trained_with():
    labels = torch.tensor([0, 1, 1])
    cases = [
        (BCE(pos_weight=3.0), torch.nn.functional.one_hot(labels, 2)),
        (LDAM().bind([5, 1]), labels),
        (ClassBalanced().bind([5, 1]), labels),
    ]
    for loss, target in cases:
        with torch.inference_mode():
            before = _weighted_sum(loss, torch.ones(3, 2), target)
        output = torch.ones(3, 2, requires_grad=True)
        value = _weighted_sum(loss, output, target)
        value.backward()
        assert value.item() == before.item()
        assert output.grad is not None


def _weighted_sum(loss, output, target):
    losses, weights = loss(output, target), loss.sample_weight(target)
    return (losses if weights is None else losses * weights).sum()


# --- class counts ---


@given(
    counts=st.lists(st.integers(0, 5000), min_size=2, max_size=8).filter(any),
    beta=st.sampled_from([0.0, 0.9, 0.99, 0.9999]),
)
def test_effective_number_weights(counts, beta):
    weights = effective_number_weights(counts, beta)
    present = [n for n in counts if n]
    # The effective number is the geometric series 1 + beta + ... + beta^(n-1).
    inverse = [1 / math.fsum(beta**k for k in range(n)) for n in present]
    expected = iter([len(present) * value / sum(inverse) for value in inverse])
    ours = [w for w, n in zip(weights, counts, strict=True) if n]
    assert ours == pytest.approx(list(expected), rel=1e-9)
    assert sum(ours) == pytest.approx(len(present))
    absent = [w for w, n in zip(weights, counts, strict=True) if not n]
    assert all(w == pytest.approx(max(ours)) for w in absent)


def test_class_weights_multiply_after_reweighting():
    loss = ClassBalanced(beta=0.9, base=Focal(gamma=1.0)).bind([100, 10])
    output, target = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    torch.testing.assert_close(loss(output, target), Focal(gamma=1.0)(output, target))
    weights = loss.sample_weight(target)
    losses = loss(output, target)
    # RGD's weight from the unweighted loss, then the class weight, divided by the class weights.
    inner = (losses.clamp(0, 1) / 2).exp()
    expected = (weights * inner * losses).sum() / weights.sum()
    torch.testing.assert_close(reweigh.rgd(losses, tau=1.0, sample_weight=weights), expected)


def test_class_balanced_with_soft_and_ignored_targets():
    loss = ClassBalanced(beta=0.9, base=CrossEntropy(ignore_index=-100)).bind([100, 10])
    common, rare = effective_number_weights([100, 10], 0.9)
    weights = loss.sample_weight(torch.tensor([0, -100, 1]))
    assert weights[[0, 2]].tolist() == pytest.approx([common, rare])
    assert loss.mask(torch.tensor([0, -100, 1])).tolist() == [True, False, True]
    soft = torch.tensor([[0.25, 0.75]])
    assert loss.sample_weight(soft).tolist() == pytest.approx([0.25 * common + 0.75 * rare])
    assert ClassBalanced(base="label_smoothing").bind([1, 2]).floor(torch.tensor([0])).item() > 0


def test_labels_of_one_byte_are_numbers_and_no_mask():
    target = torch.tensor([1, 0, 1, 1])
    for loss in (ClassBalanced(beta=0.9).bind([100, 10]), LDAM().bind([100, 10])):
        torch.testing.assert_close(loss.sample_weight(target.to(torch.uint8)), loss.sample_weight(target))
    # 156 is what -100 wraps round to in a byte.
    ignoring = ClassBalanced(base=CrossEntropy(ignore_index=-100)).bind(range(1, 201))
    many = torch.tensor([156, 199, 0])
    assert ignoring.mask(many.to(torch.uint8)).all()
    torch.testing.assert_close(ignoring.sample_weight(many.to(torch.uint8)), ignoring.sample_weight(many))


def test_class_counts_missing_or_wrong():
    output, target = torch.zeros(2, 3), torch.tensor([0, 1])
    for loss in (ClassBalanced(), LDAM()):
        assert loss.needs == ("class_counts",)
        with pytest.raises(ValueError, match="bind"):
            loss(output, target)
        with pytest.raises(ValueError, match="bind"):
            loss.sample_weight(target)
        with pytest.raises(ValueError, match="as many classes"):
            loss.bind([1, 2])(output, target)
        with pytest.raises(ValueError, match="none negative"):
            loss.bind([1, -2])
        assert loss.bind(None) is loss
        assert loss.bind([1, 2, 3]).class_counts == (1, 2, 3)
        assert replace(loss, class_counts=torch.tensor([1, 2, 3])) == loss.bind([1, 2, 3])
    with pytest.raises(ValueError, match="'focal'"):
        ClassBalanced(base="focale")


def test_ldam_by_hand():
    # counts 16 and 1: n^(-1/4) is 1/2 and 1, so margins are 1/4 and 1/2
    loss = LDAM(scale=2.0).bind([16, 1])
    output = torch.tensor([[0.5, 0.1], [0.5, 0.1]])
    first = math.log1p(math.exp(2 * (0.1 - 0.25)))
    second = math.log1p(math.exp(2 * (0.5 - (0.1 - 0.5))))
    torch.testing.assert_close(loss(output, torch.tensor([0, 1])), torch.tensor([first, second]))


def test_ldam_weights_start_late():
    loss = LDAM(defer=0.8).bind([16, 1])
    target = torch.tensor([0, 1])
    assert loss.sample_weight(target, progress=0.79) is None
    assert loss.sample_weight(target, progress=0.8).tolist() == pytest.approx(
        list(effective_number_weights([16, 1], 0.9999))
    )
    assert LDAM(defer=None).bind([16, 1]).sample_weight(target, progress=1.0) is None


def test_ldam_class_without_examples():
    loss = LDAM(scale=1.0).bind([16, 1, 0])
    losses = loss(torch.zeros(2, 3), torch.tensor([1, 2]))
    assert losses[0] == losses[1]


def test_cosine_head():
    head = CosineLinear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, 0.0], [3.0, 3.0]]))
    output = head(torch.tensor([[5.0, 0.0], [0.0, 0.1]]))
    half = math.sqrt(0.5)
    torch.testing.assert_close(output, torch.tensor([[1.0, half], [0.0, half]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Focal(gamma=-1), "gamma"),
        (lambda: Focal(alpha=0.25), "rescale"),
        (lambda: LabelSmoothing(eps=1.0), "eps"),
        (lambda: LabelSmoothing(over="K"), "over"),
        (lambda: Poly(e1=-2), "rewarded"),
        (lambda: LargeMargin(lam=-0.1), "lam"),
        (lambda: ClassBalanced(beta=1.0), "beta"),
        (lambda: LDAM(scale=0), "scale"),
        (lambda: ClassWeights(power=-1), "power"),
        (lambda: Deferred(start=1.5), "start"),
        (lambda: Deferred(base="focal"), "base"),
        (lambda: VS(gamma=-1), "gamma"),
        (lambda: LogitAdjusted(t=math.inf), "t"),
        (lambda: GCE(q=0.0), "q"),
        (lambda: SCE(log_zero=1.0), "log_zero"),
        (lambda: SCE(alpha=-1.0), "alpha"),
        (lambda: BCE(pos_weight=0.0), "pos_weight"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_empty_batch():
    for loss in CLASSIFIERS:
        assert loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).shape == (0,)


# --- long tails and wrong labels: the authors' formulas on the same inputs, values and gradients ---

COUNTS = (500, 60, 7)


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(16, 3, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(3, (16,), generator=generator)


def authors_vs(logits, target, gamma, tau):
    """Kini et al.: logits over the inverse frequencies to a power, smallest one, plus tau times the log shares."""
    inverse = (1 / torch.tensor(COUNTS, dtype=torch.float64)) ** gamma
    shares = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    return torch.nn.functional.cross_entropy(
        logits / (inverse / inverse.min()) + tau * shares.log(), target, reduction="none"
    )


def authors_adjusted(logits, target, tau):
    """Menon et al.: logits plus the logarithm of the shares to a power and 1e-12."""
    shares = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
    return torch.nn.functional.cross_entropy(logits + (shares**tau + 1e-12).log(), target, reduction="none")


def authors_sce(logits, target, alpha, beta, smallest):
    """Wang et al.: cross entropy, and minus the sum of probabilities times the logarithm of clipped labels."""
    labels = torch.nn.functional.one_hot(target, 3).double().clamp(smallest, 1.0)
    reverse = -(torch.softmax(logits, 1) * labels.log()).sum(1)
    return alpha * torch.nn.functional.cross_entropy(logits, target, reduction="none") + beta * reverse


def authors_gce(logits, target, q):
    own = torch.softmax(logits, 1).gather(1, target[:, None])[:, 0]
    return (1 - own**q) / q


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        (VS(gamma=0.2, t=1.25), lambda x, y: authors_vs(x, y, 0.2, 1.25)),
        (VS(gamma=0.3, t=0.0), lambda x, y: authors_vs(x, y, 0.3, 0.0)),
        (LogitAdjusted(), lambda x, y: authors_adjusted(x, y, 1.0)),
        (LogitAdjusted(t=1.5), lambda x, y: authors_adjusted(x, y, 1.5)),
        (SCE(alpha=0.1, beta=1.0), lambda x, y: authors_sce(x, y, 0.1, 1.0, math.exp(-4))),
        (SCE(alpha=6.0, beta=0.1, log_zero=math.log(1e-4)), lambda x, y: authors_sce(x, y, 6.0, 0.1, 1e-4)),
        (GCE(q=0.7), lambda x, y: authors_gce(x, y, 0.7)),
        (GCE(q=1.0), lambda x, y: authors_gce(x, y, 1.0)),
    ],
    ids=lambda value: repr(value) if isinstance(value, Loss) else "",
)
def test_against_the_authors_formula(loss, reference):
    (logits, target), (theirs, _) = batch(), batch()
    ours = loss.bind(COUNTS)(logits, target)
    expected = reference(theirs, target)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)
    (weighted, by_them) = ((values * torch.arange(16.0)).sum() for values in (ours, expected))
    weighted.backward()
    by_them.backward()
    torch.testing.assert_close(logits.grad, theirs.grad, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("progress", "weighted"), [(159 / 200, False), (160 / 200, True)])
def test_ldam_in_training_is_the_authors(progress, weighted):
    """Cao et al. by way of the criterion: margins, scale 30, and from epoch 160 on torch's mean under class weights."""
    (logits, target), (theirs, _) = batch(), batch()
    criterion = Reweighted(LDAM().bind(COUNTS), "mean")
    criterion.progress = progress
    ours = criterion(logits, target)
    margins = torch.tensor(COUNTS, dtype=torch.float64) ** -0.25
    margins = 0.5 * margins / margins.max()
    effective = torch.tensor([(1 - 0.9999) / (1 - 0.9999**n) for n in COUNTS], dtype=torch.float64)
    shifted = 30 * (theirs - margins * torch.nn.functional.one_hot(target, 3))
    weight = 3 * effective / effective.sum() if weighted else None
    expected = torch.nn.functional.cross_entropy(shifted, target, weight=weight)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    ours.backward()
    expected.backward()
    torch.testing.assert_close(logits.grad, theirs.grad, rtol=1e-6, atol=1e-6)


def test_class_weights_are_those_of_scikit_learn():
    compute_class_weight = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS)).numpy()
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    ours = ClassWeights().bind(COUNTS).sample_weight(torch.arange(3))
    torch.testing.assert_close(ours.double(), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_class_weights_have_mean_one_over_the_data(power):
    weights = ClassWeights(power=power).bind((90, 0, 10)).sample_weight(torch.arange(3))
    assert float((weights * torch.tensor([0.9, 0.0, 0.1])).sum()) == pytest.approx(1.0)
    assert float(weights[2] / weights[0]) == pytest.approx(9.0**power)
    assert weights[1] == weights[2]  # a class without examples weighs what the rarest does


def test_deferred_weights_are_the_authors_schedule():
    """Cao et al.: beta 0 before epoch 160 of 200, then effective-number weights with beta 0.9999 that sum to C."""
    target = torch.arange(3)
    loss = Deferred().bind(COUNTS)
    assert loss.sample_weight(target, progress=159 / 200) is None
    effective = [(1 - 0.9999) / (1 - 0.9999**n) for n in COUNTS]
    expected = torch.tensor([3 * e / sum(effective) for e in effective])
    torch.testing.assert_close(loss.sample_weight(target, progress=160 / 200), expected, rtol=1e-5, atol=0)
    logits = torch.randn(3, 3)
    torch.testing.assert_close(loss(logits, target), CrossEntropy()(logits, target))
    inner = Deferred(base=ClassWeights(base=Focal(gamma=1.0), power=0.5)).bind(COUNTS)
    torch.testing.assert_close(inner(logits, target), Focal(gamma=1.0)(logits, target))
    assert inner.sample_weight(target)[2] > 1


def test_class_shares_act_on_the_class_axis():
    """Segmentation: classes on axis 1, pixels after it."""
    logits, target = torch.randn(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    flat = logits.movedim(1, -1).reshape(-1, 3)
    for loss in (VS().bind(COUNTS), LogitAdjusted().bind(COUNTS)):
        torch.testing.assert_close(loss(logits, target).flatten(), loss(flat, target.flatten()))
