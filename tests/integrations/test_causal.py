"""The last layer of a causal language model in the loss: what its adapters add is what they add to its logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_trl import RATE, TAU, losses_by_hand, model, parameters, trainer
from torch import nn

from reweigh.integrations.causal import losses_of
from reweigh.integrations.trl import reweigh_sft


class LoRA(nn.Module):
    """A linear layer with adapters, under the names that PEFT has for its parts."""

    def __init__(self, base_layer, ranks):
        super().__init__()
        torch.manual_seed(7)
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict(
            {name: nn.Linear(base_layer.in_features, r, bias=False) for name, r in ranks.items()}
        )
        self.lora_B = nn.ModuleDict(
            {name: nn.Linear(r, base_layer.out_features, bias=False) for name, r in ranks.items()}
        )
        self.lora_dropout = nn.ModuleDict({name: nn.Identity() for name in ranks})
        self.scaling = {name: 0.5 * r for name, r in ranks.items()}
        self.active_adapters = list(ranks)
        self.disable_adapters = self.merged = False

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, hidden):
        product = self.base_layer(hidden)
        if self.disable_adapters or self.merged:
            return product
        for name in self.active_adapters:
            product = product + self.lora_B[name](self.lora_A[name](hidden)) * self.scaling[name]
        return product


def adapted(**ranks):
    network = model()
    network.lm_head = LoRA(network.lm_head, ranks or {"default": 2})
    return network


@pytest.mark.parametrize("ranks", [{"default": 2}, {"one": 1, "two": 3}])
def test_losses_are_those_of_the_logits(ranks):
    network = adapted(**ranks).eval()
    ids = torch.randint(1, 18, (3, 7), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    for change in ({}, {"active_adapters": list(ranks)[:1]}, {"active_adapters": []}, {"disable_adapters": True}):
        for name, value in change.items():
            setattr(network.lm_head, name, value)
        logits = network(ids).logits[:, :-1]
        expected = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        torch.testing.assert_close(losses_of(network, batch), expected, rtol=1e-5, atol=1e-5)


def test_the_chunked_loss_trains_the_adapter_of_the_last_layer(tmp_path):
    host = trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    host.model.lm_head = adapted().lm_head
    reweigh_sft(host, tau=TAU, chunked=True).train()
    network = adapted()
    losses = torch.cat(losses_by_hand(network))
    (torch.exp(losses.detach().clip(0, TAU) / (TAU + 1)) * losses).mean().backward()
    assert network.lm_head.base_layer.weight.grad is None
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    torch.testing.assert_close(parameters(host.model), parameters(network), rtol=0, atol=1e-6)


def test_other_adapters_are_refused():
    network = adapted()
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "labels": torch.ones(1, 3, dtype=torch.long)}
    network.lm_head.use_dora = {"default": True}
    with pytest.raises(ValueError, match="'default' of the last layer is not plain LoRA"):
        losses_of(network, batch)
    network.lm_head.use_dora = {}
    network.lm_head.lora_B["default"].bias = nn.Parameter(torch.zeros(18))
    with pytest.raises(ValueError, match="not plain LoRA"):
        losses_of(network, batch)
