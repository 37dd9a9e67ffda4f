"""The Trainer with packed rows, in half precision and compiled: the step of a loop by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_transformers import RATE, TASKS, TAU, VOCABULARY, arguments, by_hand, llama, parameters, rows, trained
from transformers import DataCollatorWithFlattening, Trainer

from reweigh.integrations._batch_segments import after_the_first, segments_of
from reweigh.integrations.transformers import loss, watch

HOST = "Hugging Face Trainer"


def sequences():
    """Sequences of different lengths, labels included."""
    generator = torch.Generator().manual_seed(4)
    tokens = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in (5, 3, 6, 2)]
    return [{"input_ids": row, "labels": list(row)} for row in tokens]


@pytest.mark.shows(HOST, "packing")
@pytest.mark.filterwarnings("ignore")  # the collator advises another attention
def test_rows_without_padding_are_the_sequences_one_by_one(tmp_path):
    """Four sequences in one row, told apart by their positions: each token weighs as it does in a row of its own."""
    model, network = llama(), llama()
    settings = arguments(tmp_path, per_device_train_batch_size=4)
    collator = DataCollatorWithFlattening(return_position_ids=True)
    Trainer(model, settings, train_dataset=sequences(), compute_loss_func=loss(tau=TAU), data_collator=collator).train()
    network.train()
    losses = []
    for row in sequences():
        tokens = torch.tensor(row["input_ids"])
        losses.append(F.cross_entropy(network(tokens[None]).logits[0, :-1], tokens[1:], reduction="none"))
    every = torch.cat(losses)
    (torch.exp(every.detach().clip(0, TAU) / (TAU + 1)) * every).mean().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= RATE * parameter.grad
    torch.testing.assert_close(parameters(model), parameters(network), rtol=0, atol=1e-6)


@pytest.mark.shows(HOST, "packing")
@pytest.mark.filterwarnings("ignore")  # the collator advises another attention
@pytest.mark.parametrize("weighted", [False, True])
def test_a_weight_per_sequence_where_a_row_holds_several(weighted, tmp_path):
    """Separated by their positions, with a weight of each sequence's own or without."""
    model, network = llama(), llama()
    data = [{**row, "weight": 0.5 + number} for number, row in enumerate(sequences())] if weighted else sequences()
    settings = arguments(tmp_path, per_device_train_batch_size=4)
    collator = DataCollatorWithFlattening(return_position_ids=True)
    function = loss(tau=TAU, level="sequence", weight_column="weight" if weighted else None)
    watch(Trainer(model, settings, train_dataset=data, compute_loss_func=function, data_collator=collator)).train()
    network.train()
    total, amounts = 0.0, 0.0
    for row in data:
        tokens = torch.tensor(row["input_ids"])
        losses = F.cross_entropy(network(tokens[None]).logits[0, :-1], tokens[1:], reduction="none")
        weight = torch.exp(losses.detach().mean().clip(0, TAU) / (TAU + 1)) * row.get("weight", 1.0)
        total = total + weight * losses.sum()
        amounts += row.get("weight", 1.0) * len(losses)
    (total / amounts).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= RATE * parameter.grad
    torch.testing.assert_close(parameters(model), parameters(network), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # the collator advises another attention
def test_positions_and_cumulative_lengths_tell_the_same_sequences():
    collator = DataCollatorWithFlattening(return_position_ids=True, return_flash_attn_kwargs=True)
    batch = collator(sequences())
    expected = [[0] * 5 + [1] * 3 + [2] * 6 + [3] * 2]
    assert segments_of(batch).tolist() == expected
    del batch["position_ids"]
    assert segments_of(batch).tolist() == expected
    assert segments_of({"labels": batch["labels"]}) is None
    assert after_the_first(torch.tensor([[0, 0, 1, 1]])).tolist() == [[0, 1, 1, 1]]


@pytest.mark.shows(HOST, "AMP")
def test_half_precision_takes_nearly_the_same_step(tmp_path):
    build, label, options, losses_of = TASKS["classification"]
    reference = by_hand(build(), rows(label), losses_of)
    function = loss(tau=TAU, **options)
    after, _ = trained(build(), rows(label), tmp_path, function, bf16=True)
    assert function.reweighted.weights is not None
    assert function.reweighted.weights.dtype == torch.float32
    step = (reference - parameters(build())).norm()
    assert 0 < (after - reference).norm() < 0.05 * step  # bf16 has three digits


@pytest.mark.shows(HOST, "compile")
@pytest.mark.filterwarnings("ignore")  # torch's compiler and its host talk about themselves
@pytest.mark.parametrize("task", ["classification", "language model by sequence"])
def test_a_compiled_model_takes_the_same_step(task, tmp_path):
    build, label, options, losses_of = TASKS[task]
    reference = by_hand(build(), rows(label), losses_of)
    function = loss(tau=TAU, **options)
    after, _ = trained(build(), rows(label), tmp_path, function, torch_compile=True, torch_compile_backend="aot_eager")
    torch.testing.assert_close(after, reference, rtol=0, atol=1e-6)
