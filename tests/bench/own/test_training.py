"""The run that a user's training is handed: its criterion, its scale, its checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import reweigh
from reweigh.bench.own.training import Training

OUTPUTS = torch.tensor([[0.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
LABELS = torch.tensor([0, 0, 0])
#: Of the cross entropy at those outputs, by hand: log(1 + exp(b - a)).
LOSSES = [math.log(2.0), math.log1p(math.exp(-2.0)), math.log1p(math.exp(1.0))]


def run_with(text, **options):
    return Training(reweigh.method(text), 0, **options)


def test_the_criterion_weighs_as_the_run_says():
    outputs = OUTPUTS.clone().requires_grad_()
    plain = run_with("mean").criterion(nn.CrossEntropyLoss())(outputs, LABELS)
    assert plain.item() == pytest.approx(sum(LOSSES) / 3, rel=1e-6)
    weighed = run_with("rgd:tau=1").criterion(nn.CrossEntropyLoss())(outputs, LABELS)
    by_hand = sum(math.exp(min(loss, 1.0) / 2.0) * loss for loss in LOSSES) / 3
    assert weighed.item() == pytest.approx(by_hand, rel=1e-6)


def test_a_methods_own_loss_takes_the_place_of_cross_entropy_and_of_nothing_else():
    run = run_with("focal:gamma=2")
    loss = run.criterion(nn.CrossEntropyLoss())(OUTPUTS.clone().requires_grad_(), LABELS)
    by_hand = sum((1 - math.exp(-x)) ** 2 * x for x in LOSSES) / 3
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    with pytest.raises(ValueError, match="cannot take the place of MSELoss"):
        run.criterion(nn.MSELoss())


def test_mean_weights_are_kept_and_scale_multiplies_the_loss():
    run = run_with("rgd:tau=1")
    criterion = run.criterion(nn.CrossEntropyLoss())
    assert run.mean_weights() is None
    first = criterion(OUTPUTS.clone().requires_grad_(), LABELS)
    criterion(OUTPUTS[:1].clone().requires_grad_(), LABELS[:1])
    weights = [math.exp(min(loss, 1.0) / 2.0) for loss in LOSSES]
    np.testing.assert_allclose(run.mean_weights(), [sum(weights) / 3, weights[0]], rtol=1e-6)
    scaled = run_with("mean", scale=np.array([2.0, 3.0]))
    control = scaled.criterion(nn.CrossEntropyLoss())
    plain = sum(LOSSES) / 3
    values = [control(OUTPUTS.clone().requires_grad_(), LABELS).item() for _ in range(3)]
    np.testing.assert_allclose(values, [2 * plain, 3 * plain, 3 * plain], rtol=1e-6)  # the last factor stays
    control.eval()
    assert control(OUTPUTS, LABELS).item() == pytest.approx(plain, rel=1e-6)
    assert first.requires_grad


def test_ignored_labels_do_not_count_in_the_mean_weight():
    run = run_with("rgd:tau=1")
    criterion = run.criterion(nn.CrossEntropyLoss(ignore_index=1))
    criterion(OUTPUTS.clone().requires_grad_(), torch.tensor([0, 1, 0]))
    weights = [math.exp(min(LOSSES[i], 1.0) / 2.0) for i in (0, 2)]
    np.testing.assert_allclose(run.mean_weights(), [sum(weights) / 2], rtol=1e-6)


def test_what_was_used_is_known():
    run = run_with("rgd")
    assert (run.unused(), run.used_rate) == (["objective"], False)
    assert run.lr_factor == 1.0
    assert (run.unused(), run.used_rate) == (["objective"], True)
    assert str(run.method) == "rgd"
    assert run.unused() == []
    partly = run_with("focal+rgd+sam")
    partly.criterion(nn.CrossEntropyLoss())
    assert partly.unused() == ["step"]


def test_findings_are_of_weights_and_not_of_plain_training():
    for text, expected in (("mean", []), ("rgd:tau=0.0001", ["saturated"])):
        run = run_with(text)
        criterion = run.criterion(nn.CrossEntropyLoss())
        for _ in range(3):
            criterion(OUTPUTS.clone().requires_grad_(), LABELS)
        assert [finding.partition(":")[0] for finding in run.findings()] == expected


def test_parts_of_a_method_start_with_the_runs_seed():
    run = run_with("class_uniform+rgd+sam:rho=0.1+ema")
    batches = list(run.sampler(6, batch_size=2, targets=torch.tensor([0, 0, 0, 0, 0, 1])))
    again = list(run_with("class_uniform+rgd").sampler(6, batch_size=2, targets=torch.tensor([0, 0, 0, 0, 0, 1])))
    assert [list(b) for b in batches] == [list(b) for b in again]
    model = nn.Linear(2, 2)
    assert type(run.step(model)) is type(reweigh.method("sam").step.start(model))
    assert run.average(model) is not None
    assert run_with("rgd").average(model) is None


def test_a_run_outside_of_a_comparison_has_no_folder():
    with pytest.raises(RuntimeError, match="does not belong to a comparison"):
        run_with("rgd").checkpoint({})


def test_the_environment_makes_the_same_run(monkeypatch, tmp_path):
    plain = reweigh.from_environment(default="cvar:alpha=0.5", seed=3)
    assert (str(plain.method), plain.seed) == ("cvar:alpha=0.5", 3)
    np.save(tmp_path / "scale.npy", np.array([2.0]))
    for name, value in {
        "METHOD": "rgd:tau=3",
        "SEED": "7",
        "LR_FACTOR": "0.5",
        "DIRECTORY": str(tmp_path),
        "SCALE": str(tmp_path / "scale.npy"),
        "DEVICE": "cpu",
    }.items():
        monkeypatch.setenv(f"REWEIGH_{name}", value)
    run = reweigh.from_environment()
    assert (str(run.method), run.seed, run.lr_factor, run.directory) == ("rgd:tau=3", 7, 0.5, tmp_path)
    assert run.device == torch.device("cpu")
    assert run.resume() is None
    run.checkpoint({"epoch": 2})
    assert run.resume() == {"epoch": 2}


def test_groups_reach_the_parts_that_need_them():
    groups = torch.tensor([0, 0, 0, 0, 0, 1])
    drawn = run_with("group_balanced").sampler(6, batch_size=2, groups=groups)
    assert drawn.probabilities().tolist() == pytest.approx([0.1] * 5 + [0.5])
    criterion = run_with("group_dro").criterion(torch.nn.CrossEntropyLoss(), n_groups=2)
    outputs, targets = torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64)
    assert float(criterion(outputs, targets, groups=groups)) == pytest.approx(0.6931, abs=1e-3)
