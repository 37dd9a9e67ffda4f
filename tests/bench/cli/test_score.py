"""`reweigh score`: the losses in the file are those of the model's logits, and TRL's `rho` weighs by them."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from reweigh.bench.cli.main import run_command

WORDS = ["<pad>", "<eos>", "<unk>", "the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "red", "birds"]
ROWS = [
    {"text": "the cat sat on a mat", "id": 1},
    {"prompt": "the cat", "completion": " saw two red birds", "id": 2},
    {"input_ids": [3, 4, 5], "labels": [-100, 4, 5], "id": 3},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model in a Hugging Face folder."""
    path = tmp_path_factory.mktemp("model")
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The end of a text is a word of its own without a blank before it, as in the tokenizers of large models.
    inner.add_special_tokens(["<eos>"])
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=None, eos_token_id=1, initializer_range=0.7,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def by_hand(folder, ids):
    """The loss of each token, one row at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor(ids)
    with torch.no_grad():
        return F.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="none").tolist()


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("batch", ["1", "8"])
def test_a_loss_per_token_beside_its_tokens(batch, folder, data, capsys):
    assert run_command(["score", str(data), "--model", str(folder), "--device", "cpu", "--batch-size", batch]) == 0
    scored = read(data.with_name("rows.scored.jsonl"))
    assert [row["id"] for row in scored] == [1, 2, 3]
    encode = AutoTokenizer.from_pretrained(folder)
    assert scored[0]["input_ids"] == encode("the cat sat on a mat<eos>")["input_ids"]
    assert scored[1]["labels"][:2] == [-100, -100]
    assert scored[2]["labels"] == [-100, 4, 5]
    total, count = 0.0, 0
    for row in scored:
        losses = [0.0, *by_hand(folder, row["input_ids"])]
        expected = [0.0 if label == -100 else loss for loss, label in zip(losses, row["labels"], strict=True)]
        assert row["reference"] == pytest.approx([0.0, *expected[1:]], abs=2e-6)
        total += sum(expected[1:])
        count += sum(label != -100 for label in row["labels"][1:])
    assert f"3 rows, {count} tokens to predict, {total / count:.4f} nats each" in capsys.readouterr().out


def test_a_loss_per_row_and_rows_that_are_cut(folder, data):
    out = data.with_name("out.jsonl")
    options = ["--device", "cpu", "--per", "row", "--column", "hard", "--length", "4", "-o", str(out)]
    assert run_command(["score", str(data), "--model", str(folder), *options]) == 0
    scored = read(out)
    assert "input_ids" not in scored[0]
    encode = AutoTokenizer.from_pretrained(folder)
    first = by_hand(folder, encode("the cat sat on")["input_ids"])
    assert scored[0]["hard"] == pytest.approx(sum(first) / 3, abs=2e-6)
    second = by_hand(folder, encode("the cat saw two")["input_ids"])
    assert scored[1]["hard"] == pytest.approx(sum(second[1:]) / 2, abs=2e-6)  # "saw" and "two"


def test_wrong_calls_get_one_sentence(folder, data, tmp_path, capsys):
    def told(*arguments):
        assert run_command(["score", *map(str, arguments), "--device", "cpu"]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "is not a Hugging Face folder: it has no config.json" in told(data, "--model", tmp_path)
    assert "would replace" in told(data, "--model", folder, "-o", data)
    assert "rows have 'id' already" in told(data, "--model", folder, "--column", "id")
    assert "must be positive, got 0 and 0" in told(data, "--model", folder, "--batch-size", 0)
    assert "cannot be read" in told(tmp_path / "none.jsonl", "--model", folder)
    assert not list(tmp_path.glob("*.scored.jsonl"))


def test_rho_in_trl_reads_the_column(folder, data, tmp_path):
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    from reweigh.integrations.trl import reweigh_sft

    run_command(["score", str(data), "--model", str(folder), "--device", "cpu"])
    rows = load_dataset("json", data_files=str(data.with_name("rows.scored.jsonl")), split="train")
    steps = []
    for options in ({"signal_column": "reference"}, {"reference": AutoModelForCausalLM.from_pretrained(folder)}):
        torch.manual_seed(1)
        model = LlamaForCausalLM(AutoModelForCausalLM.from_pretrained(folder).config)
        arguments = SFTConfig(
            output_dir=str(tmp_path / "out"), max_steps=2, optim="sgd", learning_rate=0.1, report_to="none",
            save_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, per_device_train_batch_size=3,
        )  # fmt: skip
        trainer = SFTTrainer(
            model, arguments, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(folder)
        )
        reweigh_sft(trainer, "rho:keep=0.5", **options).train()
        steps.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    torch.testing.assert_close(steps[0], steps[1], rtol=0, atol=1e-6)
