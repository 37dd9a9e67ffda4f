"""Weights of classes, rows, messages and tokens in the Trainer: the step of a loop by hand over all rows at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from test_transformers import RATE, TAU, VOCABULARY, arguments, bert, llama, parameters, rows
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Trainer
from transformers.modeling_outputs import SequenceClassifierOutput

import reweigh
from reweigh.integrations._data_weights import WeightedCollator, on_tokens
from reweigh.integrations.transformers import loss, watch, weigh_messages

HOST = "Hugging Face Trainer"
COUNTS = (5, 2, 1)
METHOD = f"class_balanced:beta=0.9+rgd:tau={TAU:g}+prior"


def weight(losses):
    return torch.exp(losses.detach().clip(0, TAU) / (TAU + 1))


def step_by_hand(model, losses, amounts):
    """One step on sum(w · a · l) / sum(a)."""
    ((weight(losses) * amounts * losses).sum() / amounts.sum()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    return parameters(model)


def labelled(weighted):
    """Eight rows of three classes of different sizes, some with a weight."""
    labels = iter(np.repeat(np.arange(3), COUNTS).tolist())
    data = rows(lambda rng, tokens: next(labels))
    if weighted:
        for number, row in enumerate(data):
            row["weight"] = 0.01 * number  # small ones, whose sum is below one
    return data


def three_classes(data, class_weights):
    """The step by hand, and the model's logits before it."""
    model = bert(num_labels=3)
    model.train()
    labels = torch.tensor([row["labels"] for row in data])
    logits = model(torch.tensor([row["input_ids"] for row in data])).logits
    amounts = class_weights[labels] * torch.tensor([row.get("weight", 1.0) for row in data])
    return step_by_hand(model, F.cross_entropy(logits, labels, reduction="none"), amounts)


#: (1 - beta) / (1 - beta^n) with beta = 0.9, which sum to three.
BALANCED = torch.tensor([0.1 / (1 - 0.9**n) for n in COUNTS])
BALANCED = 3 * BALANCED / BALANCED.sum()


def trained(model, data, folder, function, size=8, steps=1, **options):
    settings = arguments(folder, per_device_train_batch_size=size, gradient_accumulation_steps=steps)
    trainer = Trainer(model, settings, train_dataset=data, compute_loss_func=function, **options)
    watch(trainer).train()
    return trainer


@pytest.mark.shows(HOST, "loss", "objective", "row weight", "accumulation")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("size", "steps"), [(8, 1), (3, 3)])
def test_one_text_weighs_classes_and_rows_over_the_whole_step(weighted, size, steps, tmp_path):
    """Micro-batches of three, three and two rows take the step of all eight."""
    data = labelled(weighted)
    function = loss(METHOD, class_counts="auto", weight_column="weight" if weighted else None)
    trainer = trained(bert(num_labels=3), data, tmp_path, function, size, steps)
    torch.testing.assert_close(parameters(trainer.model), three_classes(data, BALANCED), rtol=0, atol=1e-6)
    assert function.reweighted.class_counts == COUNTS


@pytest.mark.shows(HOST, "post")
def test_the_correction_is_what_class_weights_have_left_of_the_counts(tmp_path):
    """Training with weights w on shares p has the prior w · p already, so that is what comes off."""
    function = loss(METHOD, class_counts="auto")
    data = labelled(False)
    trainer = trained(bert(num_labels=3), data, tmp_path, function)
    predictions, labels, _ = trainer.predict(data)
    corrected = function.correction(predictions, labels)(predictions)
    np.testing.assert_allclose(
        corrected, predictions - np.log(BALANCED.numpy() * np.array(COUNTS) / 8), rtol=1e-5, atol=1e-6
    )


def test_a_named_loss_is_used_and_objects_work_like_texts(tmp_path):
    data = labelled(False)
    steps = []
    for method in ("focal:gamma=2+rgd", reweigh.method("focal:gamma=2+rgd")):
        steps.append(parameters(trained(bert(num_labels=3), data, tmp_path, loss(method)).model))
    torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=0)
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    labels = torch.tensor([0, 2])
    own = F.cross_entropy(logits, labels, reduction="none")
    focal = (1 - torch.exp(-own)) ** 2 * own
    with torch.no_grad():
        value = loss("focal:gamma=2+rgd")(SequenceClassifierOutput(logits=logits), labels)
    torch.testing.assert_close(value, focal.mean())
    assert loss("mse+rgd").problem_type == "regression"
    assert loss("bce:pos_weight=2").problem_type == "multi_label_classification"


def tokenizer(side):
    inner = Tokenizer(models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="0", eos_token="2", padding_side=side)


def sentences(per_token):
    """Rows of different lengths with a prompt that is not learnt, and a weight per row or per token."""
    rng = np.random.default_rng(5)
    made = []
    for number in range(8):
        tokens = rng.integers(3, VOCABULARY, int(rng.integers(4, 9))).tolist()
        labels = [-100, -100, *tokens[2:]]
        weights = rng.uniform(0, 2, len(tokens)).round(2).tolist() if per_token else 0.25 * number
        made.append({"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": labels, "weight": weights})
    return made


def language_step_by_hand(data):
    """Row by row and without padding."""
    model = llama()
    model.train()
    losses, amounts = [], []
    for row in data:
        logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
        labels = torch.tensor(row["labels"][1:])
        weights = torch.as_tensor(row["weight"]).expand(len(row["labels"]))[1:]
        losses.append(F.cross_entropy(logits, labels, reduction="none", ignore_index=-100))
        amounts.append(torch.where(labels == -100, 0.0, weights))
    return step_by_hand(model, torch.cat(losses), torch.cat(amounts))


@pytest.mark.shows(HOST, "row weight", "token weight", "accumulation")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("per_token", [False, True])
def test_weights_of_rows_and_tokens_through_padding_and_unequal_micro_batches(side, per_token, tmp_path):
    data = sentences(per_token)
    reference = language_step_by_hand(data)
    for size, steps in ((8, 1), (3, 3)):
        trainer = trained(
            llama(),
            Dataset.from_list(data),  # of which the Trainer drops columns that the model does not take
            tmp_path,
            loss(tau=TAU, weight_column="weight"),
            size,
            steps,
            data_collator=DataCollatorForSeq2Seq(tokenizer(side)),
        )
        torch.testing.assert_close(parameters(trainer.model), reference, rtol=0, atol=1e-6)


def test_weights_of_one_are_no_weights_and_evaluation_is_plain(tmp_path):
    data = labelled(False)
    ones = [{**row, "weight": 1.0} for row in data]
    plain = trained(bert(num_labels=3), data, tmp_path, loss(tau=TAU), 3, 3)
    same = trained(bert(num_labels=3), ones, tmp_path, loss(tau=TAU, weight_column="weight"), 3, 3)
    torch.testing.assert_close(parameters(same.model), parameters(plain.model), rtol=0, atol=1e-7)
    heavy = [{**row, "weight": float(number)} for number, row in enumerate(data)]
    assert same.evaluate(heavy)["eval_loss"] == pytest.approx(plain.evaluate(data)["eval_loss"], abs=1e-5)


CHAT = "{% for m in messages %}{{ '1 ' if m['role'] == 'user' else '2 ' }}{{ m['content'] }} {% endfor %}"


@pytest.mark.shows(HOST, "token weight")
def test_weights_of_messages_become_those_of_their_tokens(tmp_path):
    words = tokenizer("right")
    words.chat_template = CHAT
    messages = [
        {"role": "user", "content": "5 6", "weight": 0},
        {"role": "assistant", "content": "7 8 9"},
        {"role": "user", "content": "4", "weight": 0.5},
    ]
    expected = {"input_ids": [1, 5, 6, 2, 7, 8, 9, 1, 4], "weight": [0.0] * 3 + [1.0] * 4 + [0.5] * 2}
    row = weigh_messages({"messages": messages}, words)
    assert row == {**expected, "labels": expected["input_ids"]}
    # Through `Dataset.map`, which fills keys that some messages lack with None.
    mapped = Dataset.from_list([{"messages": messages}]).map(
        weigh_messages, fn_kwargs={"tokenizer": words}, remove_columns="messages"
    )
    assert mapped[0] == row
    trainer = trained(llama(), mapped, tmp_path, loss(tau=TAU, weight_column="weight"), size=1)
    torch.testing.assert_close(parameters(trainer.model), language_step_by_hand([row]), rtol=0, atol=1e-6)
    words.chat_template = "{{ messages | length }} " + CHAT
    with pytest.raises(ValueError, match="changes earlier tokens when message 2 is added"):
        weigh_messages({"messages": messages}, words)


def test_weights_on_tokens():
    assert on_tokens([1, 2, 3], 3).tolist() == [1, 2, 3]
    assert on_tokens([2, 0.5], 5, lengths=[2, 3]).tolist() == [2, 2, 0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match=r"one number or 4 numbers, one per token, got shape \(3,\)"):
        on_tokens([1, 2, 3], 4)
    with pytest.raises(ValueError, match=r"one number, 2 numbers, one per packed sequence, or 4 numbers"):
        on_tokens([1, 2, 3], 4, lengths=[1, 3])


def test_the_collator_joins_rows_as_the_batch_does():
    """Padding-free training has one row of all tokens."""

    def joined(examples):
        return {"labels": torch.tensor([[token for row in examples for token in row["input_ids"]]])}

    collator = WeightedCollator(joined, "weight")
    batch = collator([{"input_ids": [1, 2], "weight": 2.0}, {"input_ids": [3], "weight": [0.5]}])
    assert batch["reweigh_weight"].tolist() == [[2.0, 2.0, 0.5]]
    assert "reweigh_weight" not in collator([{"input_ids": [1, 2]}])
    with pytest.raises(ValueError, match="some rows of a batch have 'weight' and some do not"):
        collator([{"input_ids": [1], "weight": 2.0}, {"input_ids": [3]}])
    with pytest.raises(ValueError, match="weights must be zero or more, got -1 in the column 'weight'"):
        collator([{"input_ids": [1], "weight": -1.0}])
    with pytest.raises(ValueError, match="a row has 2 tokens and its labels in the batch 1"):
        WeightedCollator(lambda rows: {"labels": torch.ones(2, 1, dtype=torch.long)}, "weight")(
            [{"input_ids": [1, 2], "weight": 2.0}] * 2
        )


@pytest.mark.refuses(HOST, "sampler", "step", "average")
@pytest.mark.parametrize("part", ["class_uniform", "sam", "ema"])
def test_parts_without_a_place_are_refused(part):
    with pytest.raises(ValueError, match=rf"the Hugging Face Trainer carries loss, objective and post .* '{part}': "):
        loss(f"rgd+{part}")


def test_what_is_missing_is_told(tmp_path):
    outputs, labels = SequenceClassifierOutput(logits=torch.zeros(2, 3, requires_grad=True)), torch.tensor([0, 1])
    for function in (loss("class_balanced", class_counts=COUNTS), loss(weight_column="weight")):
        with pytest.raises(ValueError, match=r"Call watch\(trainer\) before trainer\.train\(\)"):
            function(outputs, labels, num_items_in_batch=2)
    with pytest.raises(
        ValueError, match=r"`label_smoothing` smooths the cross entropy, got 0\.1 with the loss of 'focal'"
    ):
        loss("focal", label_smoothing=0.1)
    with pytest.raises(ValueError, match="the loss of 'mse' is for a regression, got problem_type='multi_label"):
        loss("mse", problem_type="multi_label_classification")
    with pytest.raises(ValueError, match="the training data has no column 'heft'; it has input_ids"):
        trained(bert(num_labels=3), Dataset.from_list(labelled(True)), tmp_path, loss(weight_column="heft"))
    with pytest.raises(ValueError, match="the batch has no weights, though weight_column='heft' was asked for"):
        trained(bert(num_labels=3), labelled(True), tmp_path, loss(weight_column="heft"))
    trainer = Trainer(bert(num_labels=3), arguments(tmp_path), train_dataset=labelled(False))
    trainer.train_dataset = (row for row in ())
    trainer.compute_loss_func = loss("class_balanced", class_counts="auto")
    with pytest.raises(ValueError, match="counts a data set with a length, got generator"):
        watch(trainer)


@pytest.mark.processes
@pytest.mark.shows(HOST, "DDP")
def test_two_processes_with_weights_take_the_step_of_one(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = children.run(
        [*command, Path(__file__).parent / "workers" / "trainer_weights.py", tmp_path],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "ACCELERATE_USE_CPU": "true"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    for name, reference in (
        ("rows", three_classes(labelled(True), BALANCED)),
        ("tokens", language_step_by_hand(sentences(True))),
    ):
        torch.testing.assert_close(torch.load(tmp_path / f"{name}.pt"), reference, rtol=0, atol=1e-6)
