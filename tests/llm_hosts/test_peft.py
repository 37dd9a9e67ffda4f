"""PEFT's adapters of the last layer in the chunked loss: value and gradients are those of the logits."""

from __future__ import annotations

import pytest

pytest.importorskip("peft", reason="make test-llm-hosts has an environment with it")

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from tiny import RATE, rgd, save_model
from transformers import AutoModelForCausalLM

from reweigh import RGD
from reweigh.integrations.causal import losses_of, next_tokens


def adapted(folder, **options):
    torch.manual_seed(0)
    settings = {"r": 2, "lora_alpha": 6, "target_modules": ["lm_head", "q_proj"], "init_lora_weights": False}
    return get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(**(settings | options)))


@pytest.fixture
def batch():
    ids = torch.randint(4, 20, (3, 7), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def plain(model, batch):
    """The losses of the labels after the first, from all logits."""
    logits = model(batch["input_ids"]).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none")


@pytest.mark.parametrize("state", ["active", "disabled", "merged", "saved"])
def test_losses_are_those_of_the_logits(state, batch, tmp_path):
    options = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]} if state == "saved" else {}
    model = adapted(save_model(tmp_path), **options).eval()
    if state == "merged":
        model.merge_adapter()
    if state == "saved":
        with torch.no_grad():
            model.get_output_embeddings().modules_to_save["default"].weight.mul_(RATE)
    if state == "disabled":
        model.disable_adapter_layers()
    torch.testing.assert_close(losses_of(model, batch).flatten(), plain(model, batch), rtol=1e-5, atol=1e-5)


def test_the_adapter_gets_the_gradients_of_the_long_way(batch, tmp_path):
    model = adapted(save_model(tmp_path)).train()
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert sum("lm_head.lora" in name for name in names) == 2
    trained = [dict(model.named_parameters())[name] for name in names]
    ours = torch.autograd.grad(next_tokens(model, batch, RGD(tau=8.0)).loss, trained)
    losses = plain(model, batch)
    theirs = torch.autograd.grad(
        (rgd(losses.detach()) * losses).sum() / (batch["labels"][:, 1:] != -100).sum(), trained
    )
    for name, own, other in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_dora_is_refused(batch, tmp_path):
    model = adapted(save_model(tmp_path), use_dora=True)
    with pytest.raises(ValueError, match="'default' of the last layer is not plain LoRA"):
        losses_of(model, batch)
