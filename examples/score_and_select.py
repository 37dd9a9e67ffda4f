"""Fine-tune on the tokens that a reference model finds easier: `reweigh score` writes its losses, `rho` weighs by them.

    python examples/score_and_select.py

A tiny model made from its configuration stands for the reference; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import torch
from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from reweigh.bench.cli.main import run_command
from reweigh.integrations.trl import reweigh_sft


def rows() -> list[dict[str, str]]:
    """Sentences of three standard modules' documentation."""
    text = " ".join(filter(None, (json.__doc__, re.__doc__, argparse.__doc__)))
    sentences = re.split(r"(?<=[.:])\s+", re.sub(r"\s+", " ", text))
    return [{"text": sentence} for sentence in sentences if 4 <= len(sentence.split()) <= 24]


def save_reference(folder: Path, texts: list[str]) -> None:
    """A model and its tokenizer, as a Hugging Face folder."""
    inner = Tokenizer(models.WordLevel(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "<eos>", "<unk>"]))
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    size = inner.get_vocab_size()
    config = LlamaConfig(vocab_size=size, **small, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "train.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
        save_reference(folder / "reference", [row["text"] for row in rows()])

        # reweigh score --model reference/ train.jsonl
        run_command(["score", str(data), "--model", str(folder / "reference"), "--device", "cpu"])
        scored = load_dataset("json", data_files=str(folder / "train.scored.jsonl"), split="train")

        arguments = SFTConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=8,
            max_steps=options.steps,
            learning_rate=1e-2,
            logging_steps=max(options.steps // 2, 1),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
        )
        trainer = SFTTrainer(
            AutoModelForCausalLM.from_pretrained(folder / "reference"),
            arguments,
            train_dataset=scored,
            processing_class=AutoTokenizer.from_pretrained(folder / "reference"),
        )
        reweigh_sft(trainer, "rho:keep=0.6", signal_column="reference")
        trainer.train()
    first, last = trainer.state.log_history[:2]
    print(f"effective share of tokens {first['ess_share']:.2f}")
    print(f"plain loss {first['plain_loss']:.3f} in the first half, {last['plain_loss']:.3f} in the second")


if __name__ == "__main__":
    main()
