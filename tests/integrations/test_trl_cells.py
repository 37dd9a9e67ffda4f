"""TRL: what passes through its trainer beside the objective, and what is refused."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from test_trl import RATE, TAU, losses_by_hand, model, parameters, step_by_hand, texts, tokenizer, trainer
from trl import SFTConfig, SFTTrainer

from reweigh.integrations.transformers import loss, watch
from reweigh.integrations.trl import reweigh_sft

HOST = "TRL"


def after_a_step(network, value):
    value.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= RATE * parameter.grad
    return parameters(network)


@pytest.mark.shows(HOST, "packing")
@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_sequences_of_packed_rows_are_weighted_on_their_own(tmp_path):
    host = trainer(tmp_path, packing=True, max_length=16)
    reweigh_sft(host, tau=TAU, level="sequence").train()
    torch.testing.assert_close(parameters(host.model), step_by_hand("sequence"), rtol=0, atol=1e-6)


@pytest.mark.shows(HOST, "AMP")
def test_half_precision_takes_nearly_the_same_step(tmp_path):
    host = reweigh_sft(trainer(tmp_path, bf16=True), tau=TAU)
    host.train()
    reference = step_by_hand("token")
    assert (parameters(host.model) - reference).norm() < 0.05 * (reference - parameters(model())).norm()


@pytest.mark.shows(HOST, "compile")
@pytest.mark.filterwarnings("ignore")  # torch's compiler and its host talk about themselves
def test_a_compiled_model_takes_the_same_step(tmp_path):
    host = reweigh_sft(trainer(tmp_path, torch_compile=True, torch_compile_backend="aot_eager"), tau=TAU)
    host.train()
    torch.testing.assert_close(parameters(host.model), step_by_hand("token"), rtol=0, atol=1e-6)


@pytest.mark.refuses(HOST, "sampler", "step", "average")
@pytest.mark.parametrize("part", ["sampler 'class_uniform'", "step 'sam'", "average 'ema'"])
def test_parts_without_a_place_are_refused(part, tmp_path):
    name = part.split("'")[1]
    with pytest.raises(ValueError, match=f"`reweigh_sft` carries the objective of a method, .* with the {part}"):
        reweigh_sft(trainer(tmp_path), f"rgd:tau=2+{name}")
    with pytest.raises(ValueError, match=r"with the loss 'focal': .*pass compute_loss_func="):
        reweigh_sft(trainer(tmp_path), "focal+rgd")


@pytest.mark.shows(HOST, "loss", "row weight", "token weight")
@pytest.mark.filterwarnings("ignore:`compute_loss_func` is deprecated:FutureWarning")  # until version 2 of TRL
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize(("size", "steps"), [(8, 1), (2, 4)])
def test_weights_of_the_data_and_a_named_loss_through_compute_loss_func(size, steps, per_token, tmp_path):
    encode, data, amounts = tokenizer(), [], []
    for number, row in enumerate(texts()):
        prompt = encode(row["prompt"])["input_ids"]
        ids = encode(row["prompt"] + row["completion"])["input_ids"] + [1]
        labels = [-100] * len(prompt) + ids[len(prompt) :]
        own = [0.5 + 0.1 * number * (1 + index) for index in range(len(ids))] if per_token else 0.5 + number
        data.append({"input_ids": ids, "labels": labels, "weight": own})
        amounts.append(torch.tensor(own[len(prompt) :] if per_token else [own] * (len(ids) - len(prompt))))
    settings = SFTConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=size, gradient_accumulation_steps=steps, max_steps=1,
        optim="sgd", learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0, report_to="none",
        save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
        dataloader_pin_memory=False, remove_unused_columns=False, dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    function = loss(f"focal:gamma=1+rgd:tau={TAU:g}", weight_column="weight")
    host = SFTTrainer(
        model(), settings, train_dataset=Dataset.from_list(data), processing_class=encode, compute_loss_func=function
    )
    watch(host).train()
    network = model()
    plain = torch.cat(losses_by_hand(network))
    losses = -torch.expm1(-plain) * plain
    own = torch.cat(amounts)
    weights = torch.exp(losses.detach().clip(0, TAU) / (TAU + 1))
    expected = after_a_step(network, (weights * own * losses).sum() / own.sum())
    torch.testing.assert_close(parameters(host.model), expected, rtol=0, atol=1e-6)
