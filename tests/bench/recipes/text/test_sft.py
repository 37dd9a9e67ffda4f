"""Fine-tuning on a new domain: the loss over counted tokens, base and reference models, both sides, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from synthetic_runs import results_of

from reweigh.bench.draws.seeds import Seeds
from reweigh.bench.errors import UserError
from reweigh.bench.lab.runs import Run, Spec
from reweigh.bench.models.blocks.low_rank import LowRank, add_low_rank
from reweigh.bench.recipes import sft
from reweigh.bench.train.driver import Driver
from reweigh.bench.train.instructions import TokenRow, encode, padded, read
from reweigh.bench.train.programs.tokens import TokenLoss
from reweigh.method import method


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REWEIGH_CACHE", str(tmp_path_factory.getbasetemp() / "language-cache"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


# --- the loss ---


@pytest.mark.parametrize("text", ["entropy", "dft", "rho:keep=0.5"])
def test_token_loss_over_the_tokens_that_count_is_a_loop_by_hand(text):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 5, 8, generator=generator, requires_grad=True)
    weight = torch.randn(20, 8, generator=generator)
    targets = torch.randint(20, (3, 5), generator=generator)
    reference = torch.rand(3, 5, generator=generator) * 3
    targets[0, :2] = targets[2, 3:] = -100
    token_loss = TokenLoss(method(text), "token", ignores=True)
    ours = token_loss(hidden, weight, targets, reference=reference)
    losses, entropies, excess = [], [], []
    for b in range(3):
        for t in range(5):
            if targets[b, t] != -100:
                log_p = F.log_softmax(hidden[b, t] @ weight.T, -1)
                losses.append(-log_p[targets[b, t]])
                entropies.append(-(log_p.exp() * log_p).sum().detach() / math.log(20))
                excess.append((losses[-1] - reference[b, t]).detach())
    kept = sorted(range(11), key=lambda i: -excess[i])[:6]  # half of eleven, rounded up
    weights = {
        "entropy": entropies,
        "dft": [(-loss.detach()).exp() for loss in losses],
        "rho:keep=0.5": [11 / 6 if i in kept else 0.0 for i in range(11)],
    }[text]
    theirs = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / 11
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(token_loss.live.weights, torch.as_tensor(weights, dtype=torch.float32))
    gradients = [torch.autograd.grad(value, hidden)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("text", ["rgd:tau=5", "rgd_auto"])
def test_a_sequence_is_weighed_by_the_mean_of_the_tokens_that_count(text):
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 4, 6, requires_grad=True), torch.randn(9, 6)
    targets = torch.tensor([[1, 2, -100, -100], [3, 4, 5, 6]])
    token_loss = TokenLoss(method(text), "sequence", ignores=True)
    ours = token_loss(hidden, weight, targets)
    losses = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="none").view(2, 4)
    means = torch.stack([losses[0, :2].mean(), losses[1].mean()])
    torch.testing.assert_close(token_loss.live.losses, means.detach())
    w = token_loss.live.weights
    torch.testing.assert_close(ours, (w[0] * losses[0].sum() + w[1] * losses[1].sum()) / 6)


# --- rows of a file ---


class Words:
    """A tokenizer of words, which it numbers as they come."""

    eos_token = " <end>"

    def __init__(self):
        self.known = {}

    def __call__(self, text):
        return {"input_ids": [self.known.setdefault(word, len(self.known) + 1) for word in text.split()]}


def test_prompts_do_not_count():
    row = encode({"prompt": "a b", "completion": " c d"}, Words())
    assert row == TokenRow([1, 2, 3, 4, 5], [-100, -100, 3, 4, 5])
    assert encode({"text": "a b"}, Words()) == TokenRow([1, 2, 3], [1, 2, 3])
    assert encode({"input_ids": [7, 8], "labels": [-100, 8]}, Words()) == TokenRow([7, 8], [-100, 8])
    with pytest.raises(UserError, match="needs `text`"):
        encode({"question": "?"}, Words())


def test_rows_are_padded_and_shifted():
    examples = padded([TokenRow([1, 2, 3, 4], [-100, -100, 3, 4]), TokenRow([5, 6], [5, 6]), TokenRow([7], [7])], 2)
    assert examples.ids.tolist() == [[1, 2], [5, 0]]
    assert examples.targets.tolist() == [[-100, 3], [6, -100]]  # the third row has nothing to predict
    assert examples.take([1]).ids.tolist() == [[5]]
    with pytest.raises(UserError, match="larger `length`"):
        padded([TokenRow([1, 2], [-100, -100])], 2)


def test_a_broken_file_is_an_error_for_users(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": \n')
    with pytest.raises(UserError, match="line 3"):
        read(path)
    path.write_text("[1]\n")
    with pytest.raises(UserError, match="is a list"):
        read(path)
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


# --- matrices of low rank ---


def test_low_rank_starts_as_the_layer_and_trains_only_its_own():
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 4)
    adapted = LowRank(layer, rank=2, alpha=6.0)
    x = torch.randn(3, 5)
    torch.testing.assert_close(adapted(x), layer(x))
    with torch.no_grad():
        adapted.up.normal_()
    torch.testing.assert_close(adapted(x), x @ (layer.weight + 3.0 * adapted.up @ adapted.down).T + layer.bias)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert add_low_rank(model, rank=1, alpha=1.0) == 2
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {"0.down", "0.up", "2.down", "2.up"}


# --- the recipe ---


TINY = sft.Settings(batch_size=2, steps=4, every=2, held=2, base_steps=4, width=16, length=16)


def tuned(settings, text="mean", seed=0):
    seeds, data = Seeds(seed), sft.domains(settings)
    program = sft.FineTuning(
        settings,
        method(text),
        seeds,
        sft.base(settings, seeds, data),
        data.training(seeds)["train"],
        data.held(settings.held),
        None,
    )
    driver = Driver(program)
    records = []
    while not driver.over:
        records.append(driver.run_epoch())
    return program, records


def test_the_base_model_is_trained_once_and_every_method_starts_from_it():
    data = sft.domains(TINY)
    first = sft.base(TINY, Seeds(0), data)
    files = sorted((Path(sft.cache_folder()) / "trained").iterdir())
    again = sft.base(TINY, Seeds(0), data)
    assert sorted((Path(sft.cache_folder()) / "trained").iterdir()) == files
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    other = sft.base(TINY, Seeds(1), data)
    assert not torch.equal(first.head, other.head)
    _, plain = tuned(TINY)
    _, dft = tuned(TINY, "dft")
    assert plain[0]["before/kept"] == dft[0]["before/kept"]
    assert plain[-1]["kept/loss"] != dft[-1]["kept/loss"]


def test_scores_are_the_plain_loss_of_both_domains():
    program, records = tuned(TINY, "rgd:tau=3")
    for name, examples in program.held.items():
        with torch.no_grad():
            logits = program.model(examples.ids) @ program.model.head.T
        expected = F.cross_entropy(logits.flatten(0, 1), examples.targets.flatten())
        assert records[-1][f"{name}/loss"] == pytest.approx(float(expected), rel=1e-5)


def test_the_reference_model_sees_none_of_the_training_documents():
    documents = sft.TextDomains({}, {"train": range(11)}, list, 5)
    parts = documents.training(Seeds(3))
    assert sorted(parts["train"] + parts["reference"]) == list(range(11))
    assert len(parts["reference"]) == 5
    assert documents.training(Seeds(4)) != parts


@pytest.mark.thorough
def test_rho_weighs_by_the_reference_model(tmp_path):
    spec = Spec(recipe="sft", column="c", label="rho", method="rho", settings={}, seed=0)
    with Run(spec, tmp_path).open() as writer:
        records = list(sft.train(TINY, method("rho:keep=0.5"), 0, writer, None))
    assert records[-1]["weights/max"] == pytest.approx(2.0)


@pytest.mark.thorough
def test_any_folder_is_tuned_with_matrices_of_low_rank(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [f"w{i}" for i in range(20)]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", *words])}, unk_token="<eos>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>").save_pretrained(tmp_path)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=22, **small)).save_pretrained(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("old", "new"):
        rows = [
            {"prompt": " ".join(draw.choice(words, 3)), "completion": " " + " ".join(draw.choice(words, 4))}
            for _ in range(20)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = dataclasses.replace(
        TINY,
        checkpoint=str(tmp_path),
        text=str(tmp_path / "old.jsonl"),
        target=str(tmp_path / "new.jsonl"),
        rank=2,
        lr=0.1,
    )
    program, records = tuned(settings, "entropy")
    trained = {name for name, p in program.model.named_parameters() if p.requires_grad}
    assert len(trained) == 14  # two matrices beside each of seven linear layers
    assert set(program.state()["model"]) == trained
    assert records[-1]["test/loss"] != records[0]["before/test"]
    whole = LlamaForCausalLM.from_pretrained(tmp_path)
    examples = sft.domains(settings).held(2)["kept"]
    labels = torch.cat([torch.full((len(examples.ids), 1), -100), examples.targets], 1)
    ids = torch.cat([examples.ids, torch.zeros(len(examples.ids), 1, dtype=torch.long)], 1)
    assert records[0]["before/kept"] == pytest.approx(float(whole(ids, labels=labels).loss.detach()), rel=1e-5)
    with pytest.raises(UserError, match=r"config\.json"):
        sft.domains(dataclasses.replace(settings, checkpoint=str(tmp_path / "none")))


# --- the page ---


def page_of(ends, tmp_path):
    """Results with these losses on the new and the old domain at the end."""
    settings = dataclasses.asdict(sft.PRESETS["smoke"])
    for label, (learnt, kept) in ends.items():
        for seed in range(4):
            noise = 0.01 * seed + 0.001 * (seed % 2) * len(label)
            spec = Spec(
                recipe="sft",
                column="descriptions to capitals",
                label=label,
                settings=settings,
                method=str(method(sft.table("smoke").row(label).method)),
                seed=seed,
            )
            with Run(spec, tmp_path).open() as writer:
                facts = {"before/test": 4.0, "before/kept": 3.0}
                writer.record({"epoch": 1, "test/loss": 3.5, "val/loss": 3.5, "kept/loss": 3.0, **facts})
                ending = {"test/loss": learnt + noise, "val/loss": learnt, "kept/loss": kept + noise}
                writer.record({"epoch": 2, **ending})
                writer.finish({"seconds": 1.0})
    (results,) = results_of(tmp_path, "sft")
    return results


def test_the_page_tells_what_is_learnt_and_what_is_kept(tmp_path):
    ends = {"mean": (3.0, 3.5), sft.PRIMARY: (2.9, 3.6), "dft": (3.2, 3.1), "rho": (2.8, 3.2)}
    results = page_of(ends, tmp_path)
    assert (
        "learnt better by rgd, tokens, rho; more of the old one is kept by dft, rho; both by rho." in results.headline
    )
    end, way, numbers = results.extra
    assert "SFT (plain)" in end.markup
    assert "cross" in end.markup
    assert way.markup.count('class="line') >= 4
    assert "base model" in numbers.markup
    assert "+0.1" in numbers.markup
    assert "Too far out" not in end.caption


def test_a_row_that_is_far_out_is_named_and_not_drawn(tmp_path):
    """One row at ten times the loss would leave all others in one spot."""
    ends = {"mean": (3.0, 3.5), sft.PRIMARY: (2.9, 3.6), "dft": (30.0, 31.0), "rho": (2.8, 3.2)}
    end, way, numbers = page_of(ends, tmp_path).extra
    for figure in (end, way):
        assert "Too far out to be drawn: dft at 30.0" in figure.caption
        assert "dft" not in figure.markup
        assert "rho" in figure.markup
    assert "dft" in numbers.markup
