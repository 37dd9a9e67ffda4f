"""The block `reweigh` of a configuration: what it stands for, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_transformers import llama

from reweigh.integrations._plugin import attach, loss_of
from reweigh.objectives.rho import Rho


def test_a_text_or_a_mapping(tmp_path):
    assert str(loss_of("rgd:tau=3").reweighted.objective) == str(loss_of({"method": "rgd:tau=3"}).reweighted.objective)
    assert loss_of({"method": "dft", "level": "sequence", "reference": None}).level == "sequence"
    llama().save_pretrained(tmp_path)
    function = loss_of({"method": "rho:keep=0.5", "reference": str(tmp_path)})
    assert isinstance(function.reweighted.objective, Rho)
    (reference,) = function._reference
    torch.testing.assert_close(reference.lm_head.weight, llama().lm_head.weight)
    assert not any(parameter.requires_grad for parameter in reference.parameters())


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"method": "rgd", "tau": 3}, "'tau' among them"),
        ({"level": "token"}, "takes a method's text"),
        (3, "got 3"),
        ("rho", "reference="),
        ("rdg", "Did you mean"),
    ],
)
def test_a_wrong_block_is_told(block, words):
    with pytest.raises(ValueError, match=words):
        loss_of(block)


@pytest.mark.refuses("axolotl", "sampler", "step", "average")
@pytest.mark.refuses("LLaMA-Factory", "sampler", "step", "average")
@pytest.mark.refuses("ms-swift", "sampler", "step", "average")
@pytest.mark.parametrize("part", ["class_uniform", "sam", "ema"])
def test_parts_without_a_place_are_refused(part):
    """Each of these programs hands its block to `loss_of`."""
    with pytest.raises(ValueError, match=rf"carries loss, objective and post .* '{part}': "):
        loss_of(f"rgd+{part}")


def test_a_loss_that_is_there_already_is_not_replaced():
    with pytest.raises(ValueError, match="has a loss function already"):
        attach(SimpleNamespace(compute_loss_func=len), "rgd")
