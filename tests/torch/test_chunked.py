"""The chunked loss is the plain one: values, gradients, units, precision, compilation, shards."""

from __future__ import annotations

import math
import os
import re
import runpy
import sys
from pathlib import Path

import children
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import reweigh
from reweigh.method import cards
from reweigh.torch import Reweighted, chunked_cross_entropy
from reweigh.torch.chunked import chunked_tokens

EXAMPLE = Path(__file__).parents[2] / "examples" / "chunked_loss.py"
WORKER = Path(__file__).parent / "workers" / "chunked_gradients.py"
SEPARABLE = ("mean", "rgd", "rgd:tau=3,divergence=revkl", "rgd:surrogate=true", "dft")
#: torch.compile itself makes an object of the class while it traces an autograd function.
OF_DYNAMO = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
BATCHED = ("term:t=0.5", "term:t=-1", "cvar:alpha=0.3", "rgd:normalize=mean")


def objective(text: str) -> reweigh.Objective:
    return reweigh.method(text).objective


def problem(rows=(3, 5), size=6, classes=11, *, dtype=torch.float64, ignored=0.3, seed=0, scale=1.0):
    """Hidden states, weight, bias and targets, some of them ignored but never all of a row."""
    generator = torch.Generator().manual_seed(seed)
    hidden = (scale * torch.randn(*rows, size, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
    weight = torch.randn(classes, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    bias = torch.randn(classes, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(classes, rows, generator=generator)
    drop = torch.rand(rows, generator=generator) < ignored
    drop[..., :1] = False
    return hidden, weight, bias, torch.where(drop, -100, targets)


def plain_losses(hidden, weight, bias, targets):
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


def by_formula(text, hidden, weight, bias, targets, level="token"):
    """The loss from logits that are all there, through the library's own criterion."""
    criterion = Reweighted(torch.nn.CrossEntropyLoss(), objective(text), level=level)
    return criterion(F.linear(hidden, weight, bias).movedim(-1, 1), targets)


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


def largest_difference(ours, theirs):
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("text", SEPARABLE + BATCHED)
@pytest.mark.parametrize("chunk", [1, 4, 5, 7, 15, 1000, "auto"])
def test_equals_the_plain_computation(text, level, chunk):
    hidden, weight, bias, targets = problem()
    ours = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, level=level, chunk=chunk)
    theirs = by_formula(text, hidden, weight, bias, targets, level)
    assert abs(ours.item() - theirs.item()) < 1e-10
    found, wanted = (gradients(loss, hidden, weight, bias) for loss in (ours, theirs))
    assert largest_difference(found, wanted) < 1e-10


def separable():
    """The names of the family's objectives whose weights come from a unit's own loss, each at its defaults."""
    names = [card.name for card in cards() if card.slot == "objective"]
    made = {}
    for name in names:
        try:
            made[name] = objective(name)
        except ValueError:  # needs to know more of the data
            continue
    return [name for name, value in made.items() if value.separable and not value.stateful and not value.takes]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("text", separable())
def test_every_separable_objective_of_the_family(text, level):
    assert set(separable()) >= {"mean", "rgd", "dft", "redescending"}
    hidden, weight, bias, targets = problem()
    ours = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, level=level, chunk=5)
    theirs = by_formula(text, hidden, weight, bias, targets, level)
    assert abs(ours.item() - theirs.item()) < 1e-10
    assert largest_difference(*(gradients(loss, hidden, weight, bias) for loss in (ours, theirs))) < 1e-10


def test_hand_worked_rgd():
    """Two classes with logits (z, 0): the loss of class 0 is log(1 + e^-z), its slope -1/(1 + e^z)."""
    hidden = torch.tensor([[1.0], [-2.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    loss = chunked_cross_entropy(hidden, weight, torch.tensor([0, 0]), reweigh.RGD(tau=1.0), chunk=1)
    (slope,) = gradients(loss, hidden)
    # losses 0.313262 and 2.126928; weights e^(0.313262/2) = 1.169558 and e^(1/2) = 1.648721
    assert loss.item() == pytest.approx((1.169558 * 0.313262 + 1.648721 * 2.126928) / 2, abs=2e-6)
    assert slope.flatten().tolist() == pytest.approx([-1.169558 * 0.268941 / 2, -1.648721 * 0.880797 / 2], abs=2e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("text", ["mean", "term:t=0.7"])
def test_gradient_by_finite_differences(text, level):
    """Mean and TERM descend what they return, so differences of the value must give the gradient."""
    hidden, weight, bias, targets = problem(rows=(2, 3), size=3, classes=4)

    def loss(hidden, weight, bias):
        return chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, level=level, chunk=3)

    torch.autograd.gradcheck(loss, (hidden, weight, bias), nondet_tol=1e-12)


def test_gradient_of_rgd_by_finite_differences_of_its_surrogate():
    hidden, weight, bias, targets = problem(rows=(2, 3), size=3, classes=4)

    def loss(hidden, weight, bias):
        return chunked_cross_entropy(hidden, weight, targets, objective("rgd:surrogate=true"), bias=bias, chunk=2)

    torch.autograd.gradcheck(loss, (hidden, weight, bias), nondet_tol=1e-12)


@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 5),
    classes=st.integers(2, 9),
    chunk=st.one_of(st.integers(1, 25), st.just("auto")),
    level=st.sampled_from(["token", "sequence"]),
    text=st.sampled_from(SEPARABLE + BATCHED),
    with_bias=st.booleans(),
    ignored=st.floats(0, 0.9),
    seed=st.integers(0, 10_000),
)
def test_any_chunk_gives_the_same(rows, length, classes, chunk, level, text, with_bias, ignored, seed):
    hidden, weight, bias, targets = problem((rows, length), 4, classes, ignored=ignored, seed=seed)
    own = bias if with_bias else None
    ours, losses = chunked_cross_entropy(
        hidden, weight, targets, objective(text), bias=own, level=level, chunk=chunk, return_losses=True
    )
    theirs = by_formula(text, hidden, weight, own, targets, level)
    assert torch.allclose(losses, plain_losses(hidden, weight, own, targets), atol=1e-12, rtol=0)
    assert not losses.requires_grad
    assert abs(ours.item() - theirs.item()) < 1e-10
    assert largest_difference(gradients(ours, hidden, weight), gradients(theirs, hidden, weight)) < 1e-10


@pytest.mark.parametrize(
    ("text", "scale"), [("mean", 1.0), ("mean", 30.0), ("rgd", 1.0), ("rgd", 30.0), ("rgd:tau=9", 30.0), ("dft", 1.0)]
)
def test_float32_to_five_digits(text, scale):
    """Also with logits of hundreds, where a softmax without its largest entry taken off would overflow."""
    inputs = problem((4, 32), 16, 500, dtype=torch.float32, scale=scale)
    hidden, weight, bias, targets = inputs
    wide = [t.detach().double().requires_grad_() for t in inputs[:3]]
    ours = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, chunk=20)
    theirs = by_formula(text, *wide, targets)
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for found, wanted in zip(gradients(ours, hidden, weight, bias), gradients(theirs, *wide), strict=True):
        assert found.dtype == torch.float32
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize("text", ["rgd", "term:t=0.5"])
def test_sum_and_none(text):
    hidden, weight, bias, targets = problem()
    mean = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, chunk=4)
    whole = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, chunk=4, reduction="sum")
    vector = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, chunk=4, reduction="none")
    real = (targets != -100).sum()
    assert vector.shape == targets.shape
    assert (vector[targets == -100] == 0).all()
    assert whole.item() == pytest.approx(mean.item() * real.item(), rel=1e-12)
    of_mean = gradients(mean, hidden, weight, bias)
    assert largest_difference(of_mean, [g / real for g in gradients(whole, hidden, weight, bias)]) < 1e-12
    assert largest_difference(of_mean, [g / real for g in gradients(vector.sum(), hidden, weight, bias)]) < 1e-12


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_none_takes_any_gradient(level):
    """Each entry is sg(w) l: an arbitrary combination of entries has that combination of gradients."""
    hidden, weight, bias, targets = problem()
    vector = chunked_cross_entropy(
        hidden, weight, targets, objective("rgd"), bias=bias, chunk=4, reduction="none", level=level
    )
    losses = plain_losses(hidden, weight, bias, targets)
    real = (targets != -100).double()
    seen = losses.detach() if level == "token" else (losses.detach().sum(1) / real.sum(1)).unsqueeze(1)
    weights = torch.exp(seen.clip(0, 1) / 2)
    assert torch.allclose(vector, weights * losses, atol=1e-12)
    factors = torch.randn(targets.shape, dtype=torch.float64)
    found = gradients((factors * vector).sum(), hidden, weight, bias)
    wanted = gradients((factors * weights * losses).sum(), hidden, weight, bias)
    assert largest_difference(found, wanted) < 1e-12


def written_out(
    text, hidden, weight, bias, targets, *, low=None, scale=1.0, cap=None, own=None, signal=None, level="token"
):
    """The loss from all logits with the head, the units and the measure written out."""
    logits = hidden @ weight.T + bias
    if low is not None:
        logits = logits + low[0] @ low[1].T
    logits = scale * logits
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    log_probs = torch.log_softmax(logits, -1)
    real = (targets != -100).double()
    losses = -log_probs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1) * real
    amounts = real if own is None else real * own
    if text.startswith("entropy") and signal is None:
        signal = -(log_probs.exp() * log_probs).sum(-1).detach() / math.log(logits.shape[-1])
    if level == "sequence":
        sizes = real.sum(1)
        seen, shares = (losses * real).sum(1) / sizes, amounts.sum(1)
        signal = None if signal is None else (signal * real).sum(1) / sizes
    else:
        seen, shares, signal = losses.flatten(), amounts.flatten(), None if signal is None else signal.flatten()
    more = {} if signal is None else {"signal": signal}
    weights, _, value = objective(text).weigh(seen.detach(), (), measure=shares, **more)
    weights = weights.unsqueeze(1) if level == "sequence" else weights.view(losses.shape)
    loss = (weights * amounts * losses).sum() / amounts.sum()
    return loss if value is None else loss + (value - loss).detach()


HEADS = {
    "scaled": {"scale": 0.25},
    "capped": {"cap": 2.0},
    "scaled and capped": {"scale": 3.0, "cap": 5.0},
    "low rank": {"low": True},
    "all": {"scale": 0.5, "cap": 4.0, "low": True, "own": True},
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("text", ["rgd:tau=3", "term:t=0.5", "entropy:power=2", "rho:keep=0.5"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_signals_and_weights_written_out(head, text, level, frozen):
    hidden, weight, bias, targets = problem()
    generator = torch.Generator().manual_seed(1)
    options = dict(HEADS[head])
    if options.get("low"):
        options["low"] = tuple(
            torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
            for shape in ((3, 5, 2), (11, 2))
        )
    if options.get("own"):
        options["own"] = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    if text.startswith("rho"):
        options["signal"] = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    if frozen:
        weight, bias = weight.detach(), bias.detach()
    theirs = written_out(text, hidden, weight, bias, targets, level=level, **options)
    low = options.pop("low", None)
    ours = chunked_cross_entropy(
        hidden,
        weight,
        targets,
        objective(text),
        bias=bias,
        level=level,
        low_rank=low,
        softcap=options.pop("cap", None),
        sample_weight=options.pop("own", None),
        chunk=5,
        **options,
    )
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-10)
    inputs = [x for x in (hidden, weight, bias, *(low or ())) if x.requires_grad]
    assert largest_difference(gradients(ours, *inputs), gradients(theirs, *inputs)) < 1e-10


def test_a_weight_per_row_is_that_of_its_tokens():
    hidden, weight, bias, targets = problem()
    rows = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    for level in ("token", "sequence"):
        ours = chunked_cross_entropy(hidden, weight, targets, bias=bias, sample_weight=rows, level=level)
        theirs = written_out("rgd", hidden, weight, bias, targets, own=rows[:, None].expand(3, 5), level=level)
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
        criterion = Reweighted(torch.nn.CrossEntropyLoss(), level=level)
        logits = F.linear(hidden, weight, bias).movedim(-1, 1)
        hosts = criterion(logits, targets, sample_weight=rows[:, None].expand(3, 5))
        assert ours.item() == pytest.approx(hosts.item(), abs=1e-12)


@pytest.mark.parametrize("text", ["rgd", "term:t=0.5"])
def test_a_frozen_head_needs_its_logits_once(text, monkeypatch):
    """The gradient of a hidden state is its token's alone: any objective, and any gradient that comes in."""
    made: list[int] = []
    product = torch.mm

    def watched(left, right, **options):
        made.append(right.shape[1] == 50)
        return product(left, right, **options)

    hidden, weight, _, targets = problem((10, 8), 6, 50, ignored=0.0)
    wanted = gradients(by_formula(text, hidden, weight, None, targets, "sequence"), hidden)
    monkeypatch.setattr(torch, "mm", watched)
    for reduction in ("mean", "none"):
        made.clear()
        loss = chunked_cross_entropy(
            hidden, weight.detach(), targets, objective(text), chunk=16, level="sequence", reduction=reduction
        )
        for _ in range(2):
            scalar = loss if reduction == "mean" else loss.mean()
            assert largest_difference(torch.autograd.grad(scalar, hidden, retain_graph=True), wanted) < 1e-12
        assert sum(made) == (5 if reduction == "none" else 10)  # a second backward of the mean makes them anew


def test_entropy_and_hits_come_along():
    hidden, weight, bias, targets = problem()
    chunked = chunked_tokens(hidden, weight, targets, objective("mean"), bias=bias, chunk=4, entropies=True)
    logits, real = F.linear(hidden, weight, bias), targets != -100
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(chunked.entropies, torch.where(real, expected, 0.0))
    assert torch.equal(chunked.correct, (logits.argmax(-1) == targets) & real)
    weight = torch.tensor([[1.0], [-torch.inf]], dtype=torch.float64)
    sure = chunked_tokens(torch.ones(1, 1, dtype=torch.float64), weight, torch.zeros(1).long(), objective("entropy"))
    assert sure.loss.item() == 0.0
    assert sure.entropies.item() == 0.0


def test_stateful_objectives_go_on_top():
    hidden, weight, bias, targets = problem()
    auto, mask = objective("rgd_auto"), targets != -100
    losses = chunked_cross_entropy(hidden, weight, targets, objective("mean"), bias=bias, reduction="none")
    ours, _ = auto.apply(losses, auto.init(), mask=mask)
    theirs, _ = auto.apply(plain_losses(hidden, weight, bias, targets), auto.init(), mask=mask)
    assert largest_difference(gradients(ours, hidden, weight), gradients(theirs, hidden, weight)) < 1e-12
    with pytest.raises(TypeError, match=r"remembers.*reduction='none'"):
        chunked_cross_entropy(hidden, weight, targets, auto)


def test_count_makes_micro_batches_exact():
    hidden, weight, bias, targets = problem((6, 4))
    real = (targets != -100).sum()
    whole = gradients(chunked_cross_entropy(hidden, weight, targets, bias=bias), hidden, weight, bias)
    parts = sum(
        chunked_cross_entropy(hidden[part], weight, targets[part], bias=bias, count=real)
        for part in (slice(0, 1), slice(1, 6))
    )
    assert largest_difference(whole, gradients(parts, hidden, weight, bias)) < 1e-12


def test_incoming_gradient_and_second_backward():
    hidden, weight, bias, targets = problem()
    wanted = gradients(by_formula("rgd", hidden, weight, bias, targets), hidden, weight, bias)
    loss = 3.0 * chunked_cross_entropy(hidden, weight, targets, bias=bias, chunk=4)
    for _ in range(3):  # the buffers of the forward pass serve once; later gradients are made anew
        found = torch.autograd.grad(loss, (hidden, weight, bias), retain_graph=True)
        assert largest_difference(found, [3.0 * g for g in wanted]) < 1e-12


def test_gradients_of_the_second_order_are_refused():
    hidden, weight, _, targets = problem()
    loss = chunked_cross_entropy(hidden, weight, targets)
    with pytest.raises(RuntimeError, match="first order only"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_what_is_frozen_gets_no_gradient_and_no_memory():
    hidden, weight, bias, targets = problem()
    wanted = gradients(by_formula("rgd", hidden, weight, bias, targets), hidden)
    frozen = weight.detach(), bias.detach()
    found = gradients(chunked_cross_entropy(hidden, frozen[0], targets, bias=frozen[1]), hidden)
    assert largest_difference(found, wanted) < 1e-12
    with torch.no_grad():
        value = chunked_cross_entropy(hidden, weight, targets, bias=bias)
    assert not value.requires_grad
    assert value.item() == pytest.approx(by_formula("rgd", hidden, weight, bias, targets).item(), abs=1e-12)


def test_tied_weights_get_both_gradients():
    _, weight, bias, targets = problem()
    tokens = targets.clamp(min=0)

    def tied(loss):
        return gradients(loss(torch.tanh(weight[tokens]), weight, targets), weight)

    ours = tied(lambda h, w, y: chunked_cross_entropy(h, w, y, bias=bias, chunk=4))
    theirs = tied(lambda h, w, y: by_formula("rgd", h, w, bias, y))
    assert largest_difference(ours, theirs) < 1e-12


def test_nothing_counts():
    hidden, weight, bias, targets = problem()
    for text in ("rgd", "term:t=0.5"):
        loss = chunked_cross_entropy(hidden, weight, torch.full_like(targets, -100), objective(text), bias=bias)
        assert loss.item() == 0.0
        assert all((g == 0).all() for g in gradients(loss, hidden, weight, bias))


@pytest.mark.parametrize("text", ["rgd", "term:t=0.5"])
def test_no_tokens_at_all(text):
    hidden, weight, bias, _ = problem((0,))
    loss = chunked_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.long), objective(text), bias=bias)
    assert loss.item() == 0.0
    assert all((g == 0).all() for g in gradients(loss, weight, bias))


def test_any_integer_type_names_a_class():
    hidden, weight, bias, targets = problem()
    wanted = chunked_cross_entropy(hidden, weight, targets, bias=bias)
    assert chunked_cross_entropy(hidden, weight, targets.int(), bias=bias).item() == wanted.item()


def test_another_index_may_be_ignored():
    hidden, weight, bias, targets = problem()
    targets = targets.clamp(min=0)
    ours = chunked_cross_entropy(hidden, weight, targets, objective("mean"), bias=bias, ignore_index=0)
    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    theirs = F.cross_entropy(logits, targets.flatten(), ignore_index=0)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)


def test_never_holds_all_logits(monkeypatch):
    """The largest matrix product has as many rows as the chunk."""
    seen: list[int] = []
    product = torch.mm

    def watched(left, right, **options):
        if right.shape[1] == 50:  # the one that makes logits
            seen.append(left.shape[0])
        return product(left, right, **options)

    monkeypatch.setattr(torch, "mm", watched)
    hidden, weight, _, targets = problem((10, 8), 6, 50, ignored=0.0)
    chunked_cross_entropy(hidden, weight, targets, chunk=16).backward()
    assert seen == [16] * 5  # separable: made once
    seen.clear()
    chunked_cross_entropy(hidden, weight, targets, objective("term"), chunk=16).backward()
    assert seen == [16] * 10  # made twice


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("text", ["rgd", "term:t=0.5"])
def test_half_precision(dtype, text):
    """As near to the truth as a half-precision linear layer with float32 losses is."""
    inputs = problem((8, 32), 32, 300, dtype=dtype, scale=0.5)
    hidden, weight, bias, targets = inputs
    wide = [t.detach().double().requires_grad_() for t in inputs[:3]]
    truth = gradients(by_formula(text, *wide, targets), *wide)
    logits = F.linear(hidden, weight, bias).flatten(0, 1).float()
    plain = objective(text)(
        F.cross_entropy(logits, targets.flatten(), reduction="none"), mask=targets.flatten() != -100
    )
    ours = chunked_cross_entropy(hidden, weight, targets, objective(text), bias=bias, chunk=16)
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(plain.item(), rel=1e-4)
    theirs = gradients(plain, hidden, weight, bias)
    for found, other, wanted in zip(gradients(ours, hidden, weight, bias), theirs, truth, strict=True):
        assert found.dtype == dtype
        errors = [float((g.double() - wanted).norm() / wanted.norm()) for g in (found, other)]
        assert errors[0] < max(1.5 * errors[1], 1e-3)


def test_fp16_does_not_underflow_before_the_loss_scale():
    """Coefficients of one in a million times the slope vanish in float16; here they stay in float32 until scaled."""
    hidden, weight, _, targets = problem((4, 8), 8, 20, dtype=torch.float16, ignored=0.0)
    loss = chunked_cross_entropy(hidden, weight, targets, objective("mean"), count=1e6)
    found = gradients(loss * 2.0**20, weight)[0].double()
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    wanted = gradients(plain_losses(*wide, None, targets).sum() / 1e6 * 2.0**20, wide[1])[0]
    assert float((found - wanted).norm() / wanted.norm()) < 5e-3


def test_autocast_takes_the_products_down_and_nothing_else():
    hidden, weight, bias, targets = problem((4, 32), 16, 64, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = chunked_cross_entropy(hidden, weight, targets, bias=bias, chunk=20)
        logits = F.linear(hidden, weight, bias)
    assert logits.dtype == torch.bfloat16
    theirs = reweigh.rgd(
        F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none"),
        mask=targets.flatten() != -100,
    )
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4)
    for found, wanted in zip(gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        assert found.dtype == torch.float32
        assert float((found - wanted).norm() / wanted.norm()) < 2e-2


@OF_DYNAMO
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("rgd", {}),
        ("term:t=0.5", {"level": "sequence"}),
        ("entropy", {"softcap": 4.0, "sample_weight": torch.rand(3, 5)}),
        ("rgd", {"level": "sequence", "segments": torch.arange(15).view(3, 5) // 3, "scale": 0.5}),
        ("dft", {"low_rank": (torch.rand(3, 5, 2, dtype=torch.float64), torch.rand(11, 2, dtype=torch.float64))}),
    ],
)
def test_compiled_in_one_graph(text, options):
    inputs, own = problem(), objective(text)

    def loss(hidden, weight, bias, targets):
        return chunked_cross_entropy(hidden, weight, targets, own, bias=bias, chunk=6, **options)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours, theirs = compiled(*inputs), loss(*inputs)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    assert largest_difference(gradients(ours, *inputs[:3]), gradients(theirs, *inputs[:3])) < 1e-12


@OF_DYNAMO
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch, about torch
@pytest.mark.slow
def test_compiled_to_machine_code():
    inputs = problem((4, 16), 8, 40, dtype=torch.float32)

    def loss(hidden, weight, bias, targets):
        return chunked_cross_entropy(hidden, weight, targets, bias=bias, chunk=20)

    ours, theirs = torch.compile(loss, fullgraph=True)(*inputs), loss(*inputs)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for found, wanted in zip(gradients(ours, *inputs[:3]), gradients(theirs, *inputs[:3]), strict=True):
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.processes
def test_shards_give_the_gradients_of_the_batch():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORKER)]
    finished = children.run(command, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(3, dtype=torch.long)}, r"`hidden` must be floating-point of shape \(\.\.\., d\)"),
        ({"weight": torch.zeros(11, 5)}, r"`weight` must have shape \(V, 6\)"),
        ({"bias": torch.zeros(6)}, r"`bias` must have shape \(11,\)"),
        ({"targets": torch.zeros(3, 4, dtype=torch.long)}, r"`targets` must be class indices of shape \(3, 5\)"),
        ({"targets": torch.zeros(3, 5)}, "class indices"),
        ({"level": "row"}, "`level`"),
        ({"reduction": "average"}, "`reduction`"),
        ({"chunk": 0}, "`chunk`"),
        ({"count": -1.0}, "`count`"),
        ({"count": 5.0, "reduction": "sum"}, "denominator of the mean"),
        ({"scale": 0.0}, "`scale`"),
        ({"softcap": -1.0}, "`softcap`"),
        ({"low_rank": (torch.zeros(3, 5, 2), torch.zeros(11, 3))}, r"`low_rank` must be .*\(11, 'r'\).*\(11, 3\)"),
        ({"sample_weight": torch.ones(5)}, r"`sample_weight` must have .*or one per row, \(3,\), got \(5,\)"),
        ({"objective": objective("rho")}, r"needs `signal`, got None\. It is .*signal=reference_losses"),
        ({"objective": objective("rho"), "signal": torch.ones(3)}, r"`signal` must have the shape .*, got \(3,\)"),
    ],
)
def test_errors_name_what_is_wrong(change, message):
    hidden, weight, bias, targets = problem()
    given = {"hidden": hidden, "weight": weight, "targets": targets, "bias": bias} | change
    with pytest.raises(ValueError, match=message):
        chunked_cross_entropy(**given)


def test_sequences_need_rows():
    hidden, weight, _, targets = problem((7,))
    with pytest.raises(ValueError, match=r"shape \(B, T\)"):
        chunked_cross_entropy(hidden, weight, targets, level="sequence")


def test_a_target_beyond_the_vocabulary_is_an_error():
    hidden, weight, _, targets = problem()
    with pytest.raises((IndexError, RuntimeError)):
        chunked_cross_entropy(hidden, weight, torch.full_like(targets, 11))


def test_the_example_gets_the_same_number_both_ways(capsys):
    runpy.run_path(str(EXAMPLE))
    short, long_way = re.findall(r"(?:^loss|the long way) ([0-9.]+),", capsys.readouterr().out, re.MULTILINE)
    assert short == long_way
