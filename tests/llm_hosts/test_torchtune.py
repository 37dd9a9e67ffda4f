"""torchtune's own recipe with the re-weighted loss in its configuration: the step of a loop by hand."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchtune", reason="make test-llm-hosts has an environment for it")

import torch
import torch.nn.functional as F
import yaml
from tiny import RATE, TAU, instructions, rgd, save_rows
from torchtune.models.llama3 import llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss as Plain
from torchtune.training import compile_loss

from reweigh.integrations.torchtune import CEWithChunkedOutputLoss

HOST = "torchtune"
EXAMPLE = Path(__file__).parents[2] / "examples" / "llm_hosts" / "torchtune.yaml"
SIZES = {
    "vocab_size": 19, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "embed_dim": 16, "max_seq_len": 64,
    "intermediate_dim": 16,
}  # fmt: skip


def model():
    torch.manual_seed(0)
    network = llama3(**SIZES)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.7)
    return network


@pytest.fixture
def config(tmp_path):
    """The example with a tiny model, its own rows and one step of SGD in four micro-batches."""
    (tmp_path / "model").mkdir()
    torch.save(model().state_dict(), tmp_path / "model" / "model.pt")
    rows = save_rows(tmp_path / "rows.jsonl", instructions())
    changed = yaml.safe_load(EXAMPLE.read_text())
    loss = changed["loss"] | {"method": f"rgd:tau={TAU:g}"}
    return changed | {
        "output_dir": str(tmp_path / "out"),
        "loss": loss,
        "model": {"_component_": "torchtune.models.llama3.llama3", **SIZES},
        "tokenizer": {"_component_": "torchtune_words.words"},
        "dataset": {
            "_component_": "torchtune.datasets.instruct_dataset", "source": "json", "data_files": str(rows),
            "column_map": {"input": "instruction", "output": "output"},
        },
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
            "checkpoint_dir": str(tmp_path / "model"), "checkpoint_files": ["model.pt"],
            "output_dir": str(tmp_path / "out"), "model_type": "LLAMA3",
        },
        "optimizer": {"_component_": "torch.optim.SGD", "lr": RATE},
        "batch_size": 2, "gradient_accumulation_steps": 4, "device": "cpu", "dtype": "fp32",
        "enable_activation_checkpointing": False,
    }  # fmt: skip


def trained(config, tmp_path, monkeypatch):
    """The parameters that the recipe writes."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    recipe = Path(importlib.util.find_spec("recipes").origin).parent / "full_finetune_single_device.py"
    monkeypatch.setattr(sys, "argv", ["full_finetune_single_device", "--config", str(path)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(recipe), run_name="__main__")
    (written,) = (tmp_path / "out").glob("epoch_0/*.bin")
    return torch.load(written)


def by_hand(weight, level):
    from torchtune_words import WORDS

    network = model()
    total, count = torch.zeros(()), 0
    for row in instructions():
        prompt, answer = ([WORDS.index(word) + 2 for word in row[name].split()] for name in ("instruction", "output"))
        tokens = torch.tensor([*prompt, *answer, 1])
        losses = F.cross_entropy(network(tokens[None])[0, :-1], tokens[1:], reduction="none")[len(prompt) - 1 :]
        seen = losses.detach()
        total = total + (weight(seen if level == "token" else seen.mean()) * losses).sum()
        count += len(losses)
    (total / count).backward()
    return {name: (value - RATE * value.grad).detach() for name, value in network.named_parameters()}


@pytest.mark.shows(HOST, "objective", "accumulation")
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_step_is_that_of_a_loop_by_hand(level, config, tmp_path, monkeypatch):
    config["loss"]["level"] = level
    after = trained(config, tmp_path, monkeypatch)
    expected = by_hand(rgd, level)
    for name, value in expected.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6)
    plain = by_hand(torch.ones_like, level)
    assert max(float((plain[name] - value).abs().max()) for name, value in expected.items()) > 1e-3


def logits_and_labels():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, 11, 7, generator=generator)
    labels = torch.randint(7, (3, 11), generator=generator)
    labels[0, :4] = labels[2, 9:] = -100
    return logits, labels


@pytest.mark.shows(HOST, "compile", "AMP")
def test_chunks_one_piece_and_compiled_give_the_same(monkeypatch):
    logits, labels = logits_and_labels()
    chunks = [chunk.requires_grad_() for chunk in logits.chunk(4, dim=1)]
    ours = CEWithChunkedOutputLoss("mean", num_output_chunks=4)
    torch.testing.assert_close(ours(chunks, labels), Plain(4)(chunks, labels))
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected = (rgd(losses) * losses).sum() / (labels != -100).sum()
    weighted = CEWithChunkedOutputLoss(f"rgd:tau={TAU:g}", num_output_chunks=4)
    torch.testing.assert_close(weighted(chunks, labels), expected)
    torch.testing.assert_close(weighted(logits.flatten(0, 1).requires_grad_(), labels.flatten()), expected)
    half = weighted([chunk.bfloat16() for chunk in chunks], labels)
    assert half.dtype == torch.float32
    assert abs(half - expected) < 1e-2
    monkeypatch.setenv("TORCH_COMPILE_BACKEND", "aot_eager")
    torch.testing.assert_close(compile_loss(weighted, verbose=False)(chunks, labels), expected)


def test_entropy_weighs_by_the_logits_at_hand():
    logits, labels = logits_and_labels()
    chunks = [chunk.requires_grad_() for chunk in logits.chunk(4, dim=1)]
    real = labels.flatten() != -100
    shares = torch.distributions.Categorical(logits=logits.flatten(0, 1)).entropy() / torch.tensor(7.0).log()
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    expected = (shares * losses)[real].sum() / real.sum()
    torch.testing.assert_close(CEWithChunkedOutputLoss("entropy", num_output_chunks=4)(chunks, labels), expected)


@pytest.mark.refuses(HOST, "loss", "sampler", "step", "average")
@pytest.mark.parametrize("text", ["focal+rgd", "rgd+class_uniform", "rgd+sam", "rgd+ema"])
def test_parts_without_a_place_are_refused(text):
    with pytest.raises(ValueError, match="a loss of torchtune carries the objective of a method"):
        CEWithChunkedOutputLoss(text)


def test_what_is_not_there_is_told():
    with pytest.raises(ValueError, match="weighs by more than losses and logits"):
        CEWithChunkedOutputLoss("rho")
    with pytest.raises(ValueError, match="needs rows"):
        CEWithChunkedOutputLoss("rgd", level="sequence")(torch.zeros(3, 7, requires_grad=True), torch.zeros(3).long())
