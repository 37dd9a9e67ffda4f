"""The Trainer's update with the loss function is that of a loop written by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import children
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.modeling_outputs import (
    CausalLMOutputWithPast,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

import reweigh
from reweigh.integrations.transformers import WeightLog, loss, watch
from reweigh.objectives.mean import Mean
from reweigh.objectives.term import TERM
from reweigh.torch import Reweighted
from reweigh.torch.losses import LDAM

VOCABULARY, RATE, TAU = 24, 0.02, 8.0
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"initializer_range": 0.7}  # losses on both sides of tau, so that weights differ
BERT = SMALL | {"intermediate_size": 16, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0}
BERT = BERT | {"attention_probs_dropout_prob": 0.0}
LLAMA = SMALL | {"intermediate_size": 16, "num_key_value_heads": 2, "max_position_embeddings": 16}


def bert(kind=BertForSequenceClassification, **options):
    torch.manual_seed(0)
    return kind(BertConfig(**BERT, **options))


def llama(**options):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(LLAMA | options), pad_token_id=0, bos_token_id=1, eos_token_id=2))


def rows(label, number=8, length=6):
    """Examples of one length, so that the stock collator can stack them; `label(rng, tokens)` makes the labels."""
    rng = np.random.default_rng(3)
    made = []
    for _ in range(number):
        tokens = rng.integers(3, VOCABULARY, length).tolist()
        made.append({"input_ids": tokens, "attention_mask": [1] * length, "labels": label(rng, tokens)})
    return made


def ragged(rng, tokens):
    """Labels of a language model with a prompt and a pad of random lengths left out."""
    labels = np.array(tokens)
    labels[: rng.integers(0, 4)] = -100
    labels[len(tokens) - rng.integers(0, 2) :] = -100
    return labels.tolist()


def token_labels(rng, tokens):
    labels = rng.integers(0, 5, len(tokens))
    labels[rng.random(len(tokens)) < 0.3] = -100
    return labels.tolist()


def arguments(folder, **options):
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    return TrainingArguments(**(settings | options))


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def trained(model, data, folder, function, **options):
    trainer = Trainer(model, arguments(folder, **options), train_dataset=data, compute_loss_func=function)
    trainer.train()
    return parameters(model), trainer


def batch_of(data):
    return {name: torch.tensor([row[name] for row in data]) for name in data[0]}


def by_hand(model, data, losses_of):
    """One step of gradient descent on the weighted losses of the whole data set.

    `losses_of(logits, labels)` gives a list of (losses of the tokens of a unit) and is written without the library.
    """
    model.train()
    batch = batch_of(data)
    labels = batch.pop("labels")
    units = losses_of(model(**batch).logits, labels)
    tokens = sum(len(unit) for unit in units)
    total = sum(torch.exp(unit.detach().mean().clip(0, TAU) / (TAU + 1)) * unit.sum() for unit in units)
    (total / tokens).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
    return parameters(model)


def of_examples(criterion):
    return lambda logits, labels: [criterion(z[None], y[None]).reshape(-1) for z, y in zip(logits, labels, strict=True)]


def of_tokens(shift, together=False):
    def losses_of(logits, labels):
        if shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        kept = [F.cross_entropy(z[y >= 0], y[y >= 0], reduction="none") for z, y in zip(logits, labels, strict=True)]
        return kept if together else [token[None] for sequence in kept for token in sequence]

    return losses_of


def each(loss):
    return lambda z, y: loss(z, y, reduction="none")


TASKS = {
    "classification": (
        lambda: bert(num_labels=5),
        lambda rng, t: int(rng.integers(5)),
        {},
        of_examples(each(F.cross_entropy)),
    ),
    "regression": (
        lambda: bert(num_labels=1),
        lambda rng, t: float(rng.normal()),
        {},
        of_examples(lambda z, y: F.mse_loss(z[:, 0], y, reduction="none")),
    ),
    "several values": (
        lambda: bert(num_labels=3),
        lambda rng, t: rng.normal(size=3).tolist(),
        {"problem_type": "regression"},
        of_examples(each(F.mse_loss)),
    ),
    "several classes": (
        lambda: bert(num_labels=3),
        lambda rng, t: rng.integers(0, 2, 3).astype(float).tolist(),
        {"problem_type": "multi_label_classification"},
        of_examples(each(F.binary_cross_entropy_with_logits)),
    ),
    "token classification": (
        lambda: bert(BertForTokenClassification, num_labels=5),
        token_labels,
        {},
        of_tokens(False),
    ),
    "masked language model": (lambda: bert(BertForMaskedLM), token_labels, {}, of_tokens(False)),
    "language model": (llama, ragged, {}, of_tokens(True)),
    "language model by sequence": (llama, ragged, {"level": "sequence"}, of_tokens(True, together=True)),
}


@pytest.mark.shows("Hugging Face Trainer", "objective", "accumulation")
@pytest.mark.parametrize("task", TASKS)
def test_update_is_that_of_a_loop_by_hand_also_under_accumulation(task, tmp_path):
    build, label, options, losses_of = TASKS[task]
    data = rows(label)
    reference = by_hand(build(), data, losses_of)
    start = parameters(build())
    assert (reference - start).norm() > 1e-2
    for size, steps in ((8, 1), (2, 4)):
        function = loss(tau=TAU, **options)
        after, _ = trained(
            build(), data, tmp_path, function, per_device_train_batch_size=size, gradient_accumulation_steps=steps
        )
        torch.testing.assert_close(after, reference, rtol=0, atol=1e-6)


def direction(update):
    return update / update.norm()


@pytest.mark.parametrize("task", TASKS)
def test_the_update_is_not_the_plain_one(task, tmp_path):
    """Otherwise the comparison above would hold for a function that forgets the weights."""
    build, label, options, losses_of = TASKS[task]
    start = parameters(build())
    plain, _ = trained(build(), rows(label), tmp_path, loss(Mean(), **options))
    weighted = by_hand(build(), rows(label), losses_of)
    assert direction(weighted - start) @ direction(plain - start) < 0.9995


def test_above_tau_it_is_the_plain_one_at_another_rate(tmp_path):
    """A language model at its start: every token's loss is about log 24 = 3.2, so with tau = 1 all are clipped."""
    data, fresh = rows(ragged), {"initializer_range": 0.02}
    plain, _ = trained(llama(**fresh), data, tmp_path, None)
    after, _ = trained(llama(**fresh), data, tmp_path, loss(tau=1.0))
    start = parameters(llama(**fresh))
    torch.testing.assert_close(after - start, np.exp(0.5) * (plain - start), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("task", ["classification", "token classification", "language model"])
def test_evaluation_reports_the_plain_loss(task, tmp_path):
    build, label, options, _ = TASKS[task]
    data = rows(label)
    reported = []
    for function in (None, loss(tau=TAU, **options)):
        trainer = Trainer(build(), arguments(tmp_path), eval_dataset=data, compute_loss_func=function)
        reported.append(trainer.evaluate()["eval_loss"])
    assert reported[1] == pytest.approx(reported[0], rel=1e-6)


def test_plain_objective_and_smoothing_agree_with_the_trainers_own(tmp_path):
    """The mean objective with label smoothing takes the Trainer's own smoothed step."""
    data = rows(lambda rng, t: int(rng.integers(5)))
    own, _ = trained(bert(num_labels=5), data, tmp_path, None, label_smoothing_factor=0.2)
    ours, _ = trained(bert(num_labels=5), data, tmp_path, loss(Mean(), label_smoothing=0.2))
    torch.testing.assert_close(ours, own, rtol=0, atol=1e-6)


def test_smoothed_weights_see_the_loss_above_its_floor():
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0]], requires_grad=True)
    function = loss(tau=1.0, label_smoothing=0.1)
    function(SequenceClassifierOutput(logits=logits), torch.tensor([0]), 1)
    target = np.full(4, 0.025) + np.array([0.9, 0, 0, 0])
    log_p = np.array([9.0, 0, 0, 0]) - np.log(np.exp(9.0) + 3)
    divergence = (target * (np.log(target) - log_p)).sum()
    assert function.reweighted.weights.item() == pytest.approx(np.exp(min(divergence, 1) / 2), rel=1e-5)


def test_the_trainers_own_smoothing_factor_is_not_lost(tmp_path):
    trainer = Trainer(
        bert(num_labels=5),
        arguments(tmp_path, label_smoothing_factor=0.1),
        train_dataset=rows(lambda rng, t: int(rng.integers(5))),
        compute_loss_func=loss(tau=TAU),
    )
    with pytest.raises(ValueError, match=r"label_smoothing=0\.1"):
        watch(trainer).train()


# --- the logs ---


class Seen(TrainerCallback):
    """Stands for a logger such as TensorBoard: it is called with the logs in its place in the order."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_statistics_are_in_the_logs_of_every_logger(tmp_path):
    data = rows(token_labels)
    model = bert(BertForTokenClassification, num_labels=5)
    batch = batch_of(data)
    labels = batch.pop("labels")
    with torch.no_grad():
        every = F.cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = every[labels.flatten() >= 0].double()
    tau = float(losses.quantile(0.5)) + 1e-4
    weights = torch.exp(losses.clip(0, tau) / (tau + 1))

    seen = Seen()
    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = Trainer(
        model, arguments(tmp_path, **options), train_dataset=data, compute_loss_func=loss(tau=tau), callbacks=[seen]
    )
    watch(trainer).train()
    for log in (seen.logs[0], trainer.state.log_history[0]):
        assert log["plain_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert log["weight_mean"] == pytest.approx(weights.mean().item(), rel=1e-5)
        assert log["clip_share"] == pytest.approx((losses >= tau).double().mean().item())
        assert log["ess_share"] == pytest.approx((weights.mean() ** 2 / (weights**2).mean()).item(), rel=1e-5)
        assert log["loss"] == pytest.approx((weights * losses).mean().item(), rel=1e-5)
    assert "clip_share" not in seen.logs[-1]  # the summary at the end is about the run


def test_evaluation_logs_and_evaluation_batches_stay_out(tmp_path):
    data = rows(lambda rng, t: int(rng.integers(5)))
    trainer = Trainer(
        bert(num_labels=5),
        arguments(tmp_path, eval_strategy="steps", eval_steps=1, max_steps=2),
        train_dataset=data,
        eval_dataset=data,
        compute_loss_func=loss(tau=TAU),
    )
    watch(trainer, window=1).train()
    history = trainer.state.log_history
    assert ["clip_share" in log for log in history] == ["loss" in log for log in history]
    # The second step starts where the evaluation after the first was made.
    assert history[2]["plain_loss"] == pytest.approx(history[1]["eval_loss"], rel=1e-5)


def test_statistics_are_those_since_the_last_log(tmp_path):
    """With the same batch each time, the plain loss is that before each step, whatever came before."""
    data = rows(lambda rng, t: int(rng.integers(5)))
    trainer = Trainer(
        bert(num_labels=5), arguments(tmp_path, max_steps=3), train_dataset=data, compute_loss_func=loss(tau=TAU)
    )
    watch(trainer).train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    model = bert(num_labels=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for log in logs:
        batch = batch_of(data)
        labels = batch.pop("labels")
        losses = F.cross_entropy(model(**batch).logits, labels, reduction="none")
        assert log["plain_loss"] == pytest.approx(losses.mean().item(), rel=1e-4)
        optimizer.zero_grad()
        (torch.exp(losses.detach().clip(0, TAU) / (TAU + 1)) * losses).mean().backward()
        optimizer.step()


def test_what_stands_out_is_said_at_the_end(tmp_path, caplog):
    trainer = Trainer(llama(), arguments(tmp_path), train_dataset=rows(ragged), compute_loss_func=loss(tau=0.01))
    watch(trainer).train()
    assert "saturated" in caplog.text


# --- objectives with a state, and those that look at the batch ---


def test_state_moves_once_a_step_and_is_resumed(tmp_path):
    data = rows(lambda rng, t: int(rng.integers(5)), number=16)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 4}
    options |= {"save_strategy": "steps", "save_steps": 2}

    def run(folder, **resume):
        function = loss(reweigh.RGD(tau=TAU, warmup=3))
        trainer = Trainer(
            bert(num_labels=5), arguments(folder, **options), train_dataset=data, compute_loss_func=function
        )
        watch(trainer).train(**resume)
        return parameters(trainer.model), function.reweighted.state_step.item(), trainer

    whole, steps, trainer = run(tmp_path / "whole")
    assert steps == 4
    means = [log["weight_mean"] for log in trainer.state.log_history if "loss" in log]
    assert means[:3] == [1.0, 1.0, 1.0]
    assert means[3] > 1.0
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    saved = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["WeightLog"]
    assert saved["attributes"]["saved"] == {"state_step": 2}
    resumed, steps, _ = run(tmp_path / "resumed", resume_from_checkpoint=str(checkpoint))
    assert steps == 4
    torch.testing.assert_close(resumed, whole, rtol=0, atol=1e-6)


def test_state_moves_with_the_optimiser_where_an_epoch_ends_early(tmp_path):
    """Five micro-batches an epoch and two a step: the third step of an epoch has one."""
    data = rows(lambda rng, t: int(rng.integers(5)), number=10)
    function = loss(reweigh.RGD(tau=TAU, warmup=6))
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": -1}
    trainer = Trainer(
        bert(num_labels=5),
        arguments(tmp_path, num_train_epochs=3, **options),
        train_dataset=data,
        compute_loss_func=function,
    )
    watch(trainer).train()
    assert trainer.state.global_step == 9
    assert function.reweighted.state_step.item() == 9


def test_a_checkpoint_without_statistics_can_be_resumed_with_them(tmp_path):
    data = rows(lambda rng, t: int(rng.integers(5)))
    options = {"save_strategy": "steps", "save_steps": 1}
    trained(bert(num_labels=5), data, tmp_path, None, **options)
    trainer = Trainer(
        bert(num_labels=5),
        arguments(tmp_path, max_steps=2, **options),
        train_dataset=data,
        compute_loss_func=loss(tau=TAU),
    )
    watch(trainer).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert (tmp_path / "checkpoint-2").exists()


def test_resuming_with_another_objective_is_refused():
    log = WeightLog(loss(tau=TAU))
    state = SimpleNamespace(stateful_callbacks={"WeightLog": {"attributes": {"saved": {"state_step": 2}}}})
    with pytest.raises(ValueError, match="another objective"):
        log.on_train_begin(SimpleNamespace(gradient_accumulation_steps=1), state, None)


def test_objective_over_the_batch_says_what_a_batch_is(tmp_path):
    data = rows(lambda rng, t: int(rng.integers(5)))
    trained(bert(num_labels=5), data, tmp_path, loss(TERM(t=1.0)))  # no accumulation, no warning
    function = loss(TERM(t=1.0))
    with pytest.warns(UserWarning, match="micro-batch") as caught:
        trained(
            bert(num_labels=5), data, tmp_path, function, per_device_train_batch_size=4, gradient_accumulation_steps=2
        )
    assert len(caught) == 1


# --- mixtures of experts ---


def test_late_class_weights_start_by_themselves(tmp_path):
    seen = []

    class Progress(LDAM):
        def sample_weight(self, target, progress=1.0):
            seen.append(progress)
            return super().sample_weight(target, progress)

    criterion = Reweighted(Progress(class_counts=(3, 5)), tau=1.0)

    def function(outputs, labels, num_items_in_batch=None):
        return criterion(outputs.logits, labels, count=num_items_in_batch)

    data = rows(lambda rng, tokens: int(rng.integers(2)))
    settings = arguments(tmp_path, max_steps=4)
    trainer = Trainer(bert(num_labels=2), settings, train_dataset=data, compute_loss_func=function)
    trainer.add_callback(WeightLog(criterion))
    trainer.train()
    assert seen == [0.0, 0.25, 0.5, 0.75]


def t5():
    torch.manual_seed(0)
    small = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0, pad_token_id=0))


def test_sequence_to_sequence_training_needs_its_collator(tmp_path):
    """The Trainer keeps the labels from the model, so the collator must make the decoder's inputs."""
    data = rows(lambda rng, tokens: tokens[:4])
    model = t5()
    trainer = Trainer(model, arguments(tmp_path), train_dataset=data, compute_loss_func=loss(tau=TAU))
    with pytest.raises(ValueError, match=r"DataCollatorForSeq2Seq\(tokenizer, model=model\)"):
        watch(trainer)

    def collate(examples):  # one's own is taken to know
        batch = {name: torch.tensor([e[name] for e in examples]) for name in examples[0]}
        return batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(batch["labels"])}

    settings = arguments(tmp_path, remove_unused_columns=False)
    trainer = Trainer(model, settings, train_dataset=data, data_collator=collate, compute_loss_func=loss(tau=TAU))
    watch(trainer).train()
    assert np.isfinite(trainer.state.log_history[0]["plain_loss"])


def mixtral(coefficient):
    torch.manual_seed(0)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(**LLAMA, **experts, router_aux_loss_coef=coefficient))


def test_router_loss_is_kept(tmp_path):
    """With the plain mean, a step is the Trainer's own, auxiliary loss included; and without it, it is not."""
    data = rows(lambda rng, tokens: tokens)
    own, _ = trained(mixtral(0.5), data, tmp_path, None)
    dropped, _ = trained(mixtral(0.5), data, tmp_path, loss(Mean(), router_aux_loss_coef=0.0))
    assert (own - dropped).abs().max() > 1e-4
    trainer = Trainer(
        mixtral(0.5), arguments(tmp_path), train_dataset=data, eval_dataset=data, compute_loss_func=loss(Mean())
    )
    watch(trainer).train()  # reads the factor
    torch.testing.assert_close(parameters(trainer.model), own, rtol=0, atol=1e-6)


def test_router_loss_is_averaged_over_micro_batches():
    """Each micro-batch counts with its share of the labels, and the plain loss is untouched."""
    logits = torch.randn(1, 4, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3, 4]])
    outputs = {"logits": logits, "aux_loss": torch.tensor(2.0)}
    function = loss(tau=TAU, shift=True, router_aux_loss_coef=0.5)
    alone = loss(tau=TAU, shift=True)
    with torch.no_grad():
        bare = alone({"logits": logits}, labels, 12)
        assert (function(outputs, labels, 12) - bare).item() == pytest.approx(0.5 * 2.0 * 3 / 12)
    with pytest.raises(ValueError, match="router_aux_loss_coef=model"):
        alone(outputs, labels, 12)


# --- number of items, misuse ---


def test_number_of_items_in_every_form():
    outputs = SequenceClassifierOutput(logits=torch.zeros(4, 3))
    labels = torch.tensor([0, 1, 2, 0])
    function = loss(tau=1.0)
    log3 = np.log(3)
    assert function(outputs, labels).item() == pytest.approx(log3 * np.exp(0.5))
    assert function(outputs, labels, 8).item() == pytest.approx(log3 * np.exp(0.5) / 2)
    # Two devices of one process: the Trainer takes the number twice and multiplies the loss by two afterwards.
    twice = torch.tensor(8).unsqueeze(0).expand(2, -1)
    assert 2 * function(outputs, labels, num_items_in_batch=twice).item() == pytest.approx(log3 * np.exp(0.5) / 2)
    nothing = TokenClassifierOutput(logits=torch.zeros(1, 2, 3))
    assert function(nothing, torch.full((1, 2), -100), torch.tensor(0)).item() == 0.0


def test_half_precision_logits_are_widened():
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = torch.arange(64) % 50
    with torch.no_grad():
        value = loss(tau=TAU)(SequenceClassifierOutput(logits=logits), labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, F.cross_entropy(logits.float(), labels))


def test_sequence_to_sequence_labels_are_not_shifted():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3], [4, 5, -100]])
    with torch.no_grad():
        aligned = loss(tau=TAU)(Seq2SeqLMOutput(logits=logits), labels)
        torch.testing.assert_close(aligned, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
        shifted = loss(tau=TAU)(CausalLMOutputWithPast(logits=logits), labels)
        torch.testing.assert_close(shifted, F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
        tuple_ = loss(tau=TAU, shift=True)((logits,), labels)
        torch.testing.assert_close(tuple_, shifted)


@pytest.mark.parametrize(
    ("outputs", "labels", "options", "message"),
    [
        (QuestionAnsweringModelOutput(start_logits=torch.zeros(2, 3)), torch.zeros(2), {}, "only start_logits"),
        (SequenceClassifierOutput(logits=torch.zeros(2, 3)), None, {}, "no labels"),
        (SequenceClassifierOutput(logits=torch.zeros(2, 3)), torch.zeros(2, 3), {}, "problem_type="),
        (SequenceClassifierOutput(logits=torch.zeros(2, 5, 4, 4)), torch.zeros(2, 4, 4).long(), {}, "not recognised"),
        ({"logits": torch.zeros(2, 3, 5)}, torch.zeros(2, 3).long(), {}, "shift=True"),
        (
            SequenceClassifierOutput(logits=torch.zeros(2, 3)),
            torch.zeros(2, 4),
            {"problem_type": "regression"},
            "not recognised",
        ),
        (SequenceClassifierOutput(logits=torch.zeros(2, 1)), torch.zeros(2), {"label_smoothing": 0.1}, "smooths"),
    ],
)
def test_misuse_at_the_call(outputs, labels, options, message):
    with pytest.raises(ValueError, match=message):
        loss(tau=TAU, **options)(outputs, labels, 2)


def test_misuse_at_construction(tmp_path):
    with pytest.raises(ValueError, match="one of"):
        loss(tau=TAU, level="sample")
    with pytest.raises(ValueError, match="problem_type"):
        loss(tau=TAU, problem_type="ranking")
    with pytest.raises(ValueError, match="label_smoothing"):
        loss(tau=TAU, label_smoothing=1.5)
    with pytest.raises(TypeError, match="either an objective"):
        loss(TERM(t=1.0), tau=TAU)
    with pytest.raises(TypeError, match="restore_callback_states"):
        WeightLog()
    with pytest.raises(TypeError, match="compute_loss_func"):
        watch(Trainer(bert(num_labels=5), arguments(tmp_path)))


# --- two processes ---


@pytest.mark.shows("Hugging Face Trainer", "DDP")
@pytest.mark.processes
def test_two_processes_take_the_step_of_one(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finished = children.run(
        [*command, Path(__file__).parent / "workers" / "trainer.py", tmp_path],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "ACCELERATE_USE_CPU": "true"},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    cases = {"classification": TASKS["classification"], "language model": TASKS["language model"]}
    for name, (build, label, _, losses_of) in cases.items():
        reference = by_hand(build(), rows(label), losses_of)
        after = torch.load(tmp_path / f"{name}.pt")
        torch.testing.assert_close(after, reference, rtol=0, atol=1e-6)
