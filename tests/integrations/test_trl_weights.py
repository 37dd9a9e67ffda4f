"""TRL: weights that come with the data, through padding, packing, accumulation and two processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import pytest
import torch
from datasets import Dataset
from test_trl import RATE, TAU, losses_by_hand, model, parameters, settings, texts, tokenizer
from trl import SFTTrainer, pack_dataset

from reweigh.integrations.trl import reweigh_sft

HOST = "TRL"


def weighted_rows(per_token):
    """Prompts and completions as tokens with labels, with a weight per row or per token."""
    encode, rows = tokenizer(), []
    for number, row in enumerate(texts()):
        prompt = encode(row["prompt"])["input_ids"]
        ids = encode(row["prompt"] + row["completion"])["input_ids"] + [1]
        own = [0.2 + 0.1 * number * (1 + index) for index in range(len(ids))] if per_token else 0.1 * number
        rows.append({"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt) :], "weight": own})
    return rows


def step_by_hand(rows, level="token"):
    network = model()
    losses = losses_by_hand(network)
    total, amounts = 0.0, 0.0
    for own, row in zip(losses, rows, strict=True):
        first = sum(label == -100 for label in row["labels"])
        weight = row["weight"][first:] if isinstance(row["weight"], list) else [row["weight"]] * len(own)
        amount = torch.tensor(weight)
        seen = own.detach() if level == "token" else own.detach().mean()
        total = total + (torch.exp(seen.clip(0, TAU) / (TAU + 1)) * amount * own).sum()
        amounts = amounts + amount.sum()
    (total / amounts).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= RATE * parameter.grad
    return parameters(network)


def sft(folder, rows, **options):
    """A trainer of rows that are tokens already."""
    data = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    return SFTTrainer(model(), settings(folder, **options), train_dataset=data, processing_class=tokenizer())


@pytest.mark.shows(HOST, "row weight", "token weight", "accumulation")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_column_of_weights_is_divided_by_its_sum_over_the_step(level, per_token, chunked, tmp_path):
    """Micro-batches of three, three and two rows take the step of all eight."""
    rows = weighted_rows(per_token)
    reference = step_by_hand(rows, level)
    for size, steps in ((8, 1), (3, 3)):
        host = sft(tmp_path, rows, per_device_train_batch_size=size, gradient_accumulation_steps=steps)
        reweigh_sft(host, tau=TAU, level=level, weight_column="weight", chunked=chunked).train()
        torch.testing.assert_close(parameters(host.model), reference, rtol=0, atol=1e-6)


@pytest.mark.shows(HOST, "packing", "row weight", "token weight")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_weights_go_through_packed_rows(packed, chunked, tmp_path):
    """Packed by TRL with their weights, or joined by its collator, sequences weigh as they do in rows of their own."""
    rows = weighted_rows(True)
    data = Dataset.from_list(rows)
    if packed:
        data = pack_dataset(data, seq_length=16)
        assert len(data) < len(rows)
    options = {"padding_free": True, "max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
    host = sft(tmp_path, data, **options)
    reweigh_sft(host, tau=TAU, level="sequence", weight_column="weight", chunked=chunked).train()
    torch.testing.assert_close(parameters(host.model), step_by_hand(rows, "sequence"), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_what_is_missing_is_told(tmp_path):
    packed = sft(tmp_path, weighted_rows(True), packing=True, max_length=16)
    with pytest.raises(ValueError, match=r"no column 'weight'.*pack your own column with them by trl\.pack_dataset"):
        reweigh_sft(packed, tau=TAU, weight_column="weight")
    host = sft(tmp_path, weighted_rows(False))
    collator = host.data_collator
    reweigh_sft(host, tau=TAU, weight_column="weight")
    host.data_collator = collator
    with pytest.raises(ValueError, match="the batch has no weights"):
        host.train()


@pytest.mark.processes
@pytest.mark.shows(HOST, "DDP")
def test_two_processes_take_the_step_of_one(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = children.run(
        [*command, Path(__file__).parent / "workers" / "trl_weights.py", tmp_path],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "ACCELERATE_USE_CPU": "true"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    rows = weighted_rows(True)
    for level in ("token", "sequence"):
        for chunked in (False, True):
            after = torch.load(tmp_path / f"{level}-{chunked}.pt")
            torch.testing.assert_close(after, step_by_hand(rows, level), rtol=0, atol=1e-6)
