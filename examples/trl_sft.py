"""TRL: supervised fine-tuning with re-weighted tokens; a tiny model made from its configuration, nothing to download.

    python examples/trl_sft.py --tau 6

Fits sentences of Python's own documentation. The two lines that switch re-weighting on are marked.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from reweigh.integrations.trl import reweigh_sft  # one


def sentences() -> list[str]:
    """Sentences of three standard modules' documentation."""
    text = " ".join(filter(None, (json.__doc__, re.__doc__, argparse.__doc__)))
    found = re.split(r"(?<=[.:])\s+", re.sub(r"\s+", " ", text))
    return [s for s in found if 4 <= len(s.split()) <= 24]


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Words of the texts, learnt from them."""
    inner = Tokenizer(models.WordLevel(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<pad>", "<eos>", "<unk>"]))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tau", type=float, default=6.0, help="clip level; 0 trains plainly")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    texts = sentences()
    tokenizer = tokenizer_of(texts)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model,
            SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                max_steps=options.steps,
                learning_rate=1e-2,
                logging_steps=max(options.steps // 2, 1),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=Dataset.from_list([{"text": text} for text in texts]),
            processing_class=tokenizer,
        )
        if options.tau:
            reweigh_sft(trainer, tau=options.tau)  # two
        trainer.train()
    first, last = (log.get("plain_loss", log.get("loss")) for log in trainer.state.log_history[:2])
    print(f"plain loss {first:.3f} in the first half, {last:.3f} in the second")


if __name__ == "__main__":
    main()
