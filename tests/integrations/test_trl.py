"""TRL's SFTTrainer with re-weighting takes the step of a loop written by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import reweigh
from reweigh.integrations.causal import losses_of
from reweigh.integrations.trl import reweigh_sft
from reweigh.objectives.dft import DFT
from reweigh.objectives.entropy import Entropy
from reweigh.objectives.rho import Rho
from reweigh.objectives.term import TERM

TEXT = "the cat sat on a mat and saw two red birds fly over green hills at noon"
WORDS = TEXT.split()
RATE, TAU = 0.1, 8.0


def tokenizer():
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS) + 3,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.7,  # losses on both sides of tau, so that weights differ
    )
    return LlamaForCausalLM(config)


def texts():
    """Prompts and completions of different lengths: 2 to 7 completion tokens."""
    rows = [(WORDS[i : i + 2], WORDS[i + 2 : i + 3 + i % 6]) for i in range(8)]
    return [{"prompt": " ".join(p), "completion": " " + " ".join(c)} for p, c in rows]


def settings(folder, **options):
    values = {
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
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }
    return SFTConfig(**(values | options))


def trainer(folder, **options):
    data = Dataset.from_list(texts())
    arguments = settings(folder, **options)
    return SFTTrainer(model(), arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer())


def parameters(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def losses_by_hand(network):
    """The losses of the completion tokens, one vector a text, each text on its own."""
    encode = tokenizer()
    losses = []
    for row in texts():
        prompt = encode(row["prompt"])["input_ids"]
        tokens = torch.tensor(encode(row["prompt"] + row["completion"])["input_ids"] + [1])
        every = F.cross_entropy(network(tokens[None]).logits[0, :-1], tokens[1:], reduction="none")
        losses.append(every[len(prompt) - 1 :])
    return losses


def step_by_hand(level, weight=lambda loss: torch.exp(loss.clip(0, TAU) / (TAU + 1))):
    network = model()
    losses = losses_by_hand(network)
    tokens = sum(len(row) for row in losses)
    if level == "token":
        total = sum((weight(row.detach()) * row).sum() for row in losses)
    else:
        total = sum(weight(row.detach().mean()) * row.sum() for row in losses)
    (total / tokens).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= RATE * parameter.grad
    return parameters(network)


@pytest.mark.shows("TRL", "objective", "accumulation")
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_update_is_that_of_a_loop_by_hand_also_under_accumulation(level, tmp_path):
    reference = step_by_hand(level)
    assert (step_by_hand(level, torch.ones_like) - reference).abs().max() > 1e-2
    for size, steps in ((8, 1), (2, 4)):
        host = trainer(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=steps)
        reweigh_sft(host, tau=TAU, level=level).train()
        torch.testing.assert_close(parameters(host.model), reference, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("options", [{"padding_free": True, "max_length": None}, {"packing": True, "max_length": 16}])
@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_sequences_are_told_apart_in_packed_rows(options, chunked, tmp_path):
    host = trainer(tmp_path, **options)
    reweigh_sft(host, tau=TAU, level="sequence", chunked=chunked).train()
    torch.testing.assert_close(parameters(host.model), step_by_hand("sequence"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_chunked_loss_takes_the_step_of_a_loop_by_hand(level, tmp_path):
    host = trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    reweigh_sft(host, tau=TAU, level=level, chunked=True).train()
    torch.testing.assert_close(parameters(host.model), step_by_hand(level), rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunked", [False, True])
def test_entropy_is_that_of_the_logits_at_hand(chunked, tmp_path):
    network, encode, weighted, tokens = model(), tokenizer(), 0.0, 0
    for row in texts():
        start = len(encode(row["prompt"])["input_ids"]) - 1
        ids = torch.tensor(encode(row["prompt"] + row["completion"])["input_ids"] + [1])
        logits = network(ids[None]).logits[0, start:-1]
        share = torch.distributions.Categorical(logits=logits.detach()).entropy() / math.log(logits.shape[-1])
        weighted = weighted + (share * F.cross_entropy(logits, ids[start + 1 :], reduction="none")).sum()
        tokens += len(logits)
    (weighted / tokens).backward()
    expected = torch.cat([(p - RATE * p.grad).detach().flatten() for p in network.parameters()])
    host = reweigh_sft(trainer(tmp_path), Entropy(), chunked=chunked)
    host.train()
    torch.testing.assert_close(parameters(host.model), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunked", [False, True])
def test_rho_keeps_the_tokens_above_a_reference_model(chunked, tmp_path):
    torch.manual_seed(1)
    reference, network = LlamaForCausalLM(model().config), model()
    losses = torch.cat(losses_by_hand(network))
    excess = losses.detach() - torch.cat(losses_by_hand(reference)).detach()
    losses[excess.topk(math.ceil(0.5 * len(losses))).indices].mean().backward()
    expected = torch.cat([(p - RATE * p.grad).detach().flatten() for p in network.parameters()])
    host = reweigh_sft(trainer(tmp_path), Rho(keep=0.5), reference=reference, chunked=chunked)
    host.train()
    torch.testing.assert_close(parameters(host.model), expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="reference="):
        reweigh_sft(trainer(tmp_path), Rho(keep=0.5))
    with pytest.raises(ValueError, match="needs no `reference`"):
        reweigh_sft(trainer(tmp_path), tau=TAU, reference=reference)


@pytest.mark.parametrize("chunked", [False, True])
def test_metrics_and_evaluation_are_those_of_plain_training(chunked, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1}
    plain, ours = trainer(tmp_path, **options), reweigh_sft(trainer(tmp_path, **options), tau=TAU, chunked=chunked)
    before = [host.evaluate() for host in (plain, ours)]
    for name in ("eval_loss", "eval_entropy", "eval_mean_token_accuracy"):
        assert before[1][name] == pytest.approx(before[0][name], rel=1e-6)
    logs = []
    for host in (plain, ours):
        host.train()
        logs.append(next(log for log in host.state.log_history if "loss" in log))
    for name in ("entropy", "mean_token_accuracy", "num_tokens"):
        assert logs[1][name] == pytest.approx(logs[0][name], rel=1e-6)
    assert logs[1]["loss"] > 1.1 * logs[0]["loss"]
    assert logs[1]["plain_loss"] == pytest.approx(logs[0]["loss"], rel=1e-5)
    losses = torch.cat(losses_by_hand(model())).detach()
    assert logs[1]["clip_share"] == pytest.approx((losses >= TAU).float().mean().item())
    assert logs[1]["weight_mean"] == pytest.approx(torch.exp(losses.clip(0, TAU) / (TAU + 1)).mean().item(), rel=1e-5)


def test_dft_as_an_objective_is_trls_own(tmp_path):
    own = trainer(tmp_path, loss_type="dft")
    own.train()
    ours = reweigh_sft(trainer(tmp_path), DFT())
    ours.train()
    torch.testing.assert_close(parameters(ours.model), parameters(own.model), rtol=0, atol=1e-6)


def test_brain_float_is_trls_default(tmp_path):
    """Under bf16 autocast the weights are computed in float32."""
    host = reweigh_sft(trainer(tmp_path, bf16=True), tau=TAU)
    host.train()
    # bf16 has three digits, and the step of this model is of size ten.
    reference = step_by_hand("token")
    start = parameters(model())
    assert (parameters(host.model) - reference).norm() < 0.05 * (reference - start).norm()


@pytest.mark.parametrize("chunked", [False, True])
def test_state_moves_once_a_step(chunked, tmp_path):
    host = trainer(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3)
    reweigh_sft(host, reweigh.RGD(tau=TAU, warmup=2), chunked=chunked).train()
    means = [log["weight_mean"] for log in host.state.log_history if "loss" in log]
    assert means[:2] == [1.0, 1.0]
    assert means[2] > 1.0


def test_objective_over_the_batch_says_what_a_batch_is(tmp_path):
    with pytest.warns(UserWarning, match="micro-batch"):
        reweigh_sft(trainer(tmp_path, gradient_accumulation_steps=2), TERM(t=1.0))


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"loss_type": "dft"}, {}, "DFT is the same"),
        ({"label_smoothing_factor": 0.1}, {}, "from the logits"),
        (
            {"packing": True, "max_length": 16, "packing_strategy": "wrapped"},
            {"level": "sequence"},
            "packing_strategy='bfd', or level='token'",
        ),
        ({}, {"level": "sample"}, "one of"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_what_would_have_no_effect_is_refused(options, arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        reweigh_sft(trainer(tmp_path, **options), tau=TAU, **arguments)


@pytest.mark.parametrize(
    ("family", "options"),
    [("Gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8}), ("Granite", {"logits_scaling": 4.0}), ("Cohere", {})],
)
def test_what_a_model_does_to_its_logits_is_read_from_its_configuration(family, options):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=30,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.7,
        **options,
    )
    torch.manual_seed(0)
    network = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    ids = torch.randint(1, 30, (2, 6))
    expected = F.cross_entropy(network(ids).logits[:, :-1].movedim(-1, 1), ids[:, 1:], reduction="none")
    torch.testing.assert_close(losses_of(network, {"input_ids": ids, "labels": ids}), expected, rtol=1e-5, atol=1e-5)


def test_another_trainer_is_refused():
    with pytest.raises(TypeError, match="SFTTrainer"):
        reweigh_sft(object(), tau=TAU)


@pytest.mark.parametrize("name", ["trl_sft", "score_and_select", "weighted_messages"])
@pytest.mark.filterwarnings("ignore")  # TRL advises another attention for packing
def test_the_examples_run_and_learn(name, monkeypatch, capsys):
    import runpy
    import sys
    from pathlib import Path

    script = Path(__file__).parents[2] / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "12"])
    runpy.run_path(str(script), run_name="__main__")
    words = capsys.readouterr().out.strip().splitlines()[-1].split()
    assert float(words[2]) > float(words[7])
