"""The `paper` presets against the recipes they are taken from, number by number."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reweigh.bench import models
from reweigh.bench.lab import plan
from reweigh.bench.recipes import imagenet, sam
from reweigh.bench.train.schedule import Training
from reweigh.method import Context, method


def question(recipe, name):
    settings = dataclasses.asdict(recipe.PRESETS["paper"])
    return plan.Question(recipe=name, table=recipe.table("paper"), settings=settings)


# --- SAM ---


def test_sam_has_rates_times_a_fifth_and_cutout():
    paper = sam.PRESETS["paper"]
    training = paper.training()
    factors = [training.rate_factor(step, 200) for step in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert factors == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])
    assert (paper.cutout, paper.augment, paper.weight_decay, paper.epochs, paper.batch_size) == (
        16,
        True,
        5e-4,
        200,
        128,
    )


def test_every_row_of_sam_has_smoothed_labels_and_rgd_weighs_above_their_floor():
    """The recipe's loss is the divergence from the smoothed label: ours less its floor, here by torch's `kl_div`."""
    specs = plan.comparison(question(sam, "sam"), plan.as_written(question(sam, "sam")))
    methods = {spec.label: method(spec.method) for spec in specs}
    assert set(methods) == {"mean", "rgd", "sam", "rgd+sam", plan.NORMALISED}
    torch.manual_seed(0)
    logits, y = torch.randn(6, 10, dtype=torch.float64), torch.randint(10, (6,))
    smoothed = torch.full((6, 10), 0.1 / 9, dtype=torch.float64).scatter_(1, y[:, None], 0.9)
    divergence = F.kl_div(F.log_softmax(logits, 1), smoothed, reduction="none").sum(1)
    for label, own in methods.items():
        built = own.build(Context(n=100, class_counts=(10,) * 10, steps=10))
        losses = built.loss(logits, y)
        torch.testing.assert_close(losses - sam.FLOOR, divergence, rtol=1e-6, atol=1e-6)
        if "rgd" in label and label != plan.NORMALISED:
            weights = built.objective.weigh(losses, built.objective.init()).weights
            torch.testing.assert_close(weights, (divergence.clamp(0, 1) / 2).exp(), rtol=1e-5, atol=1e-5)
    assert sam.table("cpu").rows == {}


# --- ImageNet ---


def test_decay_is_decoupled_and_for_kernels_only():
    """One step of the published rule: Adam's move times the rate, then 1e-4 of the kernels, and of nothing else."""
    paper = imagenet.PRESETS["paper"]
    training = paper.part(Training)
    assert training.lr * training.weight_decay == pytest.approx(1e-4)
    torch.manual_seed(0)
    model = models.build("deit:width=16,depth=1,heads=2,patch=4", (3, 8, 8), 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = training.build(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # Adam then moves nothing
    optimizer.step()
    kernels = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))}
    assert {"token", "positions"} <= set(before) - kernels
    for name, parameter in model.named_parameters():
        factor = 1 - 1e-4 if name in kernels else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name], rtol=1e-6, atol=0)


def test_without_a_choice_all_parameters_decay():
    model = nn.Linear(2, 2)
    (group,) = Training(optimizer="adamw", weight_decay=0.1).build(model).param_groups
    assert group["weight_decay"] == 0.1
    assert len(group["params"]) == 2
    with pytest.raises(ValueError, match="`decayed` must be one of"):
        Training(decayed="some")
