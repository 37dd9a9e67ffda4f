"""Entropies, DFT's probabilities and reference losses in the Trainer and in TRL: the step of a loop by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import trl
from datasets import Dataset
from test_transformers import RATE, VOCABULARY, arguments, llama, parameters
from test_trl import losses_by_hand as completions_by_hand
from test_trl import model as sft_model
from test_trl import parameters as sft_parameters
from test_trl import step_by_hand as sft_step_by_hand
from test_trl import texts, tokenizer
from test_trl import trainer as sft_trainer
from transformers import DataCollatorForSeq2Seq, Trainer

from reweigh.integrations.transformers import loss, watch
from reweigh.integrations.trl import reweigh_sft
from reweigh.objectives.rho import Rho

KEEP = 0.5


def sentences(signal=True):
    """Rows of unequal length; the first labels are those of a prompt."""
    rows = []
    for i in range(4):
        ids = [(5 * i + 3 * k) % (VOCABULARY - 3) + 3 for k in range(4 + i)]
        labels = [-100, -100, *ids[2:]]
        row = {"input_ids": ids, "labels": labels}
        rows.append(row | ({"reference": [0.3 * ((7 * i + 5 * k) % 11) for k in range(len(ids))]} if signal else {}))
    return rows


def by_hand(weights_of, level="token"):
    """One step on sum(w · l) / n over the labels that count; `weights_of` sees losses, logits and reference losses."""
    model = llama().train()
    losses, logits, reference, row_of = [], [], [], []
    for number, row in enumerate(sentences()):
        ids, labels = torch.tensor(row["input_ids"]), row["labels"]
        out = model(ids[None]).logits[0]
        for t in range(1, len(ids)):
            if labels[t] != -100:
                logits.append(out[t - 1])
                losses.append(F.cross_entropy(out[t - 1], ids[t]))
                reference.append(row["reference"][t])
                row_of.append(number)
    losses, logits, reference = torch.stack(losses), torch.stack(logits), torch.tensor(reference)
    if level == "sequence":
        rows = torch.tensor(row_of)
        means = [torch.stack([x[rows == r].mean() for r in range(4)]) for x in (losses.detach(), reference)]
        sizes = torch.bincount(rows)
        weights = weights_of(means[0], None, means[1], sizes)[rows]
    else:
        weights = weights_of(losses.detach(), logits.detach(), reference, torch.ones(len(losses)))
    ((weights * losses).sum() / len(losses)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    return parameters(model)


def entropies(losses, logits, reference, sizes):
    weights = []
    for row in logits:
        p = row.softmax(-1)
        weights.append(float(-(p * p.log()).sum()) / math.log(len(row)))
    return torch.tensor(weights)


def probabilities(losses, logits, reference, sizes):
    return torch.tensor([math.exp(-float(loss)) for loss in losses])


def largest_excess(losses, logits, reference, sizes):
    order = sorted(range(len(losses)), key=lambda i: float(reference[i] - losses[i]))
    kept = order[: math.ceil(KEEP * len(losses))]
    weights = torch.zeros(len(losses))
    weights[kept] = float(sizes.sum() / sizes[kept].sum())
    return weights


def trained(function, folder, *, data=None, size=4, steps=1, side="right"):
    pads = tokenizer()
    pads.padding_side = side
    made = Trainer(
        model=llama(),
        args=arguments(folder, per_device_train_batch_size=size, gradient_accumulation_steps=steps),
        train_dataset=Dataset.from_list(sentences() if data is None else data),
        data_collator=DataCollatorForSeq2Seq(pads),
        compute_loss_func=function,
    )
    watch(made).train()
    return parameters(made.model)


@pytest.mark.parametrize("size", [4, 2])
@pytest.mark.parametrize(("text", "weights"), [("entropy", entropies), ("dft", probabilities)])
def test_weights_from_the_logits_take_the_step_of_a_loop_by_hand(text, weights, size, tmp_path):
    ours = trained(loss(text), tmp_path, data=sentences(signal=False), size=size, steps=4 // size)
    torch.testing.assert_close(ours, by_hand(weights), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_rho_reads_a_column_of_reference_losses(level, tmp_path):
    function = loss(f"rho:keep={KEEP}", signal_column="reference", level=level)
    torch.testing.assert_close(trained(function, tmp_path), by_hand(largest_excess, level), atol=2e-6, rtol=1e-4)


def test_rho_takes_the_losses_of_a_reference_model(tmp_path):
    torch.manual_seed(5)
    reference = llama()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    scored = []
    for row in sentences():
        ids = torch.tensor(row["input_ids"])
        with torch.no_grad():
            losses = F.cross_entropy(reference(ids[None]).logits[0, :-1], ids[1:], reduction="none")
        scored.append(row | {"reference": [0.0, *losses.tolist()]})
    from_column = trained(loss(Rho(keep=KEEP), signal_column="reference"), tmp_path / "column", data=scored)
    own = trained(loss(Rho(keep=KEEP), reference=reference), tmp_path / "model", data=sentences(signal=False))
    torch.testing.assert_close(own, from_column, atol=2e-6, rtol=1e-4)
    assert not any("reference" in name for name in loss(Rho(), reference=reference).state_dict())


def test_what_is_missing_or_useless_is_told(tmp_path):
    with pytest.raises(ValueError, match="signal_column="):
        loss("rho")
    with pytest.raises(ValueError, match="needs no `signal_column`"):
        loss("dft", signal_column="reference")
    with pytest.raises(ValueError, match="needs no `reference`"):
        loss("entropy", reference=llama())
    with pytest.raises(ValueError, match="two sources"):
        loss("rho", reference=llama(), signal_column="reference")
    with pytest.raises(ValueError, match="no column 'reference'"):
        trained(loss("rho", signal_column="reference"), tmp_path, data=sentences(signal=False))
    with pytest.raises(ValueError, match="entropy of classes"):
        loss("entropy", problem_type="regression")((torch.zeros(2, 1, requires_grad=True),), torch.zeros(2))


# --- TRL ---


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("per_token", [False, True])
def test_trl_reads_a_column_of_reference_losses(per_token, chunked, tmp_path):
    """A number per row of texts; or per token, where rows come as tokens with labels."""
    host = sft_trainer(tmp_path)
    encode = tokenizer()
    rows = []
    for i, row in enumerate(texts()):
        prompt = encode(row["prompt"])["input_ids"]
        ids = [*encode(row["prompt"] + row["completion"])["input_ids"], 1]
        signal = [0.5 * ((3 * i + 2 * k) % 7) for k in range(len(ids))] if per_token else 0.7 * i
        tokens = {"input_ids": ids, "labels": [-100] * len(prompt) + ids[len(prompt) :]}
        rows.append(((tokens if per_token else row) | {"reference": signal}, len(prompt), len(ids)))
    data = Dataset.from_list([row for row, _, _ in rows])
    host = trl.SFTTrainer(sft_model(), host.args, train_dataset=data, processing_class=tokenizer())
    reweigh_sft(host, f"rho:keep={KEEP}", signal_column="reference", chunked=chunked).train()

    plain = completions_by_hand(sft_model())
    reference = [
        torch.tensor(row["reference"][first:]) if per_token else torch.full((size - first,), row["reference"])
        for row, first, size in rows
    ]
    excess = torch.cat([own.detach() - other for own, other in zip(plain, reference, strict=True)])
    kept = excess.argsort(descending=True)[: math.ceil(KEEP * len(excess))]
    weights = torch.zeros(len(excess))
    weights[kept] = len(excess) / len(kept)
    parts = iter(weights.split([len(own) for own in plain]))
    expected = sft_step_by_hand("token", weight=lambda losses: next(parts))
    torch.testing.assert_close(sft_parameters(host.model), expected, atol=2e-6, rtol=1e-4)


def test_trl_takes_texts(tmp_path):
    host = sft_trainer(tmp_path)
    reweigh_sft(host, "dft").train()
    expected = sft_step_by_hand("token", weight=lambda losses: torch.exp(-losses))
    torch.testing.assert_close(sft_parameters(host.model), expected, atol=2e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="signal_column="):
        reweigh_sft(sft_trainer(tmp_path / "other"), "rho")
